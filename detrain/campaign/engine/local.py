"""Workers on this machine."""

from __future__ import annotations

import itertools
import subprocess
import time
from collections.abc import Iterator
from typing import IO, Final

from detrain.base.child_processes import dying_with_this
from detrain.campaign.engine.api import TrialLease, Work, WorkerEnded

_POLL_S: Final = 0.05
_SAID: Final = 12
"""Shown lines of a worker's stderr, at most."""


class Local:
    """Runs one process for each slot. All processes end with this one."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._running: dict[int, tuple[TrialLease, subprocess.Popen[bytes], IO[bytes]]] = {}

    @property
    def slots(self) -> int:
        """How many workers run at a time; those that only wait for trials that take long are not counted."""
        return self._slots + sum(self._work.waits(lease) for lease, _, _ in self._running.values())

    def start(self, work: Work) -> None:
        """Take the work from which leases are started."""
        self._work = work

    def submit(self, lease: TrialLease) -> None:
        """Start a worker on a lease."""
        slot = next(slot for slot in itertools.count() if slot not in self._running)
        command = self._work.command(lease, _shard(slot))
        stderr = self._work.log(lease).open("wb")
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            preexec_fn=dying_with_this(),  # noqa: PLW1509  there are no other threads of Python here
        )
        self._running[slot] = lease, process, stderr

    def events(self) -> Iterator[WorkerEnded]:
        """Wait a little, and yield the workers that have ended."""
        time.sleep(_POLL_S)
        for slot, (lease, process, stderr) in list(self._running.items()):
            status = process.poll()
            if status is not None:
                stderr.close()
                del self._running[slot]
                said = self._work.log(lease).read_text(errors="replace").splitlines()[-_SAID:]
                yield WorkerEnded(lease, _shard(slot), status, "\n".join(said))

    def stop(self) -> None:
        """End all workers, and with them their own processes."""
        for _lease, process, stderr in self._running.values():
            process.kill()
            process.wait()
            stderr.close()
        self._running = {}


def _shard(slot: int) -> str:
    return f"local-{slot}"
