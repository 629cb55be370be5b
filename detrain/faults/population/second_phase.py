"""Which trials of a campaign of two phases are run on to the horizon: by the rows of the first phase alone."""

from __future__ import annotations

import collections
from collections.abc import Iterable

from detrain.faults.outcome_classes import Verdict, verdict_of
from detrain.faults.population.trial_row import OUTSIDE, TrialRow
from detrain.faults.statistics.two_phase import chosen, run_on

ENDED = "ended"
"""The class of trials that ended by themselves in the first phase: run on, they would be the same."""
_EQUAL = "all variables equal"
_NO_LOSS = "no loss"
_SAME_LOSS = "loss equal"
_LOSSES = (1e-6, 1e-4, 1e-2, 1.0)


def class_of(row: TrialRow) -> str:
    """Return how far a trial has gone from the golden run at the end of the first phase."""
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
    """Return the class of each trial, by its number; those that are no trials (addresses outside) have none."""
    return {row.number: class_of(row) for row in rows if row.outcome != OUTSIDE}


def second_phase(rows: Iterable[TrialRow], trials: int, seed: int) -> list[int]:
    """Return the numbers of the trials that are run on, so many if there are, in order.

    They are shared out among the classes so that the share of harmful trials is known best, as far as the
    first phase can tell it.
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
