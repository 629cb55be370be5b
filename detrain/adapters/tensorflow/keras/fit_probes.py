"""What Keras's `fit` needs of the runtime: the probes of its loops, and what a lazy load takes.

The adapter is given an object that has all this, so that it need not import the runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import numpy as np


class Probes(Protocol):
    """What the runtime gives to an adapter for a framework's own training loop: the probes,
    and what a lazy load takes."""

    def epoch_loop(self, iterable: Iterable[Any]) -> Iterator[Any]:
        """Wrap the iterable of an epoch loop."""

    def fetch_loop(self, iterable: Iterable[Any]) -> Iterator[Any]:
        """Wrap the iterable of a batch loop whose bodies load their batches."""

    def record_epoch(self, epoch: object = None) -> None:
        """Mark the start of an epoch."""

    def record_batch(self, batch: object = None) -> bool:
        """Mark that a body starts. Returns whether it is to be executed."""

    def note_fetched(self, parts: list[np.ndarray[Any, Any]], *, is_whole: bool) -> None:
        """Take the digest of the batch that the body has loaded, or of a part of it."""

    def is_in_phase(self) -> bool:
        """Return whether a loop with probes is running."""

    def is_resuming(self) -> bool:
        """Return whether the run is on its way to a checkpoint."""

    def note_all_streams(self) -> None:
        """Have the random streams at all batches of this phase recorded:
        its loader can only be replayed from its start."""

    def epoch(self) -> int:
        """Return the epoch that is running, -1 before the first."""

    def load_again(self, epoch: int, batch: int, load: Callable[[], None]) -> None:
        """Have a batch of this phase loaded by the random streams that it was loaded by, and compared with it."""

    def begin_fetch(self) -> None:
        """Have the random streams recorded as they are now, behind callbacks: Python is about to fetch the batch."""

    def end_fetch(self) -> None:
        """Have the batch recorded that has been fetched, before callbacks see it."""
