"""How many trials, and how many of each stratum."""

from __future__ import annotations

import math
from collections.abc import Mapping

from detrain.base.errors import UsageError
from detrain.faults.statistics.intervals import CONFIDENCE, library


def trials_for(half_width: float, confidence: float = CONFIDENCE, share: float = 0.5, population: float = math.inf) -> int:
    """Return how many trials give a share an interval of a half width (both as fractions); without a guess at the
    share, whatever it is.

    In a finite population fewer do: Leveugle et al., DATE 2009, equation 1. Raises UsageError.
    """
    if not (0 < half_width < 1 and 0 < confidence < 1 and 0 < share < 1):
        raise UsageError(
            f"a half width of {half_width}, at a confidence of {confidence}, of a share of {share}", "give fractions in (0, 1)"
        )
    needed = float(
        library("statsmodels.stats.proportion").samplesize_confint_proportion(share, half_width, 1 - confidence, "normal")
    )
    if math.isfinite(population):
        needed = needed * population / (needed + population - 1)
    return max(math.ceil(needed - 1e-9), 1)


def neyman(shares: Mapping[str, float], pilot: Mapping[str, tuple[int, int]]) -> dict[str, float]:
    """Return the shares of trials by which the variance is least (Neyman 1934): W √(p (1 − p)), together 1.

    `pilot`: by stratum, how many of how many trials had the event. A share is taken for (k + 1) / (n + 2), so that a
    stratum in which nothing was seen is not left out.
    """
    parts = {}
    for name, share in shares.items():
        count, total = pilot.get(name, (0, 0))
        guess = (count + 1) / (total + 2)
        parts[name] = share * math.sqrt(guess * (1 - guess))
    whole = math.fsum(parts.values())
    return {name: part / whole for name, part in parts.items()}
