"""What is said of a step is of that step, whichever process says it."""

from __future__ import annotations

import json

import pytest

from tests.e2e.runs import said_by

pytest.importorskip("tensorflow")

Said = dict[str, list[dict[str, float]]]


@pytest.fixture(scope="module")
def said() -> Said:
    """What was said, by test."""
    found: Said = json.loads(said_by("faults.said_of_steps"))
    return found


@pytest.mark.slow
def test_a_gradient_that_was_not_taken_has_no_part_in_the_loss(said: Said) -> None:
    losses = [step.get("loss") for step in said["of_two_tapes"]]
    assert losses[:6] == [2.0, 2.0, 202.0, 2.0, 2.0, None]
    assert said["of_two_tapes"][6] == {"has_loss": False}


def test_the_losses_of_all_turns_of_a_loop_are_the_steps(said: Said) -> None:
    assert said["of_tapes_in_loops"] == [{"loss": "12.0"}] * 3 + [{"loss": "nan"}] * 3


def test_a_gradient_that_is_a_part_of_another_has_no_loss_of_its_own(said: Said) -> None:
    assert said["of_inner_gradients"] == [{"loss": 612.0}, {"loss": 612.0}]


def test_metrics_with_one_name_are_told_apart_by_the_order_of_their_making(said: Said) -> None:
    first, second = said["of_metrics_with_one_name"]
    assert first == {"loss": 0.0} | {f"loss_{number}": float(number) for number in range(1, 9)}
    assert second == {"loss": 7.0}


def test_a_resumed_process_says_of_its_first_step_what_the_first_run_said(said: Said) -> None:
    assert said["of_a_resumed_process"] == [{"mean": 5.0}]


def test_a_metric_is_not_taken_for_one_that_is_gone(said: Said) -> None:
    assert said["of_metrics_that_are_made_anew"] == [{"mean": 1.0}, {"mean": 2.0}, {"mean": 3.0}]


def test_metrics_that_are_no_means_are_left_out(said: Said) -> None:
    assert said["of_many_kinds"] == [{"categorical_accuracy": 0.5}]


def test_a_step_behind_a_huge_loss_has_its_own(said: Said) -> None:
    steps = said["of_a_total_that_a_fault_has_made_huge"]
    assert [step["loss"] for step in steps] == [3.0, pytest.approx(1e30), 5.0, float("inf"), 6.0]
    assert all(step["accuracy"] == 0.5 for step in steps)
