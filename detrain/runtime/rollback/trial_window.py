"""A moment in memory to which a process goes back again and again: trial after trial starts from the same bits."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any

from detrain.base.cursor import Address
from detrain.python.codec.api import Baseline
from detrain.python.inspect.frames import names_of, user_frames, write_locals
from detrain.runtime.rollback.ring import CannotGoBackError, Moment, Ring


class Window(Ring):
    """One moment that is held, and the batches since then.

    Only loads that run no Python of the program can be taken back. A trial that has left the loop comes back by
    entering it again: the loop that is entered then draws on from what the other one drew from.
    """

    is_away = False
    """Whether the loop of the moment has been left."""
    _kept: tuple[object, tuple[object, int], Baseline] | None = None
    """What the loop of the moment draws from, where it stands, and what was there before it."""

    _names: Mapping[str, object] = MappingProxyType({})
    """What the names of the loop's function were bound to at the moment."""

    @property
    def is_held(self) -> bool:
        """Whether a moment is held."""
        return bool(self._moments)

    @property
    def is_again(self) -> bool:
        """Whether the load that comes next has been done before."""
        return not self.is_away and super().is_again

    def clear(self) -> None:
        """Hold nothing."""
        super().clear()
        self.is_away, self._kept = False, None

    def is_of(self, source: object, frame: FrameType | None) -> bool:
        """Return whether a loop is the one of the moment."""
        return frame is not None and self.is_held and self._is_here(self._moments[0], source, frame)

    def come_back(self, source: Any, frame: FrameType) -> Baseline | None:
        """If a loop that has been entered is the moment's, entered again, let it draw on from what that one drew from.

        Returns what was there before it; None if the loop is another. Raises CannotGoBackError.
        """
        if self._kept is None:
            raise CannotGoBackError("no step of this loop is behind it")
        iterator, place, baseline = self._kept
        if place != _place(frame):
            return None
        if id(frame) != self._moments[0].frame and frame.f_code.co_cellvars:
            raise CannotGoBackError("the loop is in a function that has been called again, whose names others hold")
        source.iterator = iterator
        for moment in self._moments:
            moment.source, moment.frame = weakref.ref(source), id(frame)
        self.is_away = False
        return baseline

    def start(self, address: Address, batches_done: int, source: Any, frame: FrameType, baseline: Baseline, extra: object) -> None:
        """Hold this moment, the cut before a load, from now on.

        Batches behind it that have been loaded already stay.
        """
        ahead = self._moments[self._next + 1 :] if self.is_again else []
        load = self._moments[self._next].load if self.is_again else None
        if not ahead and load is None:
            self.clear()
        self._moments = []
        super().hold(address, batches_done, source, frame, baseline, extra)
        self._kept = source.iterator, _place(frame), baseline
        self._names = dict(next((names_of(each) for each in user_frames(frame)), {}))
        self._moments[0].load = load
        self._moments += ahead
        self._next = 0

    def follow(self, address: Address, batches_done: int, source: object, frame: FrameType) -> None:
        """Note that a batch is about to be loaded behind the moment that is held."""
        is_kept = self._moments and not self.is_away and self._moments[0].way is None
        if is_kept and not self.is_again and self._is_here(self._moments[0], source, frame):
            state = self._moments[0].state
            self._moments.append(Moment(address, batches_done, weakref.ref(source), id(frame), state, [], {}, {}, None))
            self._next = len(self._moments) - 1

    def keep(self, item: object, loader: object, frame: FrameType, baseline: Baseline) -> None:
        """Keep what a load has returned."""
        if self.is_away:
            self.end_load()
        elif self._next < len(self._moments):
            super().keep(item, loader, frame, baseline)
            load = self._moments[self._next - 1].load
            if load is not None and load.after is not None:
                self._note("the loader runs Python")

    def go_back(self, source: object, frame: FrameType, baseline: Baseline, kept_in: Path) -> Moment:
        """Put the state of the moment back, wherever behind it the loop is."""
        if self._moments and self._is_here(self._moments[0], source, frame):
            self._next = len(self._moments)  # loads that were not handed out again this time are there still
        moment = super().go_back(source, frame, baseline, kept_in)
        # Nobody reads these names before they are bound again, but who looks for what the program says of a step.
        for each in list(user_frames(frame))[:1]:
            now = names_of(each)
            stale = {name: self._names.get(name) for name, value in now.items() if self._names.get(name, self) is not value}
            if stale:
                write_locals(each, stale)
        return moment


def _place(frame: FrameType) -> tuple[object, int]:
    """Return where a loop stands that is about to load."""
    return frame.f_code, frame.f_lasti
