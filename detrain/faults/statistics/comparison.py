"""Two campaigns beside one another: on the same plan, trial by trial, or each on its own."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from detrain.faults.statistics.intervals import CONFIDENCE, Interval
from detrain.faults.statistics.libraries import library
from detrain.faults.statistics.wilson import wilson


@dataclass(frozen=True, slots=True)
class Comparison:
    """How the share of an event differs: that of the first less that of the second."""

    difference: float
    interval: Interval
    p_value: float
    """Of no difference."""
    both: int
    """Trials that have the event in both; -1 where they are no pairs."""
    first_only: int
    second_only: int
    trials: int


def paired(first: NDArray[np.bool_], second: NDArray[np.bool_], confidence: float = CONFIDENCE) -> Comparison:
    """Compare trials of the same numbers of one plan [trials]: McNemar's exact test, and Newcombe's interval.

    Newcombe 1998 (Statistics in Medicine 17, 2635), method 10: the Wilson limits of both shares, put together with
    their correlation.
    """
    total = len(first)
    if not total:
        return Comparison(0.0, (-1.0, 1.0), 1.0, 0, 0, 0, 0)
    a, b, c, d = (int((first == one).__and__(second == other).sum()) for one in (True, False) for other in (True, False))
    test = library("statsmodels.stats.contingency_tables").mcnemar([[a, b], [c, d]], exact=True)
    return Comparison((b - c) / total, newcombe(a, b, c, d, confidence), float(test.pvalue), a, b, c, total)


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


def unpaired(first: tuple[int, int], second: tuple[int, int], confidence: float = CONFIDENCE) -> Comparison:
    """Compare two campaigns by (trials with the event, trials): the score interval of the difference of two shares.

    Miettinen and Nurminen 1985 (Statistics in Medicine 4, 213), equation 8. Not statsmodels': that of its version
    0.15.0 is another than the published one.
    """
    (x, n), (y, m) = first, second
    stats, optimize = library("scipy.stats"), library("scipy.optimize")
    z = float(stats.norm.ppf((1 + confidence) / 2))
    difference = x / n - y / m

    def end(sign: int) -> float:
        limit = sign * (1 - _EDGE)
        if abs(score(first, second, limit)) < z or sign * difference > 1 - _EDGE:
            return float(sign)
        return float(optimize.brentq(lambda delta: score(first, second, delta) + sign * z, difference, limit))

    p_value = float(2 * stats.norm.sf(abs(score(first, second, 0.0))))
    return Comparison(difference, (end(-1), end(1)), p_value, -1, x, y, n + m)


_EDGE: Final = 1e-12


def score(first: tuple[int, int], second: tuple[int, int], delta: float) -> float:
    """Return how many standard errors the difference of two shares is from `delta`, by the shares that are likeliest
    with that difference.
    """
    (x, n), (y, m) = first, second
    total, events = n + m, x + y
    # The likeliest share of the second solves a cubic equation: appendix 1 of the publication.
    two = ((n + 2 * m) * delta - total - events) / (3 * total)
    one = ((m * delta - total - 2 * y) * delta + events) / (3 * total)
    none = y * delta * (1 - delta) / (2 * total)
    q = two**3 - 1.5 * one * two + none
    root = math.copysign(math.sqrt(max(two**2 - one, 0.0)), q)
    angle = (math.pi + math.acos(min(max(q / root**3, -1.0), 1.0) if root else 0.0)) / 3
    other = min(max(2 * root * math.cos(angle) - two, 0.0, -delta), 1.0, 1 - delta)
    mine = min(max(other + delta, 0.0), 1.0)
    variance = (mine * (1 - mine) / n + other * (1 - other) / m) * total / (total - 1)
    apart = x / n - y / m - delta
    return apart / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, apart) if abs(apart) > _EDGE else 0.0
