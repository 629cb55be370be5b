"""Intervals, sizes and allocations against published examples and against scipy's own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from detrain.base.errors import UsageError
from detrain.faults.statistics.estimates import Sample, neyman, trials_for
from detrain.faults.statistics.intervals import Looks, library, share_interval, wilson

COUNTS = st.integers(1, 400).flatmap(lambda total: st.tuples(st.integers(0, total), st.just(total)))


@given(COUNTS)
def test_wilsons_interval_is_scipys_and_the_one_by_hand(counts: tuple[int, int]) -> None:
    count, total = counts
    expected = stats.binomtest(count, total).proportion_ci(0.95, "wilson")

    assert share_interval(count, total) == pytest.approx((expected.low, expected.high), abs=1e-9)
    assert wilson(count, total) == pytest.approx((expected.low, expected.high), abs=1e-9)


@given(COUNTS, st.sampled_from([0.9, 0.95, 0.999]))
def test_the_interval_of_clopper_and_pearson_is_scipys(counts: tuple[int, int], confidence: float) -> None:
    count, total = counts
    expected = stats.binomtest(count, total).proportion_ci(confidence, "exact")

    assert share_interval(count, total, confidence, "beta") == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_without_a_trial_nothing_is_known() -> None:
    assert share_interval(0, 0) == (0.0, 1.0)


def test_sample_sizes_are_the_usual_ones() -> None:
    """nvbitfi's params.py has 384 for 5 % and 1,000 for 3.1 % at 95 %."""
    assert (trials_for(0.05), trials_for(0.01)) == (385, 9604)
    assert trials_for(0.031) == pytest.approx(1000, abs=1)


@pytest.mark.parametrize("half_width", [0, 1, -0.1])
def test_a_half_width_that_is_none_is_refused(half_width: float) -> None:
    with pytest.raises(UsageError, match="half width"):
        trials_for(half_width)


@given(st.lists(st.tuples(st.floats(0.01, 1), st.floats(0.02, 0.98)), min_size=2, max_size=6), st.integers(0, 1000))
def test_no_other_allocation_has_less_variance_than_neymans(strata: list[tuple[float, float]], seed: int) -> None:
    many = 10**6
    shares = {str(number): share for number, (share, _) in enumerate(strata)}
    found = neyman(shares, {str(number): (round(p * many), many) for number, (_, p) in enumerate(strata)})

    def variance(allocation: list[float]) -> float:
        return sum(w * w * p * (1 - p) / q for (w, p), q in zip(strata, allocation, strict=True))

    other = np.random.default_rng(seed).dirichlet(np.ones(len(strata))) + 1e-6
    assert sum(found.values()) == pytest.approx(1)
    assert variance(list(found.values())) <= variance(list(other / other.sum())) * (1 + 1e-3)


def test_a_stratum_in_which_nothing_was_seen_is_not_left_out() -> None:
    found = neyman({"a": 0.5, "b": 0.5}, {"a": (0, 20), "b": (10, 20)})

    assert 0.1 < found["a"] < found["b"]


def test_looks_are_at_halvings_and_their_errors_are_that_of_all() -> None:
    looks = Looks(4096)

    assert looks.at == (32, 64, 128, 256, 512, 1024, 2048, 4096)
    assert sum(looks.error(place) for place in looks.at) == pytest.approx(0.05)
    assert sum(Looks(4096, cells=5).error(place) for place in looks.at) == pytest.approx(0.01)
    assert Looks(20).at == (20,)


def test_the_last_look_is_as_wide_as_was_measured() -> None:
    looks = Looks(4096)
    low, high = share_interval(410, 4096, 1 - looks.error(4096), "beta")
    plain_low, plain_high = share_interval(410, 4096, method="beta")

    assert (high - low) / (plain_high - plain_low) == pytest.approx(1.14, abs=0.01)
    assert looks.has_reached((low, high), 0.02)
    assert not looks.has_reached((low, high), 0.01)


def test_a_library_that_is_missing_is_named_with_its_extra() -> None:
    with pytest.raises(UsageError, match=r"need no_such_library.*\n.*detrain\[campaign\]"):
        library("no_such_library.stats")


@pytest.mark.parametrize("rare", [1, 5])
def test_an_event_that_was_seen_in_a_rare_stratum_alone_may_be_elsewhere_too(rare: int) -> None:
    """Of a thousand trials without it, three in a thousand may have it (Hanley and Lippman-Hand 1983)."""
    strata = np.array(["usual"] * 1000 + ["rare"] * rare)
    sample = Sample(np.ones(len(strata)), strata, {"usual": 0.99999, "rare": 0.00001})

    found = sample.estimate(strata == "rare")

    assert found.share == pytest.approx(0.00001)
    assert found.low <= 0.00001
    assert 0.002 < found.high < 0.006
