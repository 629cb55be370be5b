"""How trials that end early go on: as the golden run does, so far as that can be told."""

from __future__ import annotations

import msgspec
import pytest

from detrain.campaign.batch_of_trials import EarlyEnds
from detrain.campaign.trial_log import TrialResult
from detrain.faults.experiment import Experiment
from detrain.runtime.observers.experiment_run import StepLine
from detrain.runtime.observers.said import BEHIND, Said


def step(at: tuple[int, int, int], loss: float = 1.0) -> StepLine:
    return StepLine(*at, {"loss": loss}, "" if at[2] < 0 else f"state {at}")


GOLDEN = TrialResult(
    0,
    tuple(step((0, epoch, batch), loss=1 + epoch / 10 + batch / 100) for epoch in range(3) for batch in (0, 1, 2, -1)),
    "program",
    said=tuple(Said((0, epoch, batch), is_body=batch != BEHIND, out="x") for epoch in range(3) for batch in (0, 1, 2, BEHIND)),
)


def plan(at: tuple[int, int, int], count: int) -> Experiment:
    return Experiment(log="", at=at, count=count, ends_with_loop=True, digests_every=10)


@pytest.mark.parametrize(
    ("at", "count", "lines", "end"),
    [
        ((0, 0, 1), 2, [(0, 0, 1), (0, 0, 2)], "until"),
        ((0, 0, 1), 3, [(0, 0, 1), (0, 0, 2), (0, 1, 0), (0, 0, -1)], "until"),
        ((0, 1, 2), 4, [(0, 1, 2), (0, 2, 0), (0, 2, 1), (0, 2, 2), (0, 1, -1)], "until"),
        ((0, 2, 1), 4, [(0, 2, 1), (0, 2, 2), (0, 2, -1)], "loop"),
    ],
)
def test_a_trial_goes_on_as_the_golden_run_does(
    at: tuple[int, int, int], count: int, lines: list[tuple[int, int, int]], end: str
) -> None:
    early = EarlyEnds(GOLDEN)
    before, faulty = step((0, 0, 0)), StepLine(*at, {"loss": 7.0}, "mine")
    said = Said(at, is_body=True, out="mine")
    done = TrialResult(0, (*([before] if at > (0, 0, 0) else []), faulty), "equal", said=(said,))

    found = early.run_on(done, plan(at, count))

    known = GOLDEN.by_cursor()
    assert early.window(plan(at, count)) == lines
    assert found.by_cursor() == {(0, 0, 0): before, at: faulty, **{line: known[line] for line in lines if line != at}}
    assert (found.end, found.early_after) == (end, 1)
    assert found.said == (said, *(each for each in GOLDEN.said if each.place > (*at, True)))


@pytest.mark.parametrize("steps", [0, 3])
def test_a_trial_whose_fault_comes_again_does_not_go_on_as_the_golden_run(steps: int) -> None:
    lasting = msgspec.structs.replace(plan((0, 0, 1), 5), steps=steps)

    assert EarlyEnds(GOLDEN).window(lasting) is None
    assert not EarlyEnds(GOLDEN).pay([lasting] * 4)


def test_a_step_without_a_fault_is_done_where_trials_enough_may_end_early() -> None:
    early = EarlyEnds(GOLDEN)

    assert early.pay([plan((0, 0, 1), 5)] * 4)
    assert not early.pay([plan((0, 0, 1), 5)] * 2)  # they would save less than it costs
    assert not early.pay([plan((0, 0, 0), 5)] * 9)  # the first of all makes what stays
    assert not early.pay([plan((0, 0, 2), 5)] * 9)  # the last of an epoch may do so
    assert not early.pay([Experiment(log="", at=(0, 0, 1))] * 9)  # nobody knows what a program does at its end


def test_none_ends_early_where_the_golden_run_has_a_loss_that_is_no_number() -> None:
    steps = [step((0, 0, batch), loss=float("nan") if batch == 4 else 1.0) for batch in range(8)]
    early = EarlyEnds(TrialResult(0, tuple(steps), "program"))

    assert early.window(plan((0, 0, 1), 3)) is not None
    assert early.window(plan((0, 0, 1), 4)) is None
