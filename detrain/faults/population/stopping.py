"""Decisions about the rest of a campaign, from its rows: whether a planned look may end it, how a pilot shares out its
trials, and which trials of a campaign of two phases run on to the horizon.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
import numpy as np

from detrain.faults.outcome_classes import Verdict, verdict_of
from detrain.faults.population.trial_row import OUTSIDE, TrialRow
from detrain.faults.statistics.estimates import Sample, neyman
from detrain.faults.statistics.intervals import Interval, Looks
from detrain.faults.statistics.two_phase import chosen, run_on

Event = Callable[[TrialRow], bool]
"""Returns whether a trial has the event whose share is estimated."""

ENDED = "ended"
"""The class of trials that ended by themselves in the first phase: if run on, they would stay the same."""
_EQUAL = "all variables equal"
_NO_LOSS = "no loss"
_SAME_LOSS = "loss equal"
_LOSSES = (1e-6, 1e-4, 1e-2, 1.0)


class Look(msgspec.Struct, frozen=True):
    """The result of one planned look."""

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
    """Return the last planned look that can be taken: all trials before it are done.

    `unfired`: numbers of trials without an outcome, and without a row. `strata`: their shares of the population. None
    before the first look. Trials behind the look are left out, so that the speed of workers does not matter.
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
    """Return the best shares of a campaign's trials by stratum, from the rows of a pilot."""
    counts: dict[str, tuple[int, int]] = {}
    for row in rows:
        count, total = counts.get(row.stratum, (0, 0))
        counts[row.stratum] = count + event(row), total + 1
    return neyman(strata, counts)


def class_of(row: TrialRow) -> str:
    """Return the class of a trial: its distance from the golden run at the end of the first phase."""
    if row.end != "until":
        return ENDED
    if row.is_equal:
        return _EQUAL
    if row.loss is None or row.golden_loss is None:
        return _NO_LOSS
    if row.loss == row.golden_loss:
        return _SAME_LOSS
    size = abs(row.loss - row.golden_loss) / max(abs(row.golden_loss), 1e-30)
    bound = next((bound for bound in _LOSSES if size < bound), None)
    return f"loss {_LOSSES[-1]:g} or more" if bound is None else f"loss by less than {bound:g}"


def classes_of(rows: Iterable[TrialRow]) -> dict[int, str]:
    """Return the class of each trial, by its number; addresses outside are no trials, and have none."""
    return {row.number: class_of(row) for row in rows if row.outcome != OUTSIDE}


def second_phase(rows: Iterable[TrialRow], trials: int, seed: int) -> list[int]:
    """Return the numbers of the trials that are run on, in order; `trials` of them, if there are so many.

    The classes share them so that the share of harmful trials is known best, as far as the first phase can tell.
    """
    rows = list(rows)
    classes = classes_of(rows)
    members = collections.defaultdict(list)
    for number, name in classes.items():
        members[name].append(number)
    harmful = collections.Counter(
        classes[row.number] for row in rows if row.number in classes and verdict_of(row.outcome) is Verdict.HARMFUL
    )
    members.pop(ENDED, None)
    counts = {name: len(numbers) for name, numbers in sorted(members.items())}
    guesses = {name: (harmful[name] + 1) / (count + 2) for name, count in counts.items()}
    wanted = run_on(counts, guesses, trials)
    return sorted(number for name, count in wanted.items() for number in chosen(members[name], count, seed))
