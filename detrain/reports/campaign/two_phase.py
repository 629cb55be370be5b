"""Estimates for the horizon of a campaign of two phases, to which only some of its trials were run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from detrain.base.errors import CampaignStopped
from detrain.faults.outcome_classes import Outcome
from detrain.faults.population.facts import Facts
from detrain.faults.population.stopping import ENDED, classes_of
from detrain.faults.population.trial_row import TrialRow
from detrain.faults.statistics.two_phase import TwoPhaseShare, estimate_weighted

_FACTS = tuple(field.name for field in msgspec.structs.fields(Facts))


class Later(msgspec.Struct, frozen=True, kw_only=True):
    """Estimates at the horizon."""

    first_steps: int
    horizon: int | None
    """Steps of a trial; None: to the program's end."""
    first: int
    """Trials of the first phase; those that ended in it keep their outcome."""
    second: int
    """Trials that were to run on."""
    missing: int
    """How many of these have not run yet; if there are any, nothing is estimated."""
    classes: dict[str, tuple[int, int]]
    """For each class of distance from the golden run: all trials, and those with a known result at the horizon."""
    masked: TwoPhaseShare | None
    outcomes: dict[str, TwoPhaseShare]
    seconds: tuple[float, float]
    """Total time of the trials of each phase."""


def later_of(
    rows: Sequence[TrialRow],
    later: Sequence[TrialRow],
    chosen: Sequence[int],
    strata: Mapping[str, float],
    *,
    steps: tuple[int, int | None],
    unfired: int,
    confidence: float,
) -> Later:
    """Return the estimates from the rows of both phases.

    `chosen`: numbers of the trials that run on; `unfired`: how many of them had no fault. Raises CampaignStopped if
    two rows of a number are of different faults.
    """
    classes = classes_of(rows)
    first = [row for row in rows if row.number in classes]
    wanted = set(chosen)
    by_number = {row.number: row for row in later if row.number in wanted}
    for row in first:
        other = by_number.get(row.number, row)
        differing = [name for name in _FACTS if getattr(row, name) != getattr(other, name)]
        if differing:
            raise CampaignStopped(
                f"trial {row.number} is another fault in its second phase: {', '.join(differing)}", "plan it under another --name"
            )
    known = {row.number: row for row in first if classes[row.number] == ENDED} | by_number
    names = np.array([classes[row.number] for row in first])
    ran = np.array([row.number in known for row in first], bool)
    of_strata = np.array([row.stratum for row in first])
    sizes = {name: int((of_strata == name).sum()) for name in set(of_strata.tolist())}
    weights = np.array([strata.get(row.stratum, 0.0) / sizes[row.stratum] if strata else row.weight for row in first])
    outcomes = np.array([known[row.number].outcome if row.number in known else "" for row in first])
    missing = len(chosen) - len(by_number) - unfired
    found = {
        name: each
        for name in sorted(set(outcomes[ran].tolist()))
        if not missing and (each := estimate_weighted(names, weights, ran, outcomes == name, confidence)) is not None
    }
    return Later(
        first_steps=steps[0],
        horizon=steps[1],
        first=len(first),
        second=len(chosen),
        missing=missing,
        classes={name: (int((names == name).sum()), int(((names == name) & ran).sum())) for name in sorted(set(names.tolist()))},
        masked=None if missing else estimate_weighted(names, weights, ran, outcomes == Outcome.MASKED.value, confidence),
        outcomes=found,
        seconds=(sum(row.seconds for row in rows), sum(row.seconds for row in by_number.values())),
    )
