"""Estimates of shares in a population whose strata were drawn from unequally: the numbers of trials, in all and by
stratum, the estimate, and its interval. The comparison of two campaigns on the same plan, trial by trial. The time
until a fault is seen, if some trials end before it is (Kaplan and Meier 1958).

Each trial stands for W / n of the population: the share of its stratum over the number of its trials. The share of an
event in a part of the population (a layer, say) is a ratio of two such sums; its variance is that of the linearised
ratio, by strata (Cochran 1977, 6.13). The interval is that of Korn and Graubard (1998): Clopper and Pearson's, at the
number of equal trials that would have this variance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from detrain.base.errors import UsageError
from detrain.faults.statistics.intervals import CONFIDENCE, Interval, library, share_interval, wilson

ENOUGH: Final = 30
"""Trials of unequal weight must be worth this many equal ones, or there is no estimate."""
_ALIKE: Final = 1e-9


class Estimate(msgspec.Struct, frozen=True):
    """The share of an event in a part of the population."""

    share: float | None
    """None: there are too few trials to tell."""
    low: float
    high: float
    count: int
    """Trials with the event."""
    trials: int
    """Trials in the part."""
    effective: float
    """The number of trials of equal weight that would be as sure."""
    covered: float
    """Share of the population whose strata have trials. The estimate covers these alone."""


class Sample(msgspec.Struct, frozen=True, dict=True):
    """The trials of a campaign. Arrays [trials]."""

    weights: NDArray[np.float64]
    """Each trial's probability in the population over that in the drawing."""
    strata: NDArray[Any]
    """Name of each trial's stratum."""
    shares: Mapping[str, float] | None = None
    """The strata's shares of the population; None: the weights give them."""

    @cached_property
    def _owners(self) -> tuple[NDArray[Any], NDArray[np.intp], NDArray[np.intp]]:
        """The names of the strata, the number of each trial's stratum, and the number of trials in each."""
        names, owner = np.unique(self.strata, return_inverse=True)
        return names, owner, np.bincount(owner, minlength=len(names))

    def estimate(self, event: NDArray[np.bool_], part: NDArray[np.bool_] | None = None, confidence: float = CONFIDENCE) -> Estimate:
        """Return the share of an event [trials] in a part [trials] of the population; None: in all of it."""
        inside = np.ones(event.shape, bool) if part is None else part
        names, owner, sizes = self._owners
        covered = 1.0
        weights = self.weights
        if self.shares is not None and len(names):
            of_strata = np.array([self.shares.get(str(name), 0.0) for name in names])
            weights = (of_strata / sizes)[owner]
            covered = float(of_strata.sum() / sum(self.shares.values()))
        within, happened = np.where(inside, weights, 0.0), event & inside
        count, trials, total = int(happened.sum()), int(inside.sum()), float(within.sum())
        if not trials or not total > 0:
            return Estimate(None, 0.0, 1.0, 0, trials, 0.0, covered)
        share = float(min(within[happened].sum() / total, 1.0))
        kish = total**2 / float(np.square(within).sum())
        is_alike = float(within[inside].max() - within[inside].min()) <= _ALIKE * float(within.max())
        if not is_alike and kish < ENOUGH:
            return Estimate(None, 0.0, 1.0, count, trials, kish, covered)
        if is_alike and len(np.unique(owner[inside])) == 1:
            low, high = share_interval(count, trials, confidence)
            return Estimate(share, low, high, count, trials, float(trials), covered)
        effective = self._effective(happened, within, share, owner, sizes) if 0 < share < 1 else None
        effective = kish if effective is None else effective
        if min(count, trials - count) < ENOUGH:  # strata without a seen event have no variance, and may have the event
            effective = min(effective, float(trials))
        low, high = share_interval(share * effective, effective, confidence, "beta")
        return Estimate(share, low, high, count, trials, effective, covered)

    def _effective(
        self,
        happened: NDArray[np.bool_],
        within: NDArray[np.float64],
        share: float,
        owner: NDArray[np.intp],
        sizes: NDArray[np.intp],
    ) -> float | None:
        """Return the number of equal trials with the variance of this estimate; None if no variance was seen."""
        alone = sizes == 1  # one trial shows no variance: such strata are taken together
        if alone.any():
            owner = np.where(alone[owner], len(sizes), owner)
            sizes = np.bincount(owner, minlength=len(sizes) + 1)
        part = within * (happened - share) / within.sum()
        sums, squares = (np.bincount(owner, values, minlength=len(sizes)) for values in (part, part * part))
        several = sizes > 1
        count = sizes[several]
        variance = float((count / (count - 1) * (squares[several] - sums[several] ** 2 / count)).sum())
        if variance <= 0:
            return None
        trials = len(owner)
        freedom = max(trials - int((sizes > 0).sum()), 1)
        stats = library("scipy.stats")
        wider = stats.t.ppf(0.975, max(trials - 1, 1)) / stats.t.ppf(0.975, freedom)
        return float(share * (1 - share) / variance * wider**2)


