"""The orders of `detrain verify` and `detrain hindsight` to the runs that they start: where to end, which checkpoints
to take, and to leave digests behind.
"""

from __future__ import annotations

import ctypes
import io
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from detrain.base import messages
from detrain.base.config import Ranks
from detrain.base.cursor import Address
from detrain.base.digest import Array, digest_array

VARIABLE: Final = "DETRAIN_TRIAL"
"""Holds a plan as JSON, or the path of a file with it: a clock's readings may be too long for a variable."""


class VerifyPlan(msgspec.Struct, frozen=True):
    """The plan for one process of a run that is compared with another."""

    states: str
    """File for the digests of all variables at the ends of phases and of the program, and for the lengths of the output
    at cuts."""
    outside: dict[str, list[str]] = {}
    """The readings of clock and randomness of an earlier run."""
    kill_at: int | None = None
    """The process kills itself (SIGKILL) when the run has done so many batches."""
    kill_ranks: tuple[int, ...] = ()
    """Ranks of a job that kill themselves."""
    cuts: tuple[str, ...] | None = None
    """Checkpoints are taken only at these cuts, each as `CURSOR CUT`, also at the cut where the process resumes."""
    ends_at: str = ""
    """The process ends at this one of these cuts."""
    jumps: tuple[str, ...] = ()
    """Paths of checkpoints behind the batches of an epoch: before that epoch's first batch the run jumps to their
    state."""
    files: str = ""
    """Folder with the program's files as the run has left them, also with the output of bodies that are jumped over."""
    last: Address | None = None
    """The process ends behind this batch, before the next body: the run has no records of later batches."""
    is_of_job: bool = False
    """Whether all processes of a job get this plan."""

    @classmethod
    def of_environment(cls) -> VerifyPlan | None:
        """Return the plan for this process, if there is one. The variable stays, as the run may start itself again."""
        text = os.environ.get(VARIABLE, "").encode()
        if text and not text.startswith(b"{"):
            with io.FileIO(text) as file:
                text = file.readall()
        plan, ranks = msgspec.json.decode(text, type=cls) if text else None, Ranks.of_environment()
        if plan is None or ranks is None or not plan.is_of_job:
            return plan
        kill_at = plan.kill_at if ranks.rank in plan.kill_ranks else None
        return msgspec.structs.replace(plan, states=f"{plan.states}.rank-{ranks.rank}", kill_at=kill_at)

    def hand_over(self, path: Path) -> dict[str, str]:
        """Write the plan into a file; return the environment variable that leads a run to it."""
        path.write_bytes(msgspec.json.encode(self))
        return {VARIABLE: str(path.absolute())}

    def at_batch(self, batches_done: int, address: Address) -> None:
        """End or kill the process if the plan says so, as the body of a batch is about to run."""
        if self.last is not None and address > self.last:
            _flush()
            os._exit(0)
        if batches_done == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def next_batch(self, address: Address, batches_done: int) -> int:
        """Return the number of the first batch of an epoch, from `address` on, at which the process may end."""
        batch, found = address[-1], sys.maxsize
        if self.last is not None and address[:2] >= self.last[:2]:
            found = max(self.last[-1] + 1, batch) if address[:2] == self.last[:2] else batch
        return found if self.kill_at is None or self.kill_at < batches_done else min(found, batch + self.kill_at - batches_done)

    def at_cut(self, what: str, cursor: str) -> None:
        """Note the lengths of stdout and stderr, if these are files, as the process starts, a checkpoint is taken, its
        state has been set, or an epoch begins.
        """
        _flush()
        self._note(f"{what} {cursor}", (os.fstat(1).st_size, os.fstat(2).st_size))

    def at_end(self, of: str, tensors: Mapping[str, Array]) -> None:
        """Note the digests of the variables, as a training loop (`of` names its phase) or the program has ended."""
        self._note(of, {key: digest_array(array) for key, array in tensors.items()})

    def _note(self, of: str, what: object) -> None:
        line = json.dumps([of, what])
        with io.FileIO(self.states, "a") as file:  # not `open`: detrain follows the files that it opens
            file.write(line.encode() + b"\n")


def _flush() -> None:
    """Write out the program's buffered output, also that of its C code."""
    messages.flush_output()
    ctypes.CDLL(None).fflush(None)
