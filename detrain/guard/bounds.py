"""Bounds on the norms of what a training carries along: from theory where it gives them, else from what has been seen.

A transient fault in an accelerator that matters leaves values behind that are too large by many orders of magnitude, or no numbers
at all. So a bound may be wide. The derivations, and what they assume, are in docs/guard.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from detrain.frameworks import Watched

MARGIN: Final = 1000.0
"""A norm may be this much larger than the largest seen in its group (squares: by the square of it)."""
WINDOW: Final = 8
"""Steps with values other than zero that are watched before what they had becomes a bound."""
ASSUMED: Final = 1e12
"""No norm is larger in a group's first steps (squares: the square of it), if none was before the first step."""
_FLOOR: Final = 1e-6
"""Values below this count as this large: the first update of what was all but zero is no fault."""
_NONE: Final = float(np.finfo(np.float64).max)
"""The bound where there is none: infinity and what is no number exceed it."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Excess:
    """A norm above its bound. `kind` is `derived`, `seen`, `assumed` (in the first steps) or `not finite`."""

    key: str
    group: str
    norm: float
    bound: float
    kind: str


class Bounds:
    """The bounds of one run. `known` is what an earlier process has seen: steps and largest norm, by group."""

    def __init__(self, known: Mapping[str, tuple[int, float]]) -> None:
        self._seen = {group: list(pair) for group, pair in known.items()}
        self._watched: Sequence[Watched] = ()
        self._limits = self._seen_bounds = self._powers = np.zeros(0)
        self._factors = self._unseen = np.zeros(0)
        self._partners = np.zeros(0, np.int64)
        self._members: dict[str, npt.NDArray[np.int64]] = {}
        self._keys: set[str] | None = None
        """All that have been watched in this process; None before the first look."""
        self._fresh: set[str] = set()
        """Those that have come later, and have had no value other than zero yet: the first one counts as seen, whatever it is."""

    def state(self) -> dict[str, tuple[int, float]]:
        """Return the number of steps and the largest norm seen, by group."""
        return {group: (int(steps), largest) for group, (steps, largest) in sorted(self._seen.items())}

    def set_state(self, state: Mapping[str, tuple[int, float]]) -> None:
        """Set what `state` returned."""
        self._seen = {group: list(pair) for group, pair in state.items()}
        self._refresh()

    def begin(self, watched: Sequence[Watched], norms: Floats) -> None:
        """Take the norms [variable] that are there before the first step for sound."""
        self._begin(watched)
        for group, members in self._members.items():
            known = self._seen.setdefault(group, [0, 0.0])
            known[1] = max(known[1], float(norms[members].max()))
        self._refresh()

    def judge(self, watched: Sequence[Watched], norms: Floats) -> list[Excess]:
        """Return which norms [variable] are above their bounds, the worst first. If none is, they count as seen."""
        if watched is not self._watched:
            self._begin(watched)
        limits = self._limits
        if self._factors.size:
            # Of a partner that is no number nothing follows: it has an alarm of its own, and fmin takes the other bound.
            limits = np.fmin(limits, self._factors * np.sqrt(norms[self._partners] + self._unseen))
        bounds = np.minimum(limits, self._seen_bounds)
        is_sound = norms <= bounds  # false for what is no number
        if is_sound.all():
            self._learn(norms)
            return []
        found = [
            Excess(each.key, each.group, float(norms[i]), float(bounds[i]), self._kind(each, norms[i], limits[i], bounds[i]))
            for i, each in enumerate(watched)
            if not is_sound[i]
        ]
        return sorted(found, key=lambda excess: -excess.norm / excess.bound if np.isfinite(excess.norm) else -np.inf)

    def admit(self, excesses: Sequence[Excess]) -> None:
        """Take norms for sound after all."""
        for excess in excesses:
            if np.isfinite(excess.norm):
                known = self._seen.setdefault(excess.group, [WINDOW, 0.0])
                known[1] = max(known[1], excess.norm)
        self._refresh()

    def _kind(self, of: Watched, norm: float, limit: float, bound: float) -> str:
        if not np.isfinite(norm):
            return "not finite"
        if limit <= bound:
            return "derived"
        return "seen" if of.key not in self._fresh and self._seen.get(of.group, [0])[0] >= WINDOW else "assumed"

    def _begin(self, watched: Sequence[Watched]) -> None:
        self._watched = watched
        places = {each.key: place for place, each in enumerate(watched)}
        self._limits = np.array([min(each.limit, _NONE) for each in watched], np.float64)
        self._powers = np.array([each.power for each in watched], np.float64)
        has_partners = any(each.partner for each in watched)
        self._partners = np.array(
            [places.get(each.partner, place) for place, each in enumerate(watched)] if has_partners else [], np.int64
        )
        factors = [each.factor if each.partner else np.inf for each in watched]
        self._factors = np.array(factors if has_partners else [], np.float64)
        self._unseen = np.array([each.unseen or 1.0 for each in watched] if has_partners else [], np.float64)
        groups: dict[str, list[int]] = {}
        for place, each in enumerate(watched):
            groups.setdefault(each.group, []).append(place)
        self._members = {group: np.array(members) for group, members in groups.items()}
        keys = {each.key for each in watched}
        if self._keys is not None:  # what a second model has may be of another size than all that was seen
            self._fresh |= keys - self._keys
        self._keys = keys | (self._keys or set())
        self._refresh()

    def _learn(self, norms: Floats) -> None:
        is_new = bool(self._fresh)
        if self._fresh:
            self._fresh -= {each.key for each, norm in zip(self._watched, norms, strict=True) if norm > 0}
        for group, members in self._members.items():
            known = self._seen.setdefault(group, [0, 0.0])
            largest = float(norms[members].max())
            if known[0] < WINDOW:
                known[0] += largest > 0
                is_new = True
            if largest > known[1]:
                known[1] = largest
                is_new = True
        if is_new:
            self._refresh()

    def _refresh(self) -> None:
        """Compute the bounds from what has been seen."""
        is_fresh = np.array([each.key in self._fresh for each in self._watched], bool)
        self._seen_bounds = np.full(len(self._watched), _NONE)
        for group, members in self._members.items():
            steps, largest = self._seen.get(group, (0, 0.0))
            powers = self._powers[members]
            usual = MARGIN**powers * np.maximum(largest, _FLOOR**powers)
            has_bound = ~is_fresh[members] & (steps >= WINDOW)
            self._seen_bounds[members] = np.minimum(np.where(has_bound, usual, np.maximum(usual, ASSUMED**powers)), _NONE)
