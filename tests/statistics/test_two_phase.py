"""Two-phase sampling: unbiased, as sure as it says, and cheaper than running all trials to their horizon."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detrain.faults.statistics.two_phase import LEAST, TwoPhaseShare, chosen, estimate_weighted, run_on

CLASSES = {"equal": (0.6, 0.002), "near": (0.3, 0.05), "far": (0.1, 0.5)}
"""Share in the population, and share of the event in it."""
TRUTH = sum(share * event for share, event in CLASSES.values())


def campaign(rng: np.random.Generator, trials: int, further: int) -> tuple[dict[str, int], dict[str, tuple[int, int]]]:
    counts = dict(zip(CLASSES, rng.multinomial(trials, [share for share, _ in CLASSES.values()]).tolist(), strict=True))
    ran = run_on(counts, {name: event for name, (_, event) in CLASSES.items()}, further)
    return counts, {name: (int(rng.binomial(count, CLASSES[name][1])), count) for name, count in ran.items()}


def estimate(classes: dict[str, int], second: dict[str, tuple[int, int]]) -> TwoPhaseShare | None:
    """Of trials that all count the same; `second`: of each class, how many had the event, and how many were run on."""
    counts = {name: (count, *second.get(name, (0, 0))) for name, count in classes.items()}
    names = np.repeat(list(counts), [count for count, _, _ in counts.values()])
    place = np.array([each for count, _, _ in counts.values() for each in range(count)], int)
    happened, ran = (np.array([counts[name][of] for name in names], int) for of in (1, 2))
    return estimate_weighted(names, np.ones(len(names)), place < ran, place < happened)


def held(campaigns: int, seed: int) -> tuple[float, float, float]:
    rng = np.random.default_rng(seed)
    found = [estimate(*campaign(rng, 2000, 500)) for _ in range(campaigns)]
    whole = [each for each in found if each is not None]
    assert len(whole) == campaigns
    covered = float(np.mean([each.low <= TRUTH <= each.high for each in whole]))
    return covered, float(np.mean([each.share for each in whole])), float(np.median([each.effective for each in whole]))


def test_a_few_campaigns_hold_the_truth() -> None:
    covered, mean, _ = held(60, seed=1)

    assert covered >= 0.86
    assert mean == pytest.approx(TRUTH, abs=0.006)


@pytest.mark.slow
def test_a_thousand_campaigns_hold_the_truth_and_few_trials_are_worth_many() -> None:
    covered, mean, effective = held(1000, seed=2)

    assert covered >= 0.935
    assert mean == pytest.approx(TRUTH, abs=0.001)
    assert effective > 2 * 500


STRATA = {"a": (0.85, 0.5), "b": (0.12, 0.3), "c": (0.03, 0.2)}
"""Share in the population, and share of the trials: the rare are drawn more often than they are."""
OFTEN = {"a": (0.7, 0.25, 0.05), "b": (0.4, 0.3, 0.3), "c": (0.1, 0.2, 0.7)}
"""Of each stratum, the shares of the classes."""


def campaign_of_strata(rng: np.random.Generator, trials: int, further: int) -> TwoPhaseShare | None:
    """A campaign whose classes tell of the event what strata do not; guesses are what the first phase could have."""
    of_trials = np.repeat(list(STRATA), [round(trials * share) for _, share in STRATA.values()])
    weights = np.array([STRATA[name][0] / STRATA[name][1] for name in of_trials])
    classes = np.array([rng.choice(list(CLASSES), p=OFTEN[name]) for name in of_trials])
    event = rng.random(len(classes)) < np.array([CLASSES[name][1] for name in classes])
    counts = {name: int((classes == name).sum()) for name in CLASSES}
    wanted = run_on(counts, {"equal": 0.01, "near": 0.1, "far": 0.6}, further)
    numbers = {name: np.flatnonzero(classes == name).tolist() for name in CLASSES}
    ran = np.zeros(len(classes), bool)
    for name, count in wanted.items():
        ran[chosen(numbers[name], count, int(rng.integers(1 << 40)))] = True
    return estimate_weighted(classes, weights, ran, event & ran)


def held_of_strata(campaigns: int, seed: int) -> tuple[float, float]:
    """Return how often intervals hold the truth, and by how many of their own errors the mean is beside it."""
    events = [event for _, event in CLASSES.values()]
    truth = sum(share * float(np.dot(OFTEN[name], events)) for name, (share, _) in STRATA.items())
    rng = np.random.default_rng(seed)
    found = [each for _ in range(campaigns) if (each := campaign_of_strata(rng, 1000, 300)) is not None]
    assert len(found) == campaigns
    shares = np.array([each.share for each in found])
    error = float((shares.mean() - truth) / (shares.std() / np.sqrt(campaigns)))
    return float(np.mean([each.low <= truth <= each.high for each in found])), error


def test_a_few_campaigns_of_strata_hold_the_truth() -> None:
    covered, error = held_of_strata(40, seed=3)

    assert covered >= 0.85
    assert abs(error) < 4


@pytest.mark.slow
def test_a_thousand_campaigns_of_strata_hold_the_truth_and_are_right_in_the_mean() -> None:
    covered, error = held_of_strata(1000, seed=4)

    assert covered >= 0.935
    assert abs(error) < 4


def test_trials_that_count_the_same_are_a_case_of_weights() -> None:
    classes = np.array(["a"] * 100 + ["b"] * 300)
    place = np.array([*range(100), *range(300)])
    ran = np.where(classes == "a", place < 50, place < 60)
    event = np.where(classes == "a", place < 20, place < 6)

    weighed = estimate_weighted(classes, np.full(400, 7.0), ran, event)
    counted = estimate({"a": 100, "b": 300}, {"a": (20, 50), "b": (6, 60)})

    assert weighed is not None
    assert counted is not None
    assert (weighed.share, weighed.effective) == pytest.approx((counted.share, counted.effective))


@given(st.dictionaries(st.sampled_from("abcde"), st.integers(0, 300), min_size=1), st.integers(1, 400), st.integers(0, 99))
def test_no_class_runs_more_than_it_has(classes: dict[str, int], trials: int, seed: int) -> None:
    guesses = dict(zip("abcde", np.random.default_rng(seed).random(5).tolist(), strict=True))

    found = run_on(classes, guesses, trials)

    assert all(min(LEAST, classes[name]) <= count <= classes[name] for name, count in found.items())
    least = sum(min(LEAST, count) for count in classes.values())
    assert sum(found.values()) == max(min(trials, sum(classes.values())), least)


def test_all_trials_run_on_are_a_plain_share() -> None:
    found = estimate({"a": 40, "b": 60}, {"a": (10, 40), "b": (3, 60)})

    assert found is not None
    assert found.share == pytest.approx(0.13)
    assert found.effective == pytest.approx(100)


def test_the_variance_is_cochrans() -> None:
    """12.2 for proportions: p (1 - p) / n' + sum of W² s² (1 / n - 1 / n')."""
    found = estimate({"a": 100, "b": 300}, {"a": (20, 50), "b": (6, 60)})

    assert found is not None
    p = 0.25 * 0.4 + 0.75 * 0.1
    variance = p * (1 - p) / 400 + 0.25**2 * (0.24 * 50 / 49) * (1 / 50 - 1 / 100) + 0.75**2 * (0.09 * 60 / 59) * (1 / 60 - 1 / 300)
    assert found.share == pytest.approx(p)
    assert found.effective == pytest.approx(p * (1 - p) / variance)


def test_a_class_without_a_trial_that_was_run_on_gives_no_estimate() -> None:
    assert estimate({"a": 10, "b": 5}, {"a": (1, 10)}) is None
    assert estimate({"a": 10, "b": 0}, {"a": (1, 10)}) is not None
    assert estimate({}, {}) is None


def test_more_of_a_class_are_the_same_ones_and_others() -> None:
    numbers = list(range(7, 60, 3))

    few, many = chosen(numbers, 5, seed=4), chosen(numbers, 9, seed=4)

    assert set(few) < set(many) < set(numbers)
    assert chosen(numbers, 5, seed=5) != few
    assert chosen(list(reversed(numbers)), 5, seed=4) == few


def test_each_trial_is_chosen_as_often() -> None:
    counts = np.zeros(20)
    for seed in range(2000):
        counts[chosen(range(20), 5, seed)] += 1

    assert abs(counts - 500).max() < 100
