"""Two campaigns beside one another on the same plan, trial by trial."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detrain.faults.statistics.intervals import CONFIDENCE, Interval, library, wilson


@dataclass(frozen=True, slots=True)
class ShareDifference:
    """How the share of an event differs: that of the first less that of the second."""

    difference: float
    interval: Interval
    p_value: float
    """Of no difference."""
    both: int
    """Trials that have the event in both."""
    first_only: int
    second_only: int
    trials: int


def paired(first: NDArray[np.bool_], second: NDArray[np.bool_], confidence: float = CONFIDENCE) -> ShareDifference:
    """Compare trials of the same numbers of one plan [trials]: McNemar's exact test, and Newcombe's interval.

    Newcombe 1998 (Statistics in Medicine 17, 2635), method 10: the Wilson limits of both shares, put together with
    their correlation.
    """
    total = len(first)
    if not total:
        return ShareDifference(0.0, (-1.0, 1.0), 1.0, 0, 0, 0, 0)
    a, b, c, d = (int((first == one).__and__(second == other).sum()) for one in (True, False) for other in (True, False))
    test = library("statsmodels.stats.contingency_tables").mcnemar([[a, b], [c, d]], exact=True)
    return ShareDifference((b - c) / total, newcombe(a, b, c, d, confidence), float(test.pvalue), a, b, c, total)


def newcombe(a: int, b: int, c: int, d: int, confidence: float = CONFIDENCE) -> Interval:
    """Return the interval of (b - c) / n of pairs: a have the event in both, b and c in one alone, d in none."""
    total = a + b + c + d
    z = float(library("scipy.stats").norm.ppf((1 + confidence) / 2))
    one, other = (a + b) / total, (a + c) / total
    (low1, high1), (low2, high2) = (wilson(count, total, z) for count in (a + b, a + c))
    margins = (a + b) * (c + d) * (a + c) * (b + d)
    product = float(a * d - b * c)
    if product > 0:  # a correction for continuity, as the publication has it
        product = max(product - total / 2, 0.0)
    correlation = product / math.sqrt(margins) if margins else 0.0
    down1, up1, down2, up2 = one - low1, high1 - one, other - low2, high2 - other
    below = math.sqrt(max(down1**2 - 2 * correlation * down1 * up2 + up2**2, 0.0))
    above = math.sqrt(max(up1**2 - 2 * correlation * up1 * down2 + down2**2, 0.0))
    return one - other - below, one - other + above
