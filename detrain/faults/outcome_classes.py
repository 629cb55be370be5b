"""The outcome of a trial: its recorded series against those of the golden run.

The classes are those of He et al. (ISCA 2023). The publication describes them and leaves the numbers open; ours are
`Thresholds`. Series of the same steps are compared, so that differences between batches cancel out.
"""

from __future__ import annotations

import enum
from typing import Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from detrain.base.errors import FaultInvalid

Floats = NDArray[np.float64]


class Outcome(enum.StrEnum):
    """The class of a trial, by its name in records. Reports list the classes in this order."""

    severity: int
    """If a program has several outputs, the most severe outcome counts; docs/reference/faults.md has the same order."""
    color: str
    """The color in reports; colour-blind readers can distinguish them (after Paul Tol's muted scheme)."""
    category: int
    """SASSIFI's category for a trial whose output was not judged."""

    MASKED = "masked", 0, "#bbcc88", 3
    IMMEDIATE_NAN = "immediate INF/NaN", 14, "#882255", 16
    SHORT_TERM_NAN = "short-term INF/NaN", 13, "#cc6677", 16
    SLOW = "slow degrade", 8, "#ddaa33", 16
    SHARP = "sharp degrade", 9, "#cc6600", 16
    SHARP_SLOW = "sharp-slow degrade", 10, "#993404", 16
    LOW_TEST_ACCURACY = "low test accuracy", 5, "#4477aa", 16
    CRASH = "crash", 12, "#222222", 5
    HANG = "hang", 11, "#666666", 4
    WORSE = "worse than golden runs", 7, "#6699cc", 16  # of a campaign with --spread (campaign/judging/spread.py)
    # No definition fits: it collapses later and comes back, or ends lower than masked allows with no visible fall.
    OTHER = "other", 6, "#aa4499", 16
    # Of inference (faults/predictions.py): the class of the input that suffers most.
    SDC_5 = "SDC-5", 4, "#aa3377", 16
    SDC_1 = "SDC-1", 3, "#ee6677", 16
    SDC_20 = "SDC-20%", 2, "#ee8866", 16
    SDC_10 = "SDC-10%", 1, "#eedd88", 16

    def __new__(cls, name: str, severity: int, color: str, category: int) -> Self:
        """Make the member for a row of the table."""
        self = str.__new__(cls, name)
        self._value_, self.severity, self.color, self.category = name, severity, color, category
        return self

    @classmethod
    def named(cls, text: str) -> Outcome | None:
        """Return the outcome of a name; None for other texts of a trial's row, for instance that it has no accuracy."""
        return next((each for each in cls if each.value == text), None)


class Verdict(enum.StrEnum):
    """The side on which a trial counts, by its outcome."""

    MASKED = "masked"
    HARMFUL = "harmful"
    NOT_JUDGED = "not judged"


def verdict_of(outcome: str) -> Verdict:
    """Return the verdict on an outcome. A text that is no class cannot be judged, so it is no harm: for instance a
    finite loss in a program without an accuracy, or a fault without a step behind it.
    """
    found = Outcome.named(outcome)
    if found is None:
        return Verdict.NOT_JUDGED
    return Verdict.MASKED if found is Outcome.MASKED else Verdict.HARMFUL


class End(enum.StrEnum):
    """How the process of a run ended."""

    FINISHED = "finished"
    CRASHED = "crashed"
    HUNG = "hung"


class Series(msgspec.Struct, frozen=True, eq=False):
    """The record of a run: `loss` and `accuracy` (0 to 1) of each step, from step `first` on, counted over all epochs.

    `validations` are (steps done before it, loss, accuracy) of each validation, in order.
    """

    loss: Floats
    accuracy: Floats
    validations: tuple[tuple[int, float, float], ...] = ()
    first: int = 0
    end: End = End.FINISHED

    def __post_init__(self) -> None:
        if self.loss.ndim != 1 or self.loss.shape != self.accuracy.shape:
            raise FaultInvalid(
                f"a series of {self.loss.size} losses and {self.accuracy.size} accuracies: both are needed of each step"
            )

    @property
    def stop(self) -> int:
        """The step behind the last."""
        return self.first + len(self.loss)

    def first_not_finite(self) -> float:
        """Return the first step whose loss or accuracy is not finite; for a validation, the step before it.

        Infinity if all are finite.
        """
        steps = np.flatnonzero(~(np.isfinite(self.loss) & np.isfinite(self.accuracy))) + self.first
        validated = [done - 1 for done, loss, accuracy in self.validations if not np.isfinite([loss, accuracy]).all()]
        return float(min([*steps[:1].tolist(), *validated[:1]], default=np.inf))


class Thresholds(msgspec.Struct, frozen=True):
    """The numbers of the definitions. Losses of accuracy are fractions of the golden run's accuracy at the same steps.

    A loss of accuracy, small or large, must also exceed `masked_within`, so that there is none at the accuracy of
    guessing.
    """

    masked_within: float = 0.02  # of the golden run's final training accuracy, in accuracy; better is masked, too
    final_steps: int = 49  # for the final training accuracy; fewer if there are fewer behind the fault
    immediate_steps: int = 2  # the faulty one and the next
    sharp_loss: float = 0.5  # a collapse: a loss of this or more
    sharp_steps: int = 2  # behind the faulty step, for the accuracy of a collapse
    slow_loss: float = 0.05  # low: a loss of this or more
    slow_steps: int = 30  # stays low: for this many steps on end
    slow_recovery: float = 0.25  # stays low after a collapse: regains less than this share of its largest loss
    smooth_steps: int = 5  # for the mean accuracy that is called low
    test_loss: float = 0.2  # low test accuracy: a loss of this or more, at any validation behind the fault

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            is_steps = name.endswith("_steps")
            if not (value >= 1 if is_steps else 0 <= value <= 1):
                raise FaultInvalid(
                    f"the threshold {name} is {value}", f"expected {'1 or more' if is_steps else 'a fraction, 0 to 1'}"
                )


