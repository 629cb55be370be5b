"""What an engine is, of which there are several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import msgspec


class Lease(msgspec.Struct, frozen=True):
    """Trials that one worker does, one process after another."""

    identity: str
    numbers: Sequence[int]


class WorkerEnded(msgspec.Struct, frozen=True):
    """A worker has ended, with its lease done or not: what is in its ledger says how far it has come."""

    lease: Lease
    shard: str
    """The name of its ledger."""
    status: int
    """Its exit status; negative for a signal, or where nobody knows."""
    said: str = ""
    """The end of what it wrote to stderr."""


class Work(Protocol):
    """What a worker is started with."""

    def command(self, lease: Lease, shard: str) -> list[str]:
        """Write the lease, and return the command of a worker that does it."""

    def log(self, lease: Lease) -> Path:
        """Return the file that takes what the worker writes to stderr."""

    def waits(self, lease: Lease) -> bool:
        """Return whether the worker only waits for trials that take long, so that another can begin."""


class Engine(Protocol):
    """Where workers run. A worker is a detrain process on each; the engine only holds it, and starts none again."""

    @property
    def slots(self) -> int:
        """How many workers run at a time."""

    def start(self, work: Work) -> None:
        """Be ready for leases."""

    def submit(self, lease: Lease) -> None:
        """Start a worker on a lease: there is a free slot."""

    def events(self) -> Iterator[WorkerEnded]:
        """Wait a little, and yield the workers that have ended."""

    def stop(self) -> None:
        """End all workers."""
