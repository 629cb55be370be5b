"""Trials judged by how far golden runs of other seeds lie apart, against numbers made by a rule that is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from statsmodels.stats.proportion import proportion_confint

from detrain.campaign.judging.spread import FEW_RUNS, LEAST_RUNS, NO_NUMBER, NO_STEP, SURE, Spread, interval
from detrain.campaign.outcomes import NO_LOSS, UNKNOWN, outcome_of
from detrain.campaign.trial_log import HANG, TrialResult
from detrain.faults.outcome_classes import Outcome, Verdict, verdict_of
from detrain.runtime.observers.experiment_run import StepLine
from detrain.runtime.observers.said import BEHIND, Said

STEPS = 20
AT = (0, 0, 5)


def run(level: float, *, noise: int = 0, start: int = 0, state: str = "a", printed: str | None = None) -> TrialResult:
    """A run whose losses lie about a level, from a step on; what it prints behind each step is its own."""
    losses = level + 0.01 * np.random.default_rng(noise).normal(size=STEPS)
    steps = [StepLine(0, 0, batch, {"loss": float(losses[batch])}, state) for batch in range(start, STEPS)]
    said = [Said((0, 0, batch), True, printed, "") for batch in range(start, STEPS)] if printed is not None else []
    return TrialResult(0, tuple(steps), "until", is_armed=True, said=tuple(said))


GOLDEN = run(1.0)
OTHERS = [run(1.0 + 0.1 * shift, noise=number) for number, shift in enumerate((-1, 0, 1, 0.5, -0.5), 1)]


def trial(level: float, **how: object) -> TrialResult:
    """A trial that is the golden run before its fault, and other bits from there on."""
    done = run(level, noise=99, state="b", **how)  # type: ignore[arg-type]
    before = GOLDEN.steps[: AT[2] + 1]
    return TrialResult(0, (*before, *done.steps[AT[2] + 1 :]), "until", is_armed=True, said=done.said)


def judged(done: TrialResult, spread: Spread | None) -> str:
    return outcome_of(GOLDEN, done, AT, spread=spread)


@pytest.mark.parametrize(
    ("level", "outcome"),
    [(1.0, Outcome.MASKED), (1.25, Outcome.MASKED), (0.2, Outcome.MASKED), (1.5, Outcome.WORSE), (9.0, Outcome.WORSE)],
)
def test_a_loss_is_harm_only_above_where_golden_runs_lie(level: float, outcome: Outcome) -> None:
    assert judged(trial(level), Spread(OTHERS)) == outcome.value
    assert judged(trial(level), None) == UNKNOWN


def test_what_cannot_be_told_is_said_and_no_harm() -> None:
    last = (0, 0, STEPS - 1)
    at_end = TrialResult(0, (*GOLDEN.steps[:-1], StepLine(0, 0, STEPS - 1, {"loss": 1.0}, "b")), "until", is_armed=True)

    assert outcome_of(GOLDEN, at_end, last, spread=Spread(OTHERS)) == NO_STEP
    assert judged(trial(1.0), Spread(OTHERS[: LEAST_RUNS - 2])) == FEW_RUNS
    assert judged(trial(1.0), Spread(OTHERS, r"perplexity ([\d.]+)")) == NO_NUMBER
    for outcome in (NO_STEP, FEW_RUNS, NO_NUMBER, UNKNOWN, NO_LOSS):
        assert verdict_of(outcome) is Verdict.NOT_JUDGED


def test_a_loss_that_is_no_number_a_crash_and_a_hang_are_what_they_are() -> None:
    steps = [*GOLDEN.steps[: AT[2] + 1], StepLine(0, 0, AT[2] + 1, {"loss": "nan"}, "b")]
    broken = TrialResult(0, tuple(steps), "until", is_armed=True)

    assert judged(broken, Spread(OTHERS)) == Outcome.IMMEDIATE_NAN.value
    assert judged(TrialResult(1, GOLDEN.steps[:6], "", is_armed=True), Spread(OTHERS)) == Outcome.CRASH.value
    assert judged(TrialResult(HANG, GOLDEN.steps[:6], "", is_armed=True), Spread(OTHERS)) == Outcome.HANG.value


def test_all_variables_equal_are_masked_whatever_the_others_do() -> None:
    assert judged(GOLDEN, Spread([run(0.1, noise=number) for number in range(5)])) == Outcome.MASKED.value


@pytest.mark.parametrize(
    ("printed", "outcome"),
    [("score 0.50", Outcome.MASKED), ("score 0.20", Outcome.WORSE), ("score 0.80", Outcome.WORSE), ("score nan", Outcome.WORSE)],
)
def test_a_number_that_is_printed_is_harm_on_either_side(printed: str, outcome: Outcome) -> None:
    """The losses are far away, and count for nothing then."""
    others = [run(1.0, noise=number, printed=f"score 0.{48 + number}") for number in range(5)]
    golden = run(1.0, printed="score 0.50")
    done = trial(5.0, printed=f"score 0.01\n{printed}")

    assert outcome_of(golden, done, AT, spread=Spread(others, r"score (\S+)")) == outcome.value


def test_what_was_printed_before_the_fault_does_not_count() -> None:
    others = [run(1.0, noise=number, printed=f"score 0.{48 + number}") for number in range(5)]
    golden = run(1.0, printed="score 0.50")
    before = Said((0, 0, 2), True, "score 0.50", "")
    done = TrialResult(0, trial(1.0).steps, "until", is_armed=True, said=(before,))

    assert outcome_of(golden, done, AT, spread=Spread(others, r"score (\S+)")) == NO_NUMBER


def test_a_number_at_the_end_of_the_program_counts_there() -> None:
    def whole(number: float, *, state: str = "a", losses: TrialResult = GOLDEN) -> TrialResult:
        steps = tuple(StepLine(0, 0, step.batch, step.series, state if step.batch > AT[2] else "a") for step in losses.steps)
        said = (Said((0, 0, 9), True, "score 0.1\n", ""), Said((BEHIND, 0, 0), False, f"score {number}", ""))
        return TrialResult(0, steps, "program", is_armed=True, said=said)

    others = [whole(0.5 + 0.01 * number) for number in range(5)]
    for score, outcome in ((0.52, Outcome.MASKED), (0.1, Outcome.WORSE)):
        found = outcome_of(whole(0.5), whole(score, state="b"), AT, spread=Spread(others, r"score (\S+)"))
        assert found == outcome.value


@pytest.mark.parametrize("is_one_sided", [True, False])
@pytest.mark.parametrize("count", [4, 9])
def test_one_more_golden_run_lies_inside_as_often_as_is_said(count: int, is_one_sided: bool) -> None:
    rng = np.random.default_rng(count)
    draws = 4000
    inside = 0
    for values in rng.normal(3.0, 0.7, size=(draws, count + 1)):
        low, high = interval(values[:-1], is_one_sided=is_one_sided)
        inside += bool(low <= values[-1] <= high)
        assert not is_one_sided or low == -math.inf

    low, high = proportion_confint(inside, draws, alpha=0.001, method="beta")
    assert low <= SURE <= high
