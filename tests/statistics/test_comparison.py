"""Comparisons and latencies against published examples and other programs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, stats

from detrain.faults.statistics.comparison import newcombe, paired, score, unpaired
from detrain.faults.statistics.latency import latency

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


def test_the_score_interval_is_the_published_one() -> None:
    """Newcombe 1998 (Statistics in Medicine 17, 873), table II, example (a), method 6 is without (N - 1) / N."""
    found = unpaired((56, 70), (48, 80))

    assert found.interval == pytest.approx((0.0528, 0.3382), abs=5e-5)
    assert found.difference == pytest.approx(0.2)


@given(st.integers(2, 40), st.integers(2, 40), st.floats(0, 1), st.floats(0, 1), st.floats(-0.95, 0.95))
def test_the_score_is_by_the_likeliest_shares(n: int, m: int, one: float, other: float, delta: float) -> None:
    x, y = round(one * n), round(other * m)
    low, high = max(0.0, -delta), min(1.0, 1 - delta)

    def log(count: float, value: float) -> float:
        return count * np.log(value) if count else 0.0

    def unlikely(share: float) -> float:
        mine = min(max(share + delta, 1e-300), 1.0)
        share = min(max(share, 1e-300), 1.0)
        return -(log(x, mine) + log(n - x, max(1 - mine, 1e-300)) + log(y, share) + log(m - y, max(1 - share, 1e-300)))

    best = optimize.minimize_scalar(unlikely, bounds=(low, high), method="bounded", options={"xatol": 1e-13}).x
    shares = min([best, low, high], key=unlikely)
    variance = ((shares + delta) * (1 - shares - delta) / n + shares * (1 - shares) / m) * (n + m) / (n + m - 1)
    if variance > 1e-6:
        assert score((x, n), (y, m), delta) == pytest.approx((x / n - y / m - delta) / np.sqrt(variance), rel=1e-3, abs=1e-4)


@pytest.mark.parametrize(("first", "second"), [((0, 10), (10, 10)), ((10, 10), (10, 10)), ((0, 7), (0, 9)), ((3, 3), (0, 5))])
def test_shares_at_the_ends_have_intervals_too(first: tuple[int, int], second: tuple[int, int]) -> None:
    found = unpaired(first, second)
    low, high = found.interval

    assert -1 <= low <= found.difference <= high <= 1
    assert low < high


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
