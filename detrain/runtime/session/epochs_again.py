"""What a loop over epochs has handed out: a process that does one trial after another goes back to an epoch that is
over, and hands it out again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from detrain.base.cursor import NOTHING
from detrain.python.inspect.progress import is_plain_iterator
from detrain.runtime.observers.trials_in_process import Rewind


class EpochsAgain:
    """The epochs of the phase that is running. Without trials that go back (`rewind` is None) nothing is kept."""

    def __init__(self, rewind: Rewind | None) -> None:
        self._rewind = rewind
        self._items: dict[int, Any] = {}

    def begin_phase(self) -> None:
        """A loop over epochs is about to be entered."""
        self._items = {}
        if self._rewind is not None:
            self._rewind.has_epochs = False

    def next(self, count: int) -> tuple[int, Any]:
        """Return the epoch that comes next, and what was handed out with it; NOTHING: it is for the first time."""
        if self._rewind is None:
            return count, NOTHING
        again = self._rewind.epoch_again()
        count = count if again < 0 else again
        return count, self._items.get(count, NOTHING)

    def keep(self, iterator: Iterator[Any], count: int, item: object) -> None:
        """An epoch is handed out."""
        if self._rewind is not None:
            self._rewind.has_epochs = is_plain_iterator(iterator)  # or it may give something else, or do more
            self._items[count] = item
