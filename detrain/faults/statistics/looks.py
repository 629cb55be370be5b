"""Looking at a campaign before its end, without being wrong more often for that.

A 95 % interval looked at after each trial leaves out the truth at some time in 42 of 100 campaigns. So looks are
planned, and share the error out: after N/128, N/64, … N trials, each with as much of it as the trials that it adds. By
the union bound all intervals together hold as often as is said, whatever the share is, and whenever one stops.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from detrain.faults.statistics.intervals import CONFIDENCE, Interval

_HALVINGS: Final = 7
_FIRST: Final = 30
"""Before so many trials no look is of use."""


@dataclass(frozen=True, slots=True)
class Looks:
    """The planned looks at a campaign of `trials`."""

    trials: int
    confidence: float = CONFIDENCE
    cells: int = 1
    """Shares that are looked at, any of which may end the campaign: they share the error, too."""

    @property
    def at(self) -> tuple[int, ...]:
        """After how many trials one looks, in order; the last is the end."""
        places = {math.ceil(self.trials / 2**each) for each in range(_HALVINGS + 1)}
        return tuple(sorted(each for each in places if each >= _FIRST or each == self.trials))

    def error(self, trials: int) -> float:
        """Return the error that the look after so many trials may make. Raises ValueError if it is none."""
        number = self.at.index(trials)
        before = self.at[number - 1] if number else 0
        return (1 - self.confidence) / self.cells * (trials - before) / self.trials

    def has_reached(self, interval: Interval, half_width: float) -> bool:
        """Return whether an interval is narrow enough to stop."""
        low, high = interval
        return (high - low) / 2 <= half_width
