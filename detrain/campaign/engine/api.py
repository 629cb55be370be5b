"""The interface of an engine: the place where a campaign's workers run. There are several engines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import msgspec


class TrialLease(msgspec.Struct, frozen=True):
    """Numbers of trials that one worker does, one process after another."""

    identity: str
    numbers: Sequence[int]


class WorkerEnded(msgspec.Struct, frozen=True):
    """Event: a worker has ended, with or without all of its lease; its ledger holds the trials that it has done."""

    lease: TrialLease
    shard: str
    """The name of its ledger."""
    status: int
    """Its exit status; negative for a signal, or if the status is unknown."""
    said: str = ""
    """The last lines that it wrote to stderr."""


class Work(Protocol):
    """Gives an engine the command with which to start a worker."""

    def command(self, lease: TrialLease, shard: str) -> list[str]:
        """Write the lease, and return the command of a worker that does it."""

    def log(self, lease: TrialLease) -> Path:
        """Return the file for the worker's stderr."""

    def waits(self, lease: TrialLease) -> bool:
        """Return whether the worker only waits for trials that take long, so that another can begin."""


class Engine(Protocol):
    """A place for workers. Each worker is a detrain process; the engine only holds it, and never starts it again."""

    @property
    def slots(self) -> int:
        """How many workers run at a time."""

    def start(self, work: Work) -> None:
        """Take the work from which leases are started."""

    def submit(self, lease: TrialLease) -> None:
        """Start a worker on a lease: there is a free slot."""

    def events(self) -> Iterator[WorkerEnded]:
        """Wait a little, and yield the workers that have ended."""

    def stop(self) -> None:
        """End all workers."""
