"""How long until a fault is seen, where some trials end before it is (Kaplan and Meier 1958)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detrain.faults.statistics.intervals import CONFIDENCE, Interval, library


@dataclass(frozen=True, slots=True)
class Latency:
    """When faults are seen."""

    steps: tuple[int, ...]
    """Steps, the faulty one counted, after which some were seen."""
    seen: tuple[float, ...]
    """Share that is seen by then."""
    errors: tuple[float, ...]
    """Standard errors of that (Greenwood)."""
    median: float | None
    """Steps after which half are seen; None: more than half are not seen by the end."""
    median_interval: Interval | None


def latency(steps: NDArray[np.int64], is_seen: NDArray[np.bool_], confidence: float = CONFIDENCE) -> Latency:
    """Return when faults are seen: `steps` [trials] until each was, or, where it was not, until its trial ended."""
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
