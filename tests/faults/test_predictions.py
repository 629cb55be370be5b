"""What is said of a classifier's scores, beside scipy and a few lines of NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray
from scipy.special import softmax

from detrain.faults.outcome_classes import Outcome
from detrain.faults.predictions import Corruptions, Prediction, corruptions, outcome, predictions_of

SCORES = arrays.arrays(np.float32, st.tuples(st.integers(1, 6), st.integers(2, 9)), elements=st.floats(-30, 30, width=32))


@given(SCORES)
def test_a_prediction_is_the_five_highest_and_the_softmax_of_the_first(scores: NDArray[np.float32]) -> None:
    shares = softmax(scores.astype(np.float64), axis=1)
    for found, row, share in zip(predictions_of(scores), scores, shares, strict=True):
        assert list(found.top) == sorted(range(len(row)), key=lambda each, row=row: (-row[each], each))[:5]
        assert float(found.confidence) == pytest.approx(share[found.top[0]], rel=1e-12)


@given(SCORES, st.integers(0, 1 << 30))
def test_corruptions_are_counted_as_numpy_counts_them(scores: NDArray[np.float32], seed: int) -> None:
    faulty = scores + np.random.default_rng(seed).normal(0, 3, scores.shape).astype(np.float32)
    found = corruptions(predictions_of(scores), predictions_of(faulty))

    was, now = softmax(scores.astype(np.float64), axis=1), softmax(faulty.astype(np.float64), axis=1)
    first, last = np.argsort(-scores, axis=1, kind="stable")[:, :5], np.argmax(faulty, axis=1)
    change = np.abs(now.max(1) - was.max(1)) / was.max(1)
    assert found.inputs == len(scores)
    assert found.sdc_1 == int((first[:, 0] != last).sum())
    assert found.sdc_5 == int(sum(each not in row for each, row in zip(last, first, strict=True)))
    assert (found.sdc_10, found.sdc_20) == (int((change > 0.1).sum()), int((change > 0.2).sum()))
    assert found.nonfinite == 0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_no_number_counts_in_all(value: float) -> None:
    scores = np.array([[1.0, 3.0, 2.0]] * 2, np.float32)
    faulty = scores.copy()
    faulty[1, 2] = value

    found = corruptions(predictions_of(scores), predictions_of(faulty))

    assert found == Corruptions(2, 1, 1, 1, 1, 1)
    assert outcome(found) is Outcome.IMMEDIATE_NAN


def test_each_token_is_an_input() -> None:
    scores = np.random.default_rng(0).normal(size=(2, 3, 7)).astype(np.float32)
    assert predictions_of(scores) == predictions_of(scores.reshape(6, 7))


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (Prediction((1, 2, 3, 4, 5), 0.5), Outcome.MASKED),
        (Prediction((1, 2, 3, 4, 5), 0.44), Outcome.SDC_10),
        (Prediction((1, 2, 3, 4, 5), 0.39), Outcome.SDC_20),
        (Prediction((2, 1, 3, 4, 5), 0.1), Outcome.SDC_1),
        (Prediction((9, 1, 3, 4, 5), 0.5), Outcome.SDC_5),
    ],
)
def test_a_trial_is_of_the_class_of_what_suffers_most(now: Prediction, expected: Outcome) -> None:
    usual = Prediction((1, 2, 3, 4, 5), 0.5)
    assert outcome(corruptions([usual, usual], [usual, now])) is expected
