"""Two-phase sampling: many short trials, some of which run on, so that rare and informative trials are many among
these.

The first phase puts each trial into a class by its distance from the golden run after a few steps. The second runs some
trials of each class to the horizon. The estimate weights the classes as the first phase found them, and is unbiased
(Neyman 1938; Cochran 1977, 12.2).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from detrain.faults.statistics.intervals import CONFIDENCE, share_interval

LEAST: Final = 2
"""The fewest trials of a class that are run on: one trial shows no variance."""


class TwoPhaseShare(msgspec.Struct, frozen=True):
    """The share of an event, with its interval."""

    share: float
    low: float
    high: float
    first: int
    """Trials of the first phase."""
    second: int
    effective: float
    """The number of trials, all run to the horizon, that would be as sure."""


def run_on(classes: Mapping[str, int], guesses: Mapping[str, float], trials: int) -> dict[str, int]:
    """Return how many trials of each class to run on, of `trials` in all: Neyman's allocation by guesses at the event's
    share in each; no class gets more than its own trials.

    `classes`: the number of trials of each class in the first phase.
    """
    wanted = {name: count * math.sqrt(max(guesses[name] * (1 - guesses[name]), 0.0025)) for name, count in classes.items()}
    found = {name: min(LEAST, count) for name, count in classes.items()}
    while (left := trials - sum(found.values())) > 0:
        open_ = {name: wanted[name] for name, count in classes.items() if found[name] < count}
        whole = sum(open_.values())
        if not open_ or not whole > 0:
            break
        before = dict(found)
        for name, want in open_.items():
            found[name] = min(found[name] + math.floor(left * want / whole), classes[name])
        if found == before:  # fewer are left than there are classes: they go to the classes that want most
            for name in sorted(open_, key=lambda each: -open_[each])[:left]:
                found[name] += 1
    return found


def chosen(numbers: Sequence[int], count: int, seed: int) -> list[int]:
    """Return `count` of the trials of a class, all equally likely, the same for the same seed; in order.

    Each number has a random word of its own, and the smallest are taken: a larger `count` keeps the same ones.
    """
    words = {number: int(np.random.Philox(key=np.array([seed, number], np.uint64)).random_raw()) for number in numbers}
    return sorted(sorted(numbers, key=lambda number: (words[number], number))[:count])


def estimate_weighted(
    classes: NDArray[Any],
    weights: NDArray[np.float64],
    ran: NDArray[np.bool_],
    event: NDArray[np.bool_],
    confidence: float = CONFIDENCE,
) -> TwoPhaseShare | None:
    """Return the share of an event; None if a class has no trial that was run on.

    Arrays [trials of the first phase]: names of classes, weights, whether a trial was run on, whether it had the event
    (read only if it was run on).

    The variance is that of the first phase, as if all had been run on, plus that of the second, by classes (Cochran
    1977, 12.2). The first phase's is taken without its strata, which would lower it. The interval is Clopper and
    Pearson's at the effective number of trials.
    """
    total = float(weights.sum())
    if not total > 0:
        return None
    parts, share = [], 0.0
    for name in np.unique(classes):
        inside = classes == name
        chosen = inside & ran
        if not chosen.any():
            return None
        own = weights[chosen]
        mean = float(own[event[chosen]].sum() / own.sum())
        share += float(weights[inside].sum()) / total * mean
        parts.append((float(weights[inside].sum()), int(inside.sum()), own, event[chosen], mean))
    share = min(share, 1.0)
    variance = 0.0
    for weight, count, own, happened, mean in parts:
        several = len(own)
        variance += count / several * float((own**2 * (happened - share) ** 2).sum()) / total**2
        if several < count:
            # A class in which all or no trials had the event may still have the other: one half is added to both.
            hits = int(happened.sum())
            guess = mean if 0 < hits < several else (hits + 0.5) / (several + 1)
            unequal = several * float((own**2).sum()) / float(own.sum()) ** 2
            spread = guess * (1 - guess) * several / max(several - 1, 1) * unequal
            variance += (weight / total) ** 2 * spread * (1 / several - 1 / count)
    runs = int(ran.sum())
    effective = share * (1 - share) / variance if 0 < share < 1 and variance > 0 else float(runs)
    low, high = share_interval(share * effective, effective, confidence, "beta")
    return TwoPhaseShare(share, low, high, len(classes), runs, effective)
