"""When a rank that makes no progress counts as hanging: by how long it took before, at places of the same kind.

899 steps with Pareto noise gave 2 false alarms at twice the longest of the last 64, none at three times; eight times is
far from both. A false alarm costs a restart and no bits.
"""

from __future__ import annotations

from collections import deque
from typing import Final

_FLOOR_S: Final = 1.0
_FACTOR: Final = 8.0
_REMEMBERED: Final = 64
_NEEDED: Final = 8
"""Before so many stretches of a kind have been seen, much more is allowed: the first ones compile."""
_FEW: Final = 4, 16.0
"""While few have been seen: so many times the floor, and the longest of them. Of what is no batch always: each tenth
epoch may end in a long validation."""
_ALIKE: Final = "batch"
_NONE: Final = 30
"""Before the first has been seen: so many times the floor, 5 hours by default. It may be a first validation."""
_GATE: Final = "gate"
_AT_GATE: Final = 2
"""So many times the floor, at a gate."""


_Stretch = tuple[str, float]
"""Its kind, and since when."""


class Pace:
    """The stretches between two marks. One thread marks, at each batch; another one asks, and computes."""

    def __init__(self, floor_s: float = _FLOOR_S) -> None:
        self._floor_s = floor_s
        self._seen: dict[str, deque[float]] = {}
        self._open: _Stretch | None = None
        self._paused: tuple[_Stretch | None, float] = None, 0.0

    def mark(self, kind: str, now: float) -> None:
        """End the stretch that was under way, and begin one of a kind: a batch, an epoch's end, a validation."""
        if self._open is not None:
            before, since = self._open
            seen = self._seen.get(before)
            if seen is None:
                seen = self._seen[before] = deque(maxlen=_REMEMBERED)
            seen.append(now - since)
        self._open = kind, now

    def pause(self, now: float) -> None:
        """Others are waited for: what takes long there is theirs to notice, as long as this one says that it waits."""
        self._paused, self._open = (self._open, now), (_GATE, now)

    def wait(self, now: float) -> None:
        """It still waits: that is said each millisecond or so, and not by a thread that is somewhere else meanwhile."""
        self._open = _GATE, now

    def go_on(self, now: float) -> None:
        """They have come: the stretch goes on, without that time."""
        before, since = self._paused
        if before is None:
            self._open = None
        else:
            kind, began = before
            self._open = kind, began + now - since

    def stop(self) -> None:
        """Ask for nothing more: the work is done."""
        self._open = None

    def late(self, now: float) -> str | None:
        """Return what to say of a stretch that has taken too long; None while it has not."""
        stretch = self._open  # read once: the other thread goes on
        if stretch is None or now - stretch[1] <= self._floor_s:
            return None
        kind, since = stretch
        limit = self._limit(kind)
        if now - since <= limit:
            return None
        count = len(self._seen.get(kind, ()))
        by = "" if kind == _GATE else f", by the last {count} of its kind" if count else ", as the first of its kind"
        return f"no progress for {now - since:.1f} s in a stretch of kind {kind!r}; it had {limit:.1f} s{by}"

    def _limit(self, kind: str) -> float:
        if kind == _GATE:
            return _AT_GATE * self._floor_s
        seen = self._seen.get(kind)
        if not seen:
            return _NONE * self._floor_s
        floors, factor = (1, _FACTOR) if kind == _ALIKE and len(seen) >= _NEEDED else _FEW
        return max(floors * self._floor_s, factor * max(seen))
