"""Outcomes: series made by hand to be what each definition says, and what must hold of all series."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from detrain.base.errors import DetrainError, FaultInvalid
from detrain.campaign.outcomes import UNKNOWN, read_thresholds
from detrain.faults.outcome_classes import End, Outcome, Series, Thresholds, classify
from detrain.faults.plan import trial_rng

STEPS, EPOCH, FAULT = 400, 49, 100
GUESSING = 0.1
STEP = np.arange(STEPS)
DAMAGED = [0.1, 0.1, 0.15, 0.2, 0.3]  # what accuracies of broken networks are like

REFERENCE = Path(__file__).parents[2] / "docs/reference/faults.md"


def learned(accuracy: np.ndarray, seed: int = 1, noise: float = 0.02) -> Series:
    """A series of an accuracy over the steps, with the noise that batches make, and a validation an epoch."""
    rng = trial_rng(0, seed)
    noisy = np.clip(accuracy + rng.normal(0, noise, len(accuracy)), 0, 1)
    tests = tuple((done, 0.5, float(accuracy[done - 1])) for done in range(EPOCH, len(accuracy) + 1, EPOCH))
    return Series(loss=2.3 * (1 - noisy), accuracy=noisy, validations=tests)


CURVE = GUESSING + 0.8 * (1 - np.exp(-STEP / 60))
GOLDEN = learned(CURVE)


def trial(after: np.ndarray, seed: int = 2, start: int = FAULT + 1) -> Series:
    """The golden run up to and with the faulted step, then another accuracy [STEPS - start]; validations between are
    golden.
    """
    other = learned(np.concatenate([CURVE[:start], after]), seed)
    return Series(
        loss=np.concatenate([GOLDEN.loss[:start], other.loss[start:]]),
        accuracy=np.concatenate([GOLDEN.accuracy[:start], other.accuracy[start:]]),
        validations=tuple(
            mine if mine[0] <= start else its for mine, its in zip(GOLDEN.validations, other.validations, strict=True)
        ),
    )


AFTER = STEP[FAULT + 1 :] - FAULT - 1.0
BEFORE = CURVE[FAULT]
MASKED = trial(CURVE[FAULT + 1 :])
# Adam after a huge gradient: falls over ten steps, then its second moment keeps the weights where they are.
SLOW = trial(GUESSING + (BEFORE - GUESSING) * np.exp(-AFTER / 10) + 0.0002 * AFTER)
# SGD after a huge gradient: a new network at the next step, which learns as the first one did.
SHARP = trial(GUESSING + 0.8 * (1 - np.exp(-AFTER / 60)))
SHARP_SLOW = trial(np.clip(0.25 - 0.01 * AFTER, GUESSING, None) + 0.0002 * AFTER)
DIPS = trial(CURVE[FAULT + 1 :] - 0.6 * np.exp(-(((AFTER - 25) / 8) ** 2)))
LOWER = trial(CURVE[FAULT + 1 :] - 0.03)


def test_the_series_of_each_definition_is_of_its_class() -> None:
    assert classify(GOLDEN, GOLDEN, FAULT) is Outcome.MASKED
    assert classify(GOLDEN, MASKED, FAULT) is Outcome.MASKED
    assert classify(GOLDEN, SLOW, FAULT) is Outcome.SLOW
    assert classify(GOLDEN, SHARP, FAULT) is Outcome.SHARP
    assert classify(GOLDEN, SHARP_SLOW, FAULT) is Outcome.SHARP_SLOW


TRAINED = json.loads((Path(__file__).parent / "trained.json").read_text())
"""ResNet-18 at a quarter of its width, 64 images a step, once with a gradient added in one step that is huge (by Adam
the published examples' 8.98e17, by SGD 3.3e12, and less), or so small that it changes no more than the course of
rounding."""


@pytest.mark.parametrize("row", TRAINED["trials"], ids=lambda row: f"{row['optimizer']} {row['gradient']} {row['fault_step']}")
def test_networks_that_were_trained_through_a_fault_are_classed_as_was_published(row: dict[str, Any]) -> None:
    golden, other = (np.array(right) / 64 for right in (TRAINED["golden"][row["optimizer"]], row["right_of_64"]))

    assert classify(Series(1 - golden, golden), Series(1 - other, other), row["fault_step"]) == row["outcome"]


def test_what_fits_no_definition_is_of_none() -> None:
    assert classify(GOLDEN, DIPS, FAULT) is Outcome.OTHER
    assert classify(GOLDEN, LOWER, FAULT) is Outcome.OTHER


@pytest.mark.parametrize("level", DAMAGED)
def test_a_network_that_never_comes_back_is_slow_whether_it_falls_at_once_or_over_steps(level: float) -> None:
    at_once = trial(np.full(len(AFTER), level))
    over_steps = trial(np.maximum(level, BEFORE - 0.03 * AFTER))

    assert classify(GOLDEN, at_once, FAULT) is Outcome.SHARP_SLOW
    assert classify(GOLDEN, over_steps, FAULT) is Outcome.SLOW


def test_a_low_validation_alone_is_low_test_accuracy() -> None:
    low = tuple((done, loss, GUESSING if done == 3 * EPOCH else accuracy) for done, loss, accuracy in MASKED.validations)

    assert classify(GOLDEN, replace(MASKED, validations=low), FAULT) is Outcome.LOW_TEST_ACCURACY
    slow_and_low = tuple((done, loss, GUESSING if done > FAULT else accuracy) for done, loss, accuracy in MASKED.validations)
    assert classify(GOLDEN, replace(SLOW, validations=slow_and_low), FAULT) is Outcome.SLOW


def with_loss(series: Series, step: int, value: float, *, stops: bool = False) -> Series:
    loss = series.loss.copy()
    loss[step] = value
    stop = step + 1 if stops else len(loss)
    return replace(series, loss=loss[:stop], accuracy=series.accuracy[:stop], validations=series.validations[: stop // EPOCH])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("stops", [True, False])
@pytest.mark.parametrize("end", End)
def test_a_value_that_is_not_finite_is_immediate_in_the_faulted_step_and_the_next_and_short_term_later(
    value: float, stops: bool, end: End
) -> None:
    for step, outcome in (
        (0, Outcome.IMMEDIATE_NAN),
        (1, Outcome.IMMEDIATE_NAN),
        (2, Outcome.SHORT_TERM_NAN),
        (90, Outcome.SHORT_TERM_NAN),
    ):
        broken = replace(with_loss(MASKED, FAULT + step, value, stops=stops), end=end)

        assert classify(GOLDEN, broken, FAULT) is outcome


@pytest.mark.parametrize(("fault", "outcome"), [(2 * EPOCH - 1, Outcome.IMMEDIATE_NAN), (2 * EPOCH - 3, Outcome.SHORT_TERM_NAN)])
def test_a_validation_that_is_not_finite_counts_for_the_step_before_it(fault: int, outcome: Outcome) -> None:
    broken = tuple((done, np.nan if done >= 2 * EPOCH else loss, accuracy) for done, loss, accuracy in GOLDEN.validations)

    assert classify(GOLDEN, replace(GOLDEN, validations=broken), fault) is outcome


@pytest.mark.parametrize("stop", [FAULT, FAULT + 1, FAULT + 50])
def test_a_process_that_ends_by_itself_is_a_crash_and_one_that_does_not_is_a_hang(stop: int) -> None:
    cut = Series(GOLDEN.loss[:stop], GOLDEN.accuracy[:stop])

    assert classify(GOLDEN, replace(cut, end=End.CRASHED), FAULT) is Outcome.CRASH
    assert classify(GOLDEN, replace(cut, end=End.HUNG), FAULT) is Outcome.HANG


def test_a_trial_that_starts_at_a_checkpoint_and_stops_early_is_compared_where_it_is() -> None:
    part = slice(FAULT - 10, FAULT + 60)

    for whole, outcome in ((MASKED, Outcome.MASKED), (SLOW, Outcome.SLOW), (SHARP_SLOW, Outcome.SHARP_SLOW)):
        cut = Series(whole.loss[part], whole.accuracy[part], first=part.start)
        assert classify(GOLDEN, cut, FAULT) is outcome


def test_a_better_trial_is_masked() -> None:
    assert classify(GOLDEN, trial(np.minimum(1, CURVE[FAULT + 1 :] + 0.05)), FAULT) is Outcome.MASKED


def test_the_thresholds_are_the_callers() -> None:
    assert classify(GOLDEN, LOWER, FAULT, Thresholds(masked_within=0.1)) is Outcome.MASKED
    assert classify(GOLDEN, SHARP, FAULT, Thresholds(slow_recovery=0.99)) is Outcome.SHARP_SLOW
    assert classify(GOLDEN, SLOW, FAULT, Thresholds(slow_steps=350)) is Outcome.OTHER
    assert classify(GOLDEN, LOWER, FAULT, Thresholds(slow_loss=0.01)) is Outcome.SLOW
    assert classify(GOLDEN, with_loss(MASKED, FAULT + 5, np.nan), FAULT, Thresholds(immediate_steps=6)) is Outcome.IMMEDIATE_NAN
    for wrong in ({"slow_steps": 0}, {"sharp_loss": 1.5}, {"masked_within": -0.1}, {"test_loss": np.nan}):
        with pytest.raises(FaultInvalid, match=f"threshold {next(iter(wrong))} is"):
            Thresholds(**wrong)


@pytest.mark.parametrize(
    ("golden", "other", "message"),
    [
        (GOLDEN, with_loss(MASKED, FAULT - 1, 7.0), f"differs from the golden run in step {FAULT - 1}, before its fault"),
        (GOLDEN, with_loss(MASKED, 3, np.nan), "differs from the golden run in step 3,"),
        (GOLDEN, replace(MASKED, accuracy=MASKED.accuracy + (STEP == 7)), "differs from the golden run in step 7,"),
        (GOLDEN, replace(MASKED, validations=((EPOCH, 0.4, 0.9),)), f"differs from the golden run in step {EPOCH - 1},"),
        (GOLDEN, Series(MASKED.loss[:FAULT], MASKED.accuracy[:FAULT]), f"steps 0 to {FAULT - 1}, and the fault is in step {FAULT}"),
        (GOLDEN, Series(MASKED.loss[:50], MASKED.accuracy[:50], end=End.CRASHED), "steps 0 to 49, and the fault is in step"),
        (GOLDEN, Series(MASKED.loss[150:], MASKED.accuracy[150:], first=150), "steps 150 to 399, and the fault is in step"),
        (Series(GOLDEN.loss[:200], GOLDEN.accuracy[:200]), MASKED, "golden run has steps 0 to 199, the trial 0 to 399"),
        (with_loss(GOLDEN, 300, np.nan), MASKED, "golden run is not finite in step 300"),
    ],
)  # fmt: skip
def test_runs_that_cannot_be_compared_are_refused(golden: Series, other: Series, message: str) -> None:
    with pytest.raises(FaultInvalid, match=message):
        classify(golden, other, FAULT)


def test_a_series_of_unequal_lengths_is_refused() -> None:
    with pytest.raises(FaultInvalid, match="3 losses and 2 accuracies"):
        Series(np.zeros(3), np.zeros(2))


ACCURACIES = st.lists(st.floats(0, 1) | st.sampled_from([np.nan, np.inf, 0.1]), min_size=1, max_size=60).map(np.array)


@given(
    mine=st.lists(st.floats(0, 1), min_size=60, max_size=60).map(np.array),
    its=ACCURACIES,
    fault=st.integers(0, 59),
    end=st.sampled_from(End),
)
def test_every_trial_has_one_outcome_that_does_not_contradict_its_series(
    mine: np.ndarray, its: np.ndarray, fault: int, end: End
) -> None:
    golden = Series(1 - mine, mine)
    accuracy = np.concatenate([mine[:fault], its])[:60]
    other = Series(1 - accuracy, accuracy, end=end)

    outcome = classify(golden, other, fault)

    is_finite = bool(np.isfinite(accuracy).all())
    assert (outcome in (Outcome.IMMEDIATE_NAN, Outcome.SHORT_TERM_NAN)) == (not is_finite)
    assert (outcome in (Outcome.CRASH, Outcome.HANG)) == (is_finite and end is not End.FINISHED)
    behind, stop = fault + 1, len(accuracy)
    if outcome is Outcome.MASKED and stop > behind:
        final = slice(max(behind, stop - 49), stop)
        assert mine[final].mean() - accuracy[final].mean() <= 0.02 + 1e-12
    if outcome is Outcome.IMMEDIATE_NAN:
        assert not np.isfinite(accuracy[fault : fault + 2]).all()
    if outcome in (Outcome.SHARP, Outcome.SHARP_SLOW):
        sharp = slice(behind, min(behind + 2, stop))
        assert accuracy[sharp].mean() <= mine[sharp].mean() / 2 + 1e-12
    if outcome in (Outcome.SLOW, Outcome.SHARP_SLOW):
        assert stop - behind >= 30


@given(seed=st.integers(0, 500), kind=st.sampled_from(["masked", "slow", "sharp", "sharp_slow"]), scale=st.floats(0.5, 1))
def test_the_noise_of_batches_and_the_height_of_the_curve_do_not_change_the_class(seed: int, kind: str, scale: float) -> None:
    curves = {
        "masked": (CURVE[FAULT + 1 :], Outcome.MASKED),
        "slow": (GUESSING + (BEFORE - GUESSING) * np.exp(-AFTER / 10), Outcome.SLOW),
        "sharp": (GUESSING + 0.8 * (1 - np.exp(-AFTER / 60)), Outcome.SHARP),
        "sharp_slow": (np.full(len(AFTER), 0.12), Outcome.SHARP_SLOW),
    }
    after, outcome = curves[kind]
    shrink = lambda accuracy: GUESSING + scale * (accuracy - GUESSING)  # noqa: E731
    golden = learned(shrink(CURVE), seed, noise=0.015)
    noise = trial_rng(1, seed).normal(0, 0.015, len(after))
    accuracy = np.concatenate([golden.accuracy[: FAULT + 1], np.clip(shrink(after) + noise, 0, 1)])

    assert classify(golden, Series(np.r_[golden.loss[: FAULT + 1], 1 - accuracy[FAULT + 1 :]], accuracy), FAULT) is outcome


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["sharp=0.4"], "there is no threshold 'sharp'"),
        (["slow_steps=2.5"], "slow_steps is '2.5', expected a whole number"),
        (["sharp_loss"], "sharp_loss is '', expected a fraction"),
        (["sharp_loss=nan"], "sharp_loss is nan"),
    ],
)
def test_a_threshold_that_is_none_is_refused(options: list[str], words: str) -> None:
    with pytest.raises(DetrainError, match=words):
        read_thresholds(options)


def test_thresholds_are_set_by_name() -> None:
    assert read_thresholds(["sharp_loss=.4", "slow_steps=7"]) == Thresholds(sharp_loss=0.4, slow_steps=7)


def test_the_reference_has_the_outcomes_by_how_bad_they_are() -> None:
    listed = REFERENCE.read_text().partition("A trial is of the first of these that fits:")[2].partition("Steps that only")[0]
    names = [name for line in re.findall(r"^- \*\*(.+?)\*\*", listed, re.MULTILINE) for name in line.split(", ")]

    assert names == [each.value for each in sorted(Outcome, key=lambda each: -each.severity)]
    assert len({each.severity for each in Outcome}) == len({each.color for each in Outcome}) == len(Outcome)


def test_a_text_that_names_no_class_is_none() -> None:
    assert Outcome.named("hang") is Outcome.HANG
    assert Outcome.named(UNKNOWN) is None
