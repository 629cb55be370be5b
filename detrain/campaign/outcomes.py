"""The outcome of a trial, from the log that its process left: the series to which the outcomes' definitions apply."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

import msgspec
import numpy as np

from detrain.base.cursor import Address
from detrain.base.errors import UsageError
from detrain.campaign.judging.spread import NO_STEP, Spread
from detrain.campaign.trial_log import HANG, TrialResult
from detrain.faults.outcome_classes import USUAL, End, Outcome, Series, Thresholds, classify
from detrain.faults.predictions import Corruptions, corruptions, outcome
from detrain.python.inspect.program_metrics import is_accuracy
from detrain.runtime.observers.experiment_run import StepLine

UNKNOWN = "finite (no accuracy to classify by)"
"""The outcome of a trial whose losses are finite and whose program has no accuracy."""
NO_LOSS = "unclassified (the program's loss was not seen)"
"""The outcome of a trial of a program whose golden run shows no loss."""
_PERCENT: Final = 100.0


class HasSeries(Protocol):
    """A step of a run, or of a record, with its loss and metrics."""

    @property
    def series(self) -> dict[str, float | str]:
        """Loss and metrics by name."""


def read_thresholds(texts: Iterable[str]) -> Thresholds:
    """Return the usual thresholds with those that texts like `sharp_loss=0.4` set. Raises UsageError, FaultInvalid."""
    known = {name: type(value) for name, value in msgspec.structs.asdict(USUAL).items()}
    values = {}
    for text in texts:
        name, _, number = text.partition("=")
        if name not in known:
            raise UsageError(f"there is no threshold {name!r}", f"give one of {', '.join(known)}")
        try:
            values[name] = known[name](number)
        except ValueError:
            kind = "a whole number" if known[name] is int else "a fraction, 0 to 1"
            raise UsageError(f"the threshold {name} is {number!r}, expected {kind}", f"write {name}=NUMBER") from None
    return Thresholds(**values)


def outcome_of(
    golden: TrialResult, trial: TrialResult, at: Address, thresholds: Thresholds = USUAL, spread: Spread | None = None
) -> str:
    """Return the outcome of a trial with its fault at a cursor; a `spread` is used instead of the program's accuracy.

    Raises FaultInvalid where the runs cannot be compared. Steps are compared with those of the golden run at the same
    cursors. If a trial goes on longer (because its loop ends at a low loss), the common steps count; a trial that
    leaves an epoch early is not masked.
    """
    if (corrupted := corruptions_of(golden, trial, at)) is not None:
        return _outcome_of_inference(trial, corrupted)
    known, faulty = golden.by_cursor(), trial.by_cursor()
    has_loss = not all(math.isnan(loss_of(step)) and "loss" not in step.series for step in golden.steps)
    if not has_loss and not (spread is not None and spread.metric):
        return NO_LOSS
    common = sorted(cursor for cursor in faulty if cursor in known and cursor[2] >= 0)
    place = sum(cursor < at for cursor in common)
    names = judging_accuracies(golden) if spread is None else []
    has_accuracy = bool(names)
    outcomes = []
    judged: list[str | None] = [*names] or [None]
    for name in judged:  # a fault may harm only one of several outputs
        mine, its = (_series(run, golden, common, place, name) for run in (golden, trial))
        outcomes.append(classify(mine, its, place, thresholds))
    found = max(outcomes, key=lambda each: each.severity)
    beyond = [step for cursor, step in faulty.items() if cursor[2] >= 0 and cursor not in known]
    if found not in (Outcome.IMMEDIATE_NAN, Outcome.SHORT_TERM_NAN) and not all(math.isfinite(_loss(step)) for step in beyond):
        return Outcome.SHORT_TERM_NAN.value
    if found not in (Outcome.MASKED, Outcome.OTHER) or (has_accuracy and found is Outcome.OTHER):
        return found.value
    last = max(key for key in faulty if key[2] >= 0)
    if last in known and faulty[last].state != "" and faulty[last].state == known[last].state:
        return Outcome.MASKED.value
    if not has_accuracy:
        return spread.outcome(golden, trial, at) if spread is not None else UNKNOWN
    if _leaves_early(known, trial, at):
        return Outcome.OTHER.value
    is_followed = any(cursor > at for cursor in common) or any(cursor[2] < 0 and cursor[:2] >= at[:2] for cursor in faulty)
    return found.value if is_followed else NO_STEP


def corruptions_of(golden: TrialResult, trial: TrialResult, at: Address) -> Corruptions | None:
    """Return the changes that a fault made to a model's predictions, from its step on; None if the program does no
    inference, or its model gives no class scores.
    """
    known = golden.by_cursor()
    if not any(step.predictions for step in golden.steps):
        return None
    steps = [(known[cursor], step) for cursor, step in sorted(trial.by_cursor().items()) if cursor >= at and cursor in known]
    pairs = [(mine, its) for mine, its in steps if len(mine.predictions) == len(its.predictions)]
    return corruptions(
        [each for mine, _ in pairs for each in mine.predictions], [each for _, its in pairs for each in its.predictions]
    )


def _outcome_of_inference(trial: TrialResult, found: Corruptions) -> str:
    if trial.status == HANG:
        return Outcome.HANG.value
    if not trial.is_whole:
        return Outcome.CRASH.value
    return outcome(found).value


def _leaves_early(known: Mapping[Address, StepLine], trial: TrialResult, at: Address) -> bool:
    """Return whether a trial left an epoch, or ended, earlier than the golden run does, behind the fault."""
    steps = sorted(cursor for cursor in trial.by_cursor() if cursor[2] >= 0)
    ends = [one for one, following in itertools.pairwise(steps) if one >= at and following[:2] != one[:2]]
    is_early = any((phase, epoch, batch + 1) in known for phase, epoch, batch in ends)
    return is_early or (trial.end == "program" and any(cursor > steps[-1] for cursor in known if cursor[2] >= 0))


def loss_of(step: HasSeries) -> float:
    """Return a step's loss; NaN where the program has none."""
    return float(step.series.get("loss", math.nan))


