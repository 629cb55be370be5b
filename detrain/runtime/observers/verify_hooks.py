"""What `detrain verify` and `detrain hindsight` ask of the runs that they start: where to end, which checkpoints to
take, and to leave digests behind.
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
"""Holds a trial as JSON, or the path of a file that does: readings of a clock outgrow a variable."""


class VerifyPlan(msgspec.Struct, frozen=True):
    """One process of a run that is compared with another."""

    states: str
    """File for the digests of all variables at the ends of phases and of the program, and for where the output is at
    cuts."""
    outside: dict[str, list[str]] = {}
    """What an earlier run has read of clock and randomness."""
    kill_at: int | None = None
    """The process kills itself (SIGKILL) when the run has done so many batches."""
    kill_ranks: tuple[int, ...] = ()
    """Of a job: which of its processes do."""
    cuts: tuple[str, ...] | None = None
    """Checkpoints are taken at these cuts alone, each as `CURSOR CUT`, also at that at which the process goes on."""
    ends_at: str = ""
    """The process ends at this one of them."""
    jumps: tuple[str, ...] = ()
    """Checkpoints, by path, each behind the batches of an epoch: before the first of its batches the state becomes that
    one."""
    files: str = ""
    """Where the program's files are as the run has left them, for what bodies have written that are jumped over."""
    last: Address | None = None
    """The process ends behind this batch, before the body of the next one: more is not on record of the run."""
    is_of_job: bool = False
    """All processes of a job are given this one."""

    @classmethod
    def of_environment(cls) -> VerifyPlan | None:
        """Return the trial of this process, if it is one. The variable stays: the run may start itself again."""
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
        """Write it into a file; return the environment variable that leads a run there."""
        path.write_bytes(msgspec.json.encode(self))
        return {VARIABLE: str(path.absolute())}

    def at_batch(self, batches_done: int, address: Address) -> None:
        """The body of a batch is about to run."""
        if self.last is not None and address > self.last:
            _flush()
            os._exit(0)
        if batches_done == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def next_batch(self, address: Address, batches_done: int) -> int:
        """Return the number of the first batch of an epoch, from the one at an address on, at which it may end."""
        batch, found = address[-1], sys.maxsize
        if self.last is not None and address[:2] >= self.last[:2]:
            found = max(self.last[-1] + 1, batch) if address[:2] == self.last[:2] else batch
        return found if self.kill_at is None or self.kill_at < batches_done else min(found, batch + self.kill_at - batches_done)

    def at_cut(self, what: str, cursor: str) -> None:
        """A checkpoint is taken, the state of one has been set, or an epoch begins: note how much has been printed, to
        stdout and to stderr, if that goes to files.
        """
        _flush()
        self._note(f"{what} {cursor}", (os.fstat(1).st_size, os.fstat(2).st_size))

    def at_end(self, of: str, tensors: Mapping[str, Array]) -> None:
        """A training loop (`of` is its phase), or the program, has been left."""
        self._note(of, {key: digest_array(array) for key, array in tensors.items()})

    def _note(self, of: str, what: object) -> None:
        line = json.dumps([of, what])
        with io.FileIO(self.states, "a") as file:  # not `open`, by which the program's own files are followed
            file.write(line.encode() + b"\n")


def _flush() -> None:
    """Have written what the program has printed, C code of it, too."""
    messages.flush_output()
    ctypes.CDLL(None).fflush(None)
