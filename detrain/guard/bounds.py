"""Bounds on the norms of a training's variables and gradients: from theory if it has one, else from the norms so far.

If a transient fault in an accelerator matters, it leaves values that are too large by many orders of magnitude, or NaN.
So a bound may be wide. The derivations and their assumptions are in docs/explanation/guard.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from detrain.adapters.api import Watched

MARGIN: Final = 1000.0
"""A norm may be this many times larger than the largest seen in its group (for squares, the square of this)."""
WINDOW: Final = 8
"""Number of steps with nonzero values in a group before the largest norm seen becomes its bound."""
ASSUMED: Final = 1e12
"""The bound on norms in a group's first steps (for squares, its square), unless norms seen before give a wider one."""
_MOST_WAITING: Final = 64
"""Steps with usual norms count as seen so many at a time, as code that runs behind each step finds cold caches."""
_FLOOR: Final = 1e-6
"""Smaller norms count as this large: the first update of values close to zero is no fault."""
_NONE: Final = float(np.finfo(np.float64).max)
"""Stands for no bound: only infinity and NaN exceed it."""

Floats = npt.NDArray[np.float64]
Seen = Mapping[str, tuple[int, float]]
"""The number of steps and the largest norm, by group."""
Mark = tuple[Seen, tuple[Floats, ...]]


class Excess(msgspec.Struct, frozen=True):
    """A norm above its bound. `kind` is `derived`, `seen`, `assumed` (in the first steps) or `not finite`."""

    key: str
    group: str
    norm: float
    bound: float
    kind: str


class Bounds:
    """The bounds of one run. `known`: the steps and largest norms that an earlier process has seen."""

    def __init__(self, known: Seen) -> None:
        self._seen = known
        self._waiting: list[Floats] = []
        """Norms of the last steps: they are within their bounds, and do not count as seen yet."""
        self._is_steady = False
        """Whether all groups have a bound from norms that were seen."""
        self._watched: Sequence[Watched] = ()
        self._limits = self._seen_bounds = self._usual = self._powers = np.zeros(0)
        self._factors = self._unseen = np.zeros(0)
        self._paired = self._partners = np.zeros(0, np.int64)
        self._members: dict[str, npt.NDArray[np.int64]] = {}
        self._keys: set[str] | None = None
        """Keys of all variables that were watched in this process; None before the first look."""
        self._fresh: set[str] = set()
        """Keys of variables that came later and have been zero so far: their first nonzero norm counts as seen, up to
        `ASSUMED`."""

    def state(self) -> dict[str, tuple[int, float]]:
        """Return the number of steps and the largest norm seen, by group."""
        self._count_waiting()
        return dict(sorted(self._seen.items()))

    def set_state(self, state: Seen) -> None:
        """Restore the value that `state` returned."""
        self.go_back((dict(state), ()))

    def mark(self) -> Mark:
        """Return the steps and norms seen until now, to go back to."""
        return self._seen, tuple(self._waiting)

    def go_back(self, mark: Mark) -> None:
        """Forget the steps and norms seen since a mark."""
        # The watched variables may have changed since: drop norms of another set of them.
        self._seen, self._waiting = mark[0], [norms for norms in mark[1] if len(norms) == len(self._watched)]
        self._refresh()

    def begin(self, watched: Sequence[Watched], norms: Floats) -> None:
        """Accept the norms [variable] before the first step as sound."""
        self._count_waiting()
        self._begin(watched)
        for group, members in self._members.items():
            self._note(group, float(norms[members].max()), 0)
        self._refresh()

    def judge(self, watched: Sequence[Watched], norms: Floats) -> list[Excess]:
        """Return the norms [variable] above their bounds, the worst first. If none is, all norms count as seen."""
        if watched is self._watched and self._is_steady and self._is_usual(norms):
            self._waiting.append(norms)
            if len(self._waiting) == _MOST_WAITING:
                self._count_waiting()
            return []
        self._count_waiting()
        if watched is not self._watched:
            self._begin(watched)
        limits = self._limits.copy()
        # A partner that is NaN bounds nothing: it has an alarm of its own, and fmin takes the other bound.
        limits[self._paired] = np.fmin(limits[self._paired], self._of_partners(norms))
        bounds = np.minimum(limits, self._seen_bounds)
        is_sound = norms <= bounds  # False for NaN
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
        """Accept excessive norms as sound after all, but for infinity and NaN."""
        for excess in excesses:
            if np.isfinite(excess.norm):
                self._note(excess.group, excess.norm, WINDOW)
        self._refresh()

    def _is_usual(self, norms: Floats) -> bool:
        """Return whether all norms are within the usual bounds, which are at least as strict as the exact ones."""
        is_within = (norms <= self._usual).all()
        return bool(is_within and (norms[self._paired] <= self._of_partners(norms)).all())

    def _of_partners(self, norms: Floats) -> Floats:
        """Return the bounds on the norms of variables that have a partner."""
        bounds: Floats = self._factors * np.sqrt(norms[self._partners] + self._unseen)
        return bounds

    def _note(self, group: str, largest: float, steps: int) -> None:
        """Note a norm, and `steps` if the group is new. Marks that `mark` has returned do not change."""
        known = self._seen.get(group, (steps, 0.0))
        self._seen = {**self._seen, group: (known[0], max(known[1], largest))}

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
        paired = [(place, each) for place, each in enumerate(watched) if each.partner in places]
        self._paired = np.array([place for place, _each in paired], np.int64)
        self._partners = np.array([places[each.partner] for _place, each in paired], np.int64)
        self._factors = np.array([each.factor for _place, each in paired], np.float64)
        self._unseen = np.array([each.unseen for _place, each in paired], np.float64)
        groups: dict[str, list[int]] = {}
        for place, each in enumerate(watched):
            groups.setdefault(each.group, []).append(place)
        self._members = {group: np.array(members) for group, members in groups.items()}
        keys = {each.key for each in watched}
        if self._keys is not None:  # a second model's norms may be of another size than all norms seen
            self._fresh |= keys - self._keys
        self._keys = keys | (self._keys or set())
        self._refresh()

    def _count_waiting(self) -> None:
        """Count the waiting norms as seen."""
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._learn(np.max(waiting, axis=0))

    def _learn(self, norms: Floats) -> None:
        is_new = bool(self._fresh)
        if self._fresh:
            self._fresh -= {each.key for each, norm in zip(self._watched, norms, strict=True) if norm > 0}
        for group, members in self._members.items():
            steps, known = self._seen.get(group, (0, 0.0))
            largest = float(norms[members].max())
            if steps < WINDOW or largest > known:
                self._seen = {**self._seen, group: (steps + (largest > 0 and steps < WINDOW), max(largest, known))}
                is_new = True
        if is_new:
            self._refresh()

    def _refresh(self) -> None:
        """Compute the bounds from the norms seen."""
        is_fresh = np.array([each.key in self._fresh for each in self._watched], bool)
        self._seen_bounds = np.full(len(self._watched), _NONE)
        for group, members in self._members.items():
            steps, largest = self._seen.get(group, (0, 0.0))
            powers = self._powers[members]
            usual = MARGIN**powers * np.maximum(largest, _FLOOR**powers)
            has_bound = ~is_fresh[members] & (steps >= WINDOW)
            self._seen_bounds[members] = np.minimum(np.where(has_bound, usual, np.maximum(usual, ASSUMED**powers)), _NONE)
        self._usual = np.minimum(self._limits, self._seen_bounds)
        self._is_steady = not self._fresh and all(self._seen.get(group, (0, 0.0))[0] >= WINDOW for group in self._members)