def _loss(step: StepLine) -> float:
    """Return a step's loss; 0 for a step without a gradient in a program that has losses: it is not at fault."""
    return float(step.series.get("loss", 0.0))


def accuracy_of(step: HasSeries, name: str = "") -> float:
    """Return a step's accuracy of the given name, or else the first one; NaN where the program has none."""
    names = sorted(filter(is_accuracy, step.series))
    return float(step.series[name if name in names else names[0]]) if names else math.nan


def accuracies(golden: TrialResult) -> list[str]:
    """Return the names of the accuracies that every step has; an empty name if the steps have none in common."""
    names = [set(filter(is_accuracy, step.series)) for step in golden.steps if step.batch >= 0]
    return sorted(set.intersection(*names)) or [""]


def judging_accuracies(golden: TrialResult) -> list[str]:
    """Return the names of the accuracies by which trials are judged; none where the program has none in each step."""
    # Some programs take their accuracy only now and then: the other steps have none, or an earlier step's.
    if not all(any(map(is_accuracy, step.series)) for step in golden.steps if step.batch >= 0):
        return []
    return [name for name in accuracies(golden) if _scale(golden, name, is_of_steps=True)]


def _series(done: TrialResult, golden: TrialResult, cursors: Sequence[Address], fault_step: int, accuracy: str | None) -> Series:
    """Return the series of a run at cursors, by one of its accuracies; None: it counts as 1, so only losses matter.

    A run without a step began with the faulty one and ended in it. A step without an accuracy (it was left, or ended,
    before the program took it) counts by its loss alone. Accuracies in percent are divided by 100.
    """
    known, usual = done.by_cursor(), golden.by_cursor()
    of_steps, of_validations = (_scale(golden, accuracy or "", is_of_steps=each) or 1.0 for each in (True, False))

    def accuracy_at(cursor: Address) -> float:
        if accuracy is None:
            return 1.0
        step = known[cursor] if _has(known[cursor], accuracy) else usual[cursor]
        return accuracy_of(step, accuracy) / of_steps

    validations = []
    for cursor, step in known.items():
        before = [number for number, key in enumerate(cursors) if key[:2] == cursor[:2]]
        if cursor[2] < 0 and before and accuracy is not None and _has(step, ""):
            loss = next((float(value) for name, value in sorted(step.series.items()) if "loss" in name), 0.0)
            validations.append((max(before) + 1, loss, accuracy_of(step, accuracy) / of_validations))
    return Series(
        np.array([_loss(known[cursor]) for cursor in cursors], np.float64),
        np.array([accuracy_at(cursor) for cursor in cursors], np.float64),
        tuple(sorted(validations)),
        0 if cursors else fault_step,
        End.HUNG if done.status == HANG else End.FINISHED if done.is_whole else End.CRASHED,
    )


def _has(step: StepLine, accuracy: str) -> bool:
    """Return whether a step has an accuracy of that name; with an empty name, whether it has any."""
    return accuracy in step.series if accuracy else any(map(is_accuracy, step.series))


def _scale(golden: TrialResult, accuracy: str, *, is_of_steps: bool) -> float:
    """Return the full value of the golden run's accuracies, those of steps or of validations: 1, or 100 for percent.

    0 for values that are no accuracies.
    """
    values = [accuracy_of(step, accuracy) for step in golden.steps if (step.batch >= 0) == is_of_steps]
    most = max((value for value in values if math.isfinite(value)), default=0.0)
    return 1.0 if most <= 1 else _PERCENT if most <= _PERCENT else 0.0
