"""Intervals of shares of trials that all count the same."""

from __future__ import annotations

from typing import Literal

from detrain.faults.statistics.libraries import library

Interval = tuple[float, float]
CONFIDENCE = 0.95


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
