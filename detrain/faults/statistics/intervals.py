"""Intervals of shares of trials with equal weights; looks at a campaign before its end that do not make it wrong more
often; and the libraries that campaigns compute with: an extra, because trials do not need them.

A 95 % interval that is read after each trial misses the truth at some time in 42 of 100 campaigns. So looks are
planned, and share the error: after N/128, N/64, … N trials, each with a part in proportion to the trials that it adds.
By the union bound all intervals together hold with the stated confidence, for any share, and at any stop.
"""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any, Final, Literal

import msgspec

from detrain.base.errors import UsageError

Interval = tuple[float, float]
CONFIDENCE = 0.95

_HALVINGS: Final = 7
_FIRST: Final = 30
"""No look is of use before this many trials."""


def library(name: str) -> Any:
    """Return a module of one of detrain's extras. Raises UsageError if it is not installed."""
    try:
        return import_module(name)
    except ImportError as error:
        raise UsageError(
            f"estimates and reports of campaigns need {name.partition('.')[0]}: {error}", "install detrain[campaign]"
        ) from error


def share_interval(
    count: float, total: float, confidence: float = CONFIDENCE, method: Literal["wilson", "beta"] = "wilson"
) -> Interval:
    """Return the interval of a share: Wilson's score interval, or (`beta`) that of Clopper and Pearson, which covers at
    least as often as it claims. Without trials it goes from 0 to 1.

    Counts need not be whole numbers: an effective number of trials is not.
    """
    if total <= 0:
        return 0.0, 1.0
    low, high = library("statsmodels.stats.proportion").proportion_confint(count, total, 1 - confidence, method)
    return max(float(low), 0.0), min(float(high), 1.0)


def wilson(count: int, total: int, z: float = 1.959963984540054) -> tuple[float, float]:
    """Return the Wilson score interval (95 % at the default z) of a share, from 0 to 1.

    Wilson 1927, the equation in the text; Brown et al. 2001, equation 4.
    """
    share = count / total
    middle = share + z * z / (2 * total)
    spread = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    scale = 1 + z * z / total
    return max((middle - spread) / scale, 0.0), min((middle + spread) / scale, 1.0)


class Looks(msgspec.Struct, frozen=True):
    """The planned looks at a campaign of `trials`."""

    trials: int
    confidence: float = CONFIDENCE
    cells: int = 1
    """Number of shares that are looked at, any of which may end the campaign: they share the error, too."""

    @property
    def at(self) -> tuple[int, ...]:
        """The numbers of trials after which one looks, in order; the last is the end."""
        places = {math.ceil(self.trials / 2**each) for each in range(_HALVINGS + 1)}
        return tuple(sorted(each for each in places if each >= _FIRST or each == self.trials))

    def error(self, trials: int) -> float:
        """Return the error that the look after `trials` trials may make. Raises ValueError for an unplanned look."""
        number = self.at.index(trials)
        before = self.at[number - 1] if number else 0
        return (1 - self.confidence) / self.cells * (trials - before) / self.trials

    def has_reached(self, interval: Interval, half_width: float) -> bool:
        """Return whether an interval is narrow enough to stop."""
        low, high = interval
        return (high - low) / 2 <= half_width
