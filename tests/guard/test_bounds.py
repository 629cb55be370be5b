"""The bounds: what theory says holds for optimizers computed in NumPy, and what is no number passes no comparison."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detrain.adapters.api import Watched
from detrain.guard.bounds import ASSUMED, MARGIN, WINDOW, Bounds

SOUND = np.array([1.0, 2.0])
WATCHED = [Watched("m", "moments", 1), Watched("v", "squares", 2)]


def seen(watched: list[Watched], norms: np.ndarray, steps: int = WINDOW) -> Bounds:
    """Return bounds that have watched so many steps."""
    bounds = Bounds({})
    for _ in range(steps):
        assert bounds.judge(watched, norms) == []
    return bounds


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_no_number_is_an_alarm_from_the_first_step_on(bad: float) -> None:
    [excess] = Bounds({}).judge(WATCHED, np.array([1.0, bad]))
    assert (excess.key, excess.kind) == ("v", "not finite")


def test_a_norm_may_grow_by_the_margin_and_no_more() -> None:
    bounds = seen(WATCHED, SOUND)
    assert bounds.judge(WATCHED, SOUND * [0.999 * MARGIN, 0.999 * MARGIN**2]) == []
    bounds = seen(WATCHED, SOUND)
    assert [excess.key for excess in bounds.judge(WATCHED, SOUND * 1.001 * MARGIN)] == ["m"]
    assert [excess.key for excess in bounds.judge(WATCHED, SOUND * 1.001 * MARGIN**2)] == ["m", "v"]


def test_in_the_first_steps_what_no_training_has_is_an_alarm() -> None:
    bounds = seen(WATCHED, SOUND, 3)
    assert bounds.judge(WATCHED, SOUND * 0.4 * [ASSUMED, ASSUMED**2]) == []
    [excess] = seen(WATCHED, SOUND, 3).judge(WATCHED, SOUND * [1.1 * ASSUMED, 1.0])
    assert (excess.key, excess.kind, excess.bound) == ("m", "assumed", ASSUMED)
    later = seen(WATCHED, SOUND)
    [excess] = later.judge([*WATCHED, Watched("m2", "moments", 1)], np.array([1.0, 2.0, 1.1 * ASSUMED]))
    assert (excess.key, excess.kind) == ("m2", "assumed")


def test_what_was_large_before_the_first_step_may_be() -> None:
    bounds = Bounds({})
    bounds.begin(WATCHED, np.array([1e30, 0.0]))
    assert bounds.judge(WATCHED, np.array([1e32, 0.0])) == []
    assert bounds.judge(WATCHED, np.array([1e36, 0.0])) != []


def test_what_is_above_its_bound_is_not_learned() -> None:
    bounds = seen(WATCHED, SOUND)
    for _ in range(3):
        assert bounds.judge(WATCHED, SOUND * 1e9) != []
    assert bounds.state() == {"moments": (WINDOW, 1.0), "squares": (WINDOW, 2.0)}


def test_steps_in_which_nothing_is_there_yet_are_not_counted() -> None:
    bounds = seen(WATCHED, np.zeros(2), 100)
    assert bounds.judge(WATCHED, SOUND * 1e6) == []


def test_a_resumed_run_has_the_bounds_that_it_had() -> None:
    bounds = Bounds({})
    bounds.set_state(seen(WATCHED, SOUND).state())
    assert bounds.judge(WATCHED, SOUND) == []
    assert bounds.judge(WATCHED, SOUND * 1e9) != []


def test_what_comes_later_begins_with_any_value_and_has_a_bound_from_then_on() -> None:
    more = [*WATCHED, Watched("other m", "moments", 1)]
    bounds = seen(WATCHED, SOUND)
    assert bounds.judge(more, np.array([1.0, 2.0, 0.0])) == []
    assert [excess.key for excess in bounds.judge(more, np.array([1e9, 2.0, 0.0]))] == ["m"]
    assert [excess.key for excess in bounds.judge(more, np.array([1.0, 2.0, math.nan]))] == ["other m"]
    assert bounds.judge(more, np.array([1.0, 2.0, 1e6])) == []
    assert [excess.key for excess in bounds.judge(more, np.array([1.0, 2.0, 1.001e9]))] == ["other m"]
    assert bounds.judge(list(more), np.array([1.0, 2.0, 1.001e9])) != []  # nothing is new in another list of the same


def test_a_value_that_is_taken_for_sound_is_none_the_next_time() -> None:
    bounds = seen(WATCHED, SOUND)
    bounds.admit(bounds.judge(WATCHED, SOUND * 1e9))
    assert bounds.judge(WATCHED, SOUND * 1e9) == []


def test_groups_of_the_same_variables_share_a_bound_and_a_new_variable_takes_part() -> None:
    bounds = seen(WATCHED, SOUND)
    more = [*WATCHED, Watched("m2", "moments", 1)]
    assert bounds.judge(more, np.array([1.0, 2.0, 900.0])) == []
    assert [excess.key for excess in bounds.judge(more, np.array([1.0, 2.0, 1e9]))] == ["m2"]


@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 60),
    st.floats(0.0, 0.99),
    st.floats(0.5, 0.9999),
    st.sampled_from([1e-12, 1e-3, 1.0, 1e6]),
    st.sampled_from([1, 7, 1000]),
)
@settings(max_examples=150, deadline=None)
def test_the_first_moment_is_bounded_by_the_second_one(
    seed: int, steps: int, first: float, second: float, scale: float, size: int
) -> None:
    if first * first >= second:
        return
    random = np.random.default_rng(seed)
    m, v = np.zeros(size, np.float32), np.zeros(size, np.float32)
    constant = (1 - first) / math.sqrt((1 - second) * (1 - first * first / second))
    watched = [
        Watched("m", "m", 1, partner="v", factor=1.01 * constant * size**0.25, unseen=math.sqrt(size) * 2e-19),
        Watched("v", "v", 2),
    ]
    bounds = Bounds({})
    for _ in range(steps):
        gradient = (random.normal(size=size) * scale * 10 ** random.uniform(-3, 3)).astype(np.float32)
        m += (gradient - m) * np.float32(1 - first)
        v += (gradient * gradient - v) * np.float32(1 - second)
        norms = [float(np.sqrt(2 * np.float64(np.float32(0.5) * np.sum(np.square(x), dtype=np.float32)))) for x in (m, v)]
        found = bounds.judge(watched, np.array(norms))
        assert [excess for excess in found if excess.kind == "derived"] == []


def test_a_first_moment_that_is_too_large_for_the_second_one_is_seen_at_once() -> None:
    watched = [Watched("m", "m", 1, partner="v", factor=7.3, unseen=2e-19), Watched("v", "v", 2)]
    [excess] = Bounds({}).judge(watched, np.array([8.0, 1.0]))
    assert (excess.key, excess.kind, excess.bound) == ("m", "derived", pytest.approx(7.3))


@pytest.mark.parametrize("moment", [1.0, math.nan])
def test_a_second_moment_that_is_no_number_leaves_the_first_one_its_other_bounds(moment: float) -> None:
    watched = [Watched("m", "m", 1, limit=2.0, partner="v", factor=7.3, unseen=2e-19), Watched("v", "v", 2)]
    found = Bounds({}).judge(watched, np.array([moment, math.nan]))
    assert [excess.key for excess in found] == (["v"] if moment == 1.0 else ["m", "v"])
    assert {excess.kind for excess in found} == {"not finite"}
    assert all(math.isfinite(excess.bound) for excess in found)
