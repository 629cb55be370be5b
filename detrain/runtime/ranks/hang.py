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
"""Before so many stretches of a kind have been seen, nothing is said: the first ones compile."""


_Stretch = tuple[str, float, float | None]
"""Its kind, since when, and how long it may take."""


class Pace:
    """The stretches between two marks. One thread marks, another one asks."""

    def __init__(self, floor_s: float = _FLOOR_S) -> None:
        self._floor_s = floor_s
        self._seen: dict[str, deque[float]] = {}
        self._open: _Stretch | None = None
        self._paused: tuple[_Stretch | None, float] = None, 0.0

    def mark(self, kind: str, now: float) -> None:
        """End the stretch that was under way, and begin one of a kind: a batch, an epoch's end, a validation."""
        if self._open is not None:
            before, since, _ = self._open
            self._seen.setdefault(before, deque(maxlen=_REMEMBERED)).append(now - since)
        self._open = kind, now, self._limit(kind)

    def pause(self, now: float) -> None:
        """Others are waited for: what takes long there is theirs to notice."""
        self._paused, self._open = (self._open, now), None

    def go_on(self, now: float) -> None:
        """They have come: the stretch goes on, without that time."""
        before, since = self._paused
        if before is not None:
            kind, began, limit = before
            self._open = kind, began + now - since, limit

    def stop(self) -> None:
        """Ask for nothing more: the work is done."""
        self._open = None

    def late(self, now: float) -> str | None:
        """Return what to say of a stretch that has taken too long; None while it has not."""
        if self._open is None:
            return None
        kind, since, limit = self._open
        if limit is None or now - since <= limit:
            return None
        return (
            f"no progress for {now - since:.1f} s in a stretch of kind {kind!r}; the longest of the last ones gave it {limit:.1f} s"
        )

    def _limit(self, kind: str) -> float | None:
        seen = self._seen.get(kind, ())
        return max(self._floor_s, _FACTOR * max(seen)) if len(seen) >= _NEEDED else None
