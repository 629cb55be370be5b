"""Simulated campaigns: intervals hold the truth as often as they say."""

from __future__ import annotations

import numpy as np
import pytest

from detrain.faults.statistics.estimates import Estimate, Sample, neyman
from detrain.faults.statistics.intervals import Looks, share_interval, wilson

SHARES = {"a": 0.55, "b": 0.3, "c": 0.12, "d": 0.03}
EVENTS = {"a": 0.004, "b": 0.03, "c": 0.15, "d": 0.6}
TRUTH = sum(SHARES[name] * EVENTS[name] for name in SHARES)
MARGIN = 0.015
"""How much less often than it says an interval of 1,000 simulated campaigns may hold: above twice their own error."""


def campaign(rng: np.random.Generator, allocation: dict[str, int]) -> tuple[Sample, np.ndarray]:
    strata = np.repeat(list(allocation), list(allocation.values()))
    events = np.concatenate([rng.random(count) < EVENTS[name] for name, count in allocation.items()])
    return Sample(np.ones(len(strata)), strata, SHARES), events


def split(shares: dict[str, float], trials: int) -> dict[str, int]:
    return {name: max(round(share * trials), 5) for name, share in shares.items()}


def coverage(campaigns: int, trials: int, how: str, seed: int) -> tuple[float, float]:
    """Return how often intervals hold the truth, and how wide they are in the mean."""
    rng = np.random.default_rng(seed)
    found: list[Estimate] = []
    for _ in range(campaigns):
        shares = SHARES
        if how == "neyman":
            sample, events = campaign(rng, dict.fromkeys(SHARES, 40))
            counts = {name: (int(events[sample.strata == name].sum()), 40) for name in SHARES}
            shares = neyman(SHARES, counts)
        sample, events = campaign(rng, split(shares, trials))
        found.append(sample.estimate(events))
    return float(np.mean([each.low <= TRUTH <= each.high for each in found])), float(
        np.mean([each.high - each.low for each in found])
    )


@pytest.mark.parametrize("how", ["proportional", "neyman"])
def test_a_few_campaigns_hold_the_truth(how: str) -> None:
    held, _ = coverage(60, 600, how, seed=1)

    assert held >= 0.86  # of 60 at 95 %, fewer are one in a thousand


@pytest.mark.slow
@pytest.mark.parametrize("trials", [400, 1500])
@pytest.mark.parametrize("how", ["proportional", "neyman"])
def test_a_thousand_campaigns_hold_the_truth(how: str, trials: int) -> None:
    held, _ = coverage(1000, trials, how, seed=2)

    assert held >= 0.95 - MARGIN


@pytest.mark.slow
def test_strata_and_their_best_shares_make_intervals_narrower() -> None:
    rng = np.random.default_rng(5)
    plain = [wilson(int(rng.binomial(1000, TRUTH)), 1000) for _ in range(300)]

    _, proportional = coverage(300, 1000, "proportional", seed=3)
    _, best = coverage(300, 1000, "neyman", seed=4)

    assert best < proportional < np.mean([high - low for low, high in plain])


def looks_hold(campaigns: int, share: float, seed: int) -> float:
    """Return in how many campaigns no look leaves out the truth."""
    looks = Looks(2048)
    rng = np.random.default_rng(seed)
    known: dict[tuple[int, int], bool] = {}

    def holds(count: int, trials: int) -> bool:
        if (count, trials) not in known:
            low, high = share_interval(count, trials, 1 - looks.error(trials), "beta")
            known[count, trials] = low <= share <= high
        return known[count, trials]

    held = 0
    for _ in range(campaigns):
        sums = np.cumsum(rng.random(2048) < share)
        held += all(holds(int(sums[trials - 1]), trials) for trials in looks.at)
    return held / campaigns


def test_no_look_of_a_few_campaigns_leaves_out_the_truth_too_often() -> None:
    assert looks_hold(100, 0.03, seed=6) >= 0.87


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.005, 0.03, 0.3])
def test_no_look_of_a_thousand_campaigns_leaves_out_the_truth_too_often(share: float) -> None:
    assert looks_hold(1000, share, seed=7) >= 0.95 - MARGIN


def test_looking_after_each_trial_would_leave_it_out() -> None:
    rng = np.random.default_rng(8)
    wrong = 0
    for _ in range(100):
        sums = np.cumsum(rng.random(2000) < 0.3)
        wrong += any(not low <= 0.3 <= high for n in range(50, 2001, 10) for low, high in [wilson(int(sums[n - 1]), n)])

    assert wrong > 15


def test_a_part_of_the_population_is_estimated_by_the_weights() -> None:
    """Against the sums written out: two strata, of which one was drawn from nine times as often as it is."""
    rng = np.random.default_rng(9)
    strata = np.repeat(["a", "b"], [900, 100])
    layer = rng.random(1000) < 0.4
    events = rng.random(1000) < np.where(strata == "a", 0.1, 0.5)
    found = Sample(np.ones(1000), strata, {"a": 0.5, "b": 0.5}).estimate(events, layer)

    weight = {"a": 0.5 / 900, "b": 0.5 / 100}
    total = sum(weight[s] for s, inside in zip(strata, layer, strict=True) if inside)
    with_event = sum(weight[s] for s, inside, event in zip(strata, layer, events, strict=True) if inside and event)
    assert found.share == pytest.approx(with_event / total)
    assert (found.trials, found.count) == (int(layer.sum()), int((layer & events).sum()))
    assert found.low < with_event / total < found.high


def test_equal_trials_of_one_stratum_have_wilsons_interval() -> None:
    events = np.arange(200) < 30

    found = Sample(np.ones(200), np.repeat(["all"], 200)).estimate(events)

    assert (found.low, found.high) == pytest.approx(wilson(30, 200))
    assert found.effective == 200


def test_too_few_trials_of_different_weights_say_nothing() -> None:
    weights = np.array([100.0] * 3 + [1.0] * 200)
    strata = np.repeat(["rare", "often"], [3, 200])

    found = Sample(weights, strata).estimate(np.arange(203) % 2 == 0)

    assert (found.share, found.low, found.high) == (None, 0.0, 1.0)
    assert found.effective == pytest.approx((300 + 200) ** 2 / (3 * 10_000 + 200))


def test_strata_without_a_trial_are_said() -> None:
    found = Sample(np.ones(50), np.repeat(["a"], 50), {"a": 0.8, "b": 0.2}).estimate(np.arange(50) < 5)

    assert found.covered == pytest.approx(0.8)


def test_without_a_trial_in_a_part_nothing_is_said() -> None:
    found = Sample(np.ones(5), np.repeat(["a"], 5)).estimate(np.ones(5, bool), np.zeros(5, bool))

    assert (found.share, found.low, found.high, found.trials) == (None, 0.0, 1.0, 0)
