"""Comparisons and latencies against published examples and other programs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from detrain.faults.statistics.estimates import latency, newcombe, paired

CELLS = st.tuples(*[st.integers(0, 30)] * 4).filter(lambda cells: sum(cells) > 0)


def pairs(a: int, b: int, c: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    first = np.repeat([True, True, False, False], [a, b, c, d])
    second = np.repeat([True, False, True, False], [a, b, c, d])
    return first, second


def test_newcombes_interval_is_the_published_one() -> None:
    """Fagerland, Lydersen and Laake 2014 (Statistics in Medicine 33, 2850), airway hyper-responsiveness."""
    found = paired(*pairs(1, 1, 7, 12))

    assert found.difference == pytest.approx(-6 / 21)
    assert found.interval == pytest.approx((-0.507, -0.026), abs=5e-4)
    assert (found.both, found.first_only, found.second_only, found.trials) == (1, 1, 7, 21)


@given(CELLS)
def test_the_exact_test_is_the_binomial_one_of_what_differs(cells: tuple[int, int, int, int]) -> None:
    _, b, c, _ = cells
    expected = stats.binomtest(b, b + c).pvalue if b + c else 1.0

    found = paired(*pairs(*cells))

    assert found.p_value == pytest.approx(min(expected, 1.0))
    low, high = found.interval
    assert -1 <= low <= found.difference <= high <= 1


@given(CELLS)
def test_exchanging_the_campaigns_turns_the_interval_round(cells: tuple[int, int, int, int]) -> None:
    a, b, c, d = cells
    low, high = newcombe(a, b, c, d)

    assert newcombe(a, c, b, d) == pytest.approx((-high, -low))


def test_without_pairs_nothing_is_said() -> None:
    empty = np.zeros(0, bool)

    assert paired(empty, empty).interval == (-1.0, 1.0)


def test_the_latency_is_the_product_of_what_is_left() -> None:
    """By hand: of six, two are seen at once, one is seen after two steps, two after three; one's trial ends unseen."""
    found = latency(np.array([1, 1, 2, 3, 3, 2]), np.array([True, True, True, True, False, False]))

    assert found.steps == (1, 2, 3)
    assert found.seen == pytest.approx((1 / 3, 1 - 2 / 3 * 3 / 4, 1 - 2 / 3 * 3 / 4 * 1 / 2))
    assert found.median in (2.0, 3.0)


def test_where_fewer_than_half_are_seen_there_is_no_median() -> None:
    found = latency(np.array([1, 5, 5, 5, 5]), np.array([True, False, False, False, False]))

    assert (found.steps, found.median) == ((1,), None)
    assert latency(np.array([5, 5]), np.array([False, False])).seen == ()
