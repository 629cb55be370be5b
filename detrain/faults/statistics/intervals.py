"""Intervals of shares of trials that all count the same, and the libraries that campaigns compute with: an extra,
because trials do not need them.
"""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any, Literal

from detrain.base.errors import UsageError

Interval = tuple[float, float]
CONFIDENCE = 0.95


def library(name: str) -> Any:
    """Return a module of an extra of detrain's. Raises UsageError where it is not installed."""
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
    least as often as it says. Without a trial it is all from 0 to 1.

    Counts need not be whole: an effective number of trials is none.
    """
    if total <= 0:
        return 0.0, 1.0
    low, high = library("statsmodels.stats.proportion").proportion_confint(count, total, 1 - confidence, method)
    return max(float(low), 0.0), min(float(high), 1.0)


def wilson(count: int, total: int, z: float = 1.959963984540054) -> tuple[float, float]:
    """Return the Wilson score interval (95 %) of a share, from 0 to 1.

    Wilson 1927, the equation in the text; Brown et al. 2001, equation 4.
    """
    share = count / total
    middle = share + z * z / (2 * total)
    spread = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    scale = 1 + z * z / total
    return max((middle - spread) / scale, 0.0), min((middle + spread) / scale, 1.0)