USUAL = Thresholds()


def classify(golden: Series, trial: Series, fault_step: int, thresholds: Thresholds = USUAL) -> Outcome:
    """Return the outcome of a fault in step `fault_step`.

    Raises FaultInvalid if the runs cannot be compared: they differ before the fault, the trial does not reach it, or
    the golden run lacks some of the trial's steps or is not finite in them.
    """
    _check(golden, trial, fault_step)
    not_finite = trial.first_not_finite()
    if not_finite < np.inf:
        is_immediate = not_finite < fault_step + thresholds.immediate_steps
        return Outcome.IMMEDIATE_NAN if is_immediate else Outcome.SHORT_TERM_NAN
    if trial.end is not End.FINISHED:
        return Outcome.CRASH if trial.end is End.CRASHED else Outcome.HANG
    return _of_accuracy(golden, trial, fault_step + 1, thresholds)


def _check(golden: Series, trial: Series, fault_step: int) -> None:
    reached = trial.stop - (trial.end is End.FINISHED)  # a process can end within a step, which leaves no record
    if not trial.first <= fault_step <= reached:
        raise FaultInvalid(f"the trial has steps {trial.first} to {trial.stop - 1}, and the fault is in step {fault_step}")
    if golden.first > trial.first or golden.stop < trial.stop:
        raise FaultInvalid(
            f"the golden run has steps {golden.first} to {golden.stop - 1}, the trial {trial.first} to {trial.stop - 1}",
            "run the golden run as far as the trials",
        )
    if golden.first_not_finite() < trial.stop:
        raise FaultInvalid(f"the golden run is not finite in step {golden.first_not_finite():.0f}: nothing can be compared with it")
    before = fault_step - trial.first
    same = np.ones(before, bool)
    for mine, its in ((golden.loss, trial.loss), (golden.accuracy, trial.accuracy)):
        same &= mine[trial.first - golden.first :][:before] == its[:before]
    tests = {done: found for done, *found in golden.validations}
    for done, *found in trial.validations:
        if trial.first < done <= fault_step and tests.get(done, found) != found:
            same[done - 1 - trial.first] = False
    if not same.all():
        raise FaultInvalid(
            f"the trial differs from the golden run in step {trial.first + int(np.argmin(same))}, before its fault in {fault_step}",
            "are they runs of the same program, with the same arguments, from the same checkpoint?",
        )


def _of_accuracy(golden: Series, trial: Series, start: int, thresholds: Thresholds) -> Outcome:
    """Return the outcome by the accuracies from step `start` on."""
    mine, its = golden.accuracy[start - golden.first : trial.stop - golden.first], trial.accuracy[start - trial.first :]
    tests = {done: accuracy for done, _, accuracy in golden.validations}
    paired = np.array([(tests[done], accuracy) for done, _, accuracy in trial.validations if done >= start and done in tests])

    def is_low(high: Floats, low: Floats, loss: float) -> NDArray[np.bool_]:
        return np.asarray((high - low >= loss * high) & (high - low > thresholds.masked_within))

    sharp, final = slice(thresholds.sharp_steps), slice(-thresholds.final_steps, None)
    smooth_mine, smooth_its = _smooth(mine, thresholds.smooth_steps), _smooth(its, thresholds.smooth_steps)
    is_sharp = bool(is_low(_mean(mine[sharp]), _mean(its[sharp]), thresholds.sharp_loss).any())
    lost = np.where(is_low(smooth_mine, smooth_its, thresholds.slow_loss), smooth_mine - smooth_its, 0.0)
    # A network that has collapsed is low while it learns again, too: there, "stays low" means that it does not learn.
    stays = lost >= (1 - thresholds.slow_recovery) * lost.max(initial=0.0) if is_sharp else True
    is_slow = _longest((lost > 0) & stays) >= thresholds.slow_steps
    if is_sharp or is_slow:
        return Outcome.SHARP_SLOW if is_sharp and is_slow else Outcome.SHARP if is_sharp else Outcome.SLOW
    collapses = is_low(smooth_mine, smooth_its, thresholds.sharp_loss).any()
    if collapses or (_mean(mine[final]) - _mean(its[final]) > thresholds.masked_within).any():
        return Outcome.OTHER
    if len(paired) and is_low(paired[:, 0], paired[:, 1], thresholds.test_loss).any():
        return Outcome.LOW_TEST_ACCURACY
    return Outcome.MASKED


def _mean(accuracy: Floats) -> Floats:
    """Return the mean [1], or an empty array [0] if there are no values."""
    return accuracy.mean(keepdims=True) if len(accuracy) else accuracy


def _smooth(accuracy: Floats, steps: int) -> Floats:
    """Return the means over `steps` steps on end, or over all steps if there are fewer."""
    steps = min(steps, len(accuracy))
    return np.convolve(accuracy, np.full(steps, 1 / steps), "valid") if steps else accuracy


def _longest(flags: NDArray[np.bool_]) -> int:
    """Return the length of the longest run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    return int((edges[1::2] - edges[::2]).max(initial=0))