def trials_for(half_width: float, confidence: float = CONFIDENCE) -> int:
    """Return how many trials give any share an interval of a half width (both as fractions). Raises UsageError."""
    if not (0 < half_width < 1 and 0 < confidence < 1):
        raise UsageError(f"a half width of {half_width}, at a confidence of {confidence}", "give fractions in (0, 1)")
    needed = float(library("statsmodels.stats.proportion").samplesize_confint_proportion(0.5, half_width, 1 - confidence, "normal"))
    return max(math.ceil(needed - 1e-9), 1)


def neyman(shares: Mapping[str, float], pilot: Mapping[str, tuple[int, int]]) -> dict[str, float]:
    """Return the shares of trials with the least variance (Neyman 1934): W √(p (1 − p)), together 1.

    `pilot`: by stratum, the number of trials with the event, and of all. A share is guessed as (k + 1) / (n + 2), so
    that a stratum without any event is not left out.
    """
    parts = {}
    for name, share in shares.items():
        count, total = pilot.get(name, (0, 0))
        guess = (count + 1) / (total + 2)
        parts[name] = share * math.sqrt(guess * (1 - guess))
    whole = math.fsum(parts.values())
    return {name: part / whole for name, part in parts.items()}


class Latency(msgspec.Struct, frozen=True):
    """The times after which faults are seen."""

    steps: tuple[int, ...]
    """Steps, including the faulty one, after which some faults were seen."""
    seen: tuple[float, ...]
    """Share of faults seen by then."""
    errors: tuple[float, ...]
    """Standard errors of these shares (Greenwood)."""
    median: float | None
    """Steps after which half of the faults are seen; None: more than half are not seen by the end."""
    median_interval: Interval | None


def latency(steps: NDArray[np.int64], is_seen: NDArray[np.bool_], confidence: float = CONFIDENCE) -> Latency:
    """Return when faults are seen: `steps` [trials] until each was, or, if it was not, until its trial ended."""
    if not len(steps) or not is_seen.any():
        return Latency((), (), (), None, None)
    curve = library("statsmodels.duration.survfunc").SurvfuncRight(steps.astype(np.float64), is_seen.astype(np.int64))
    median = float(curve.quantile(0.5))
    bounds = curve.quantile_ci(0.5, alpha=1 - confidence) if np.isfinite(median) else None
    return Latency(
        tuple(int(each) for each in curve.surv_times),
        tuple(float(1 - each) for each in curve.surv_prob),
        tuple(float(each) for each in curve.surv_prob_se),
        median if np.isfinite(median) else None,
        (float(bounds[0]), float(bounds[1])) if bounds is not None else None,
    )


class ShareDifference(msgspec.Struct, frozen=True):
    """The difference in the share of an event: the first campaign's less the second's."""

    difference: float
    interval: Interval
    p_value: float
    """The p-value for no difference."""
    both: int
    """Trials that have the event in both campaigns."""
    first_only: int
    second_only: int
    trials: int


def paired(first: NDArray[np.bool_], second: NDArray[np.bool_], confidence: float = CONFIDENCE) -> ShareDifference:
    """Compare trials of two campaigns with the same numbers of one plan: McNemar's exact test, Newcombe's interval.

    Newcombe 1998 (Statistics in Medicine 17, 2635), method 10: the Wilson limits of both shares, combined with their
    correlation.
    """
    total = len(first)
    if not total:
        return ShareDifference(0.0, (-1.0, 1.0), 1.0, 0, 0, 0, 0)
    a, b, c, d = (int((first == one).__and__(second == other).sum()) for one in (True, False) for other in (True, False))
    test = library("statsmodels.stats.contingency_tables").mcnemar([[a, b], [c, d]], exact=True)
    return ShareDifference((b - c) / total, newcombe(a, b, c, d, confidence), float(test.pvalue), a, b, c, total)


def newcombe(a: int, b: int, c: int, d: int, confidence: float = CONFIDENCE) -> Interval:
    """Return the interval of (b - c) / n of pairs: a have the event in both, b and c in one alone, d in neither."""
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
