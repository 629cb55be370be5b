"""A moment in memory to which a process goes back again and again: trial after trial starts from the same bits."""

from __future__ import annotations

import weakref
from pathlib import Path
from types import FrameType

from detrain.base.cursor import Address
from detrain.python.codec.api import Baseline
from detrain.runtime.rollback.ring import Moment, Ring


class Window(Ring):
    """One moment that is held, and the batches since then.

    Only loads that run no Python of the program can be taken back.
    """

    def start(
        self, address: Address, batches_done: int, source: object, frame: FrameType, baseline: Baseline, extra: object
    ) -> None:
        """Hold this moment, the cut before a load, from now on.

        Batches behind it that have been loaded already stay.
        """
        ahead = self._moments[self._next + 1 :] if self.is_again else []
        load = self._moments[self._next].load if self.is_again else None
        if not ahead and load is None:
            self.clear()
        self._moments = []
        super().hold(address, batches_done, source, frame, baseline, extra)
        self._moments[0].load = load
        self._moments += ahead
        self._next = 0

    def follow(self, address: Address, batches_done: int, source: object, frame: FrameType) -> None:
        """Note that a batch is about to be loaded behind the moment that is held."""
        is_kept = self._moments and self._moments[0].way is None
        if is_kept and not self.is_again and self._is_here(self._moments[0], source, frame):
            state = self._moments[0].state
            self._moments.append(Moment(address, batches_done, weakref.ref(source), id(frame), state, [], {}, {}, None))
            self._next = len(self._moments) - 1

    def keep(self, item: object, loader: object, frame: FrameType, baseline: Baseline) -> None:
        """Keep what a load has returned."""
        if self._next < len(self._moments):
            super().keep(item, loader, frame, baseline)
            load = self._moments[self._next - 1].load
            if load is not None and load.after is not None:
                self._note("the loader runs Python")

    def go_back(self, source: object, frame: FrameType, baseline: Baseline, kept_in: Path) -> Moment:
        """Put the state of the moment back, wherever behind it the loop is."""
        if self._moments and self._is_here(self._moments[0], source, frame):
            self._next = len(self._moments)  # loads that were not handed out again this time are there still
        return super().go_back(source, frame, baseline, kept_in)
