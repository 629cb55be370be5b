"""When a rank without progress counts as hanging: measured by the times that earlier stretches of its kind took.

In 899 steps with Pareto noise, a limit of twice the longest of the last 64 steps gave 2 false alarms, three times gave
none; eight times is far from both. A false alarm costs a restart and no bits.
"""

from __future__ import annotations

from collections import deque
from typing import Final

_FLOOR_S: Final = 1.0
_FACTOR: Final = 8.0
_REMEMBERED: Final = 64
_NEEDED: Final = 8
"""Until so many stretches of a kind have been seen, the limit is much wider, as the first ones compile."""
_FEW: Final = 4, 16.0
"""The wide limit: so many times the floor, or so many times the longest stretch seen. Stretches other than batches
always have it, as each tenth epoch may end in a long validation."""
_ALIKE: Final = "batch"
_NONE: Final = 30
"""The limit of the first stretch of a kind: so many times the floor, 5 hours by default. It may be a validation."""
_GATE: Final = "gate"
_AT_GATE: Final = 2
"""The limit at a gate: so many times the floor."""


_Stretch = tuple[str, float]
"""The kind of a stretch, and the time of its start."""


class Pace:
    """The times between marks (stretches). One thread marks, at each batch; another thread asks, and computes."""

    def __init__(self, floor_s: float = _FLOOR_S) -> None:
        self._floor_s = floor_s
        self._seen: dict[str, deque[float]] = {}
        self._open: _Stretch | None = None
        self._paused: tuple[_Stretch | None, float] = None, 0.0

    def mark(self, kind: str, now: float) -> None:
        """End the running stretch, and begin one of a kind: a batch, an epoch's end, a validation."""
        if self._open is not None:
            before, since = self._open
            seen = self._seen.get(before)
            if seen is None:
                seen = self._seen[before] = deque(maxlen=_REMEMBERED)
            seen.append(now - since)
        self._open = kind, now

    def pause(self, now: float) -> None:
        """Interrupt the stretch, as this rank waits for others: they notice their own hangs while this one waits."""
        self._paused, self._open = (self._open, now), (_GATE, now)

    def wait(self, now: float) -> None:
        """Note that the rank still waits: the waiting thread itself calls this each millisecond or so."""
        self._open = _GATE, now

    def go_on(self, now: float) -> None:
        """Go on with the stretch, without the time at the gate, as the others have come."""
        before, since = self._paused
        if before is None:
            self._open = None
        else:
            kind, began = before
            self._open = kind, began + now - since

    def stop(self) -> None:
        """Set no more limits, as the work is done."""
        self._open = None

    def late(self, now: float) -> str | None:
        """Return a message if the running stretch has taken too long, else None."""
        stretch = self._open  # read it once, as the other thread goes on
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
