"""What rows of a campaign say about the rest of it: whether a planned look may end it, how a pilot shares it out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from detrain.faults.population.trial_row import TrialRow
from detrain.faults.statistics.allocation import neyman
from detrain.faults.statistics.estimates import Sample
from detrain.faults.statistics.intervals import Interval
from detrain.faults.statistics.looks import Looks

Event = Callable[[TrialRow], bool]
"""Whether a trial has the event whose share is estimated."""


@dataclass(frozen=True, slots=True)
class Look:
    """What one planned look has found."""

    trials: int
    share: float | None
    interval: Interval
    may_stop: bool


def last_look(
    rows: Sequence[TrialRow],
    unfired: Sequence[int],
    looks: Looks,
    event: Event,
    half_width: float,
    strata: Mapping[str, float] | None = None,
) -> Look | None:
    """Return the last planned look that can be taken: all trials before it are done, whichever are done behind it.

    `unfired`: numbers of trials that have no outcome, and no row. `strata`: their shares of the population. None before
    the first look. Trials behind the look are left out, so that it does not matter who was quick.
    """
    done = {row.number for row in rows} | set(unfired)
    first_missing = next((number for number in range(looks.trials) if number not in done), looks.trials)
    reached = [at for at in looks.at if at <= first_missing]
    if not reached:
        return None
    at = reached[-1]
    before = [row for row in rows if row.number < at]
    sample = Sample(np.array([row.weight for row in before]), np.array([row.stratum for row in before]), strata)
    found = sample.estimate(np.array([event(row) for row in before], bool), None, 1 - looks.error(at))
    interval = found.low, found.high
    return Look(at, found.share, interval, found.share is not None and looks.has_reached(interval, half_width))


def shares_by_pilot(strata: Mapping[str, float], rows: Sequence[TrialRow], event: Event) -> dict[str, float]:
    """Return how the trials of a campaign are best shared out among strata, by the rows of a pilot."""
    counts: dict[str, tuple[int, int]] = {}
    for row in rows:
        count, total = counts.get(row.stratum, (0, 0))
        counts[row.stratum] = count + event(row), total + 1
    return neyman(strata, counts)
