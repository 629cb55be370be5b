"""Order of sets: a set that is made again iterates, pops and grows as the one that it was, in this process and in a
fresh one.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detrain.base.set_order import can_become, fill, freeze, frozen_recipe, read_layout, set_recipe
from tests.e2e.runs import said_by
from tests.runtime import set_cases


class Collides:
    """An element that lies where others want to lie."""

    def __init__(self, code: int) -> None:
        self.code = code

    def __hash__(self) -> int:
        return self.code


elements = st.one_of(st.integers(-40, 40), st.integers(), st.text(max_size=2), st.builds(Collides, st.integers(0, 9)))
acts = st.lists(st.tuples(st.sampled_from(["add", "add", "add", "discard", "pop", "update", "clear"]), elements), max_size=60)


def act(value: set[Any], steps: list[tuple[str, Any]]) -> list[Any]:
    """Change a set, and return what came out of it."""
    out: list[Any] = []
    for name, element in steps:
        if name == "pop":
            out.append(value.pop() if value else None)
        elif name == "update":
            value.update([element], {1: 1, 2: 2})
        elif name == "clear" and len(value) < 30:
            value.clear()
        elif name != "clear":
            getattr(value, name)(element)
    return out


def ids(value: Any) -> list[int]:
    return list(map(id, value))


@given(acts, acts, acts)
@settings(max_examples=250, deadline=None)
def test_a_set_that_is_made_again_cannot_be_told_from_the_first(past: list[Any], other: list[Any], future: list[Any]) -> None:
    value: set[Any] = set()
    act(value, past)
    how, is_exact = set_recipe(value)
    again: set[Any] = set()
    act(again, other)
    if is_exact and can_become(again, how):
        assert fill(again, list(value), how)
        assert ids(again) == ids(value)
        if how is not None:
            assert ids(act(again, future)) == ids(act(value, future))
            assert ids(again) == ids(value)


@given(acts)
@settings(max_examples=250, deadline=None)
def test_every_set_that_adding_and_taking_makes_can_be_made_again(past: list[Any]) -> None:
    value: set[Any] = set()
    act(value, past)
    _how, is_exact = set_recipe(value)
    assert is_exact


@given(acts, st.sampled_from([frozenset, lambda value: frozenset(list(value)), lambda value: frozenset(dict.fromkeys(value))]))
@settings(max_examples=150, deadline=None)
def test_a_frozen_set_that_is_made_again_has_the_same_order(past: list[Any], kind: Any) -> None:
    source: set[Any] = set()
    act(source, past)
    value = kind(source)
    way, is_exact = frozen_recipe(value)
    assert is_exact
    assert (ids(freeze(list(value), way)) == ids(value)) is is_exact


@pytest.mark.parametrize("size", [5, 8, 19, 20, 40, 77, 100, 300, 1000])
@pytest.mark.parametrize(
    "kind", [frozenset, lambda items: frozenset(iter(items)), lambda items: frozenset(items) | frozenset("ab")]
)
def test_a_frozen_set_of_any_size_is_made_again(size: int, kind: Any) -> None:
    for start in range(0, 20 * size, size):
        value = kind([datetime.date.fromordinal(n + 1) for n in range(start, start + size)])
        way, is_exact = frozen_recipe(value)
        assert is_exact
        assert ids(freeze(list(value), way)) == ids(value)


def test_a_set_that_has_popped_is_not_taken_for_one_that_has_not() -> None:
    popped = {1, 2}
    popped.pop()
    assert not fill(popped, [1, 2], None)
    assert popped == {1, 2}


@given(st.sets(st.integers(0, 200), min_size=1, max_size=80), st.integers(0, 70))
@settings(deadline=None)
def test_pop_goes_on_where_it_was(items: set[int], count: int) -> None:
    for _ in range(min(count, len(items) - 1)):
        items.pop()
    again = {-1, -2}
    assert fill(again, list(items), set_recipe(items)[0])
    assert [again.pop() for _ in range(len(again))] == [items.pop() for _ in range(len(items))]


@given(st.sets(st.integers(), max_size=40))
@settings(deadline=None)
def test_the_layout_names_the_slots_in_order(items: set[int]) -> None:
    layout = read_layout(items)
    assert layout is not None
    size, live, dummies, _finger = layout
    assert live == sorted(live)
    assert len(live) == len(items)
    assert not set(live) & set(dummies)
    assert all(0 <= slot < size for slot in [*live, *dummies])


def test_the_methods_of_a_subclass_are_not_run() -> None:
    class Loud(set[Any]):
        def add(self, item: object) -> None:
            raise AssertionError(item)

        clear = discard = pop = __iter__ = __len__ = update = add  # type: ignore[assignment]

    value = Loud([9, 1, 17])
    layout = read_layout(value)
    assert layout == read_layout({9, 1, 17})
    again = Loud()
    assert fill(again, [*set.__iter__(value)], layout)
    assert list(set.__iter__(again)) == list(set.__iter__(value))


@pytest.mark.parametrize(
    "layout",
    [
        [8, [0, 1], [], 0],  # other slots than the hashes lead to
        [1 << 40, [1, 2, 3], [], 0],
        [7, [1, 2, 3], [], 0],
        [8, [1, 2, 300], [], 0],
        [8, [1, 2, 3], [1], 0],
        [8],
        [],
        ["8", [1, 2, 3], [], 0],
        [8, [1, 2, 3], [], None],
    ],
)
def test_a_layout_that_cannot_be_is_refused_and_the_elements_are_there(layout: Any) -> None:
    target = {7}
    assert not fill(target, [1, 2, 3], layout)
    assert target == {1, 2, 3}


def run(seed: str, *arguments: str) -> str:
    return said_by("runtime.set_cases", *arguments, PYTHONHASHSEED=seed)


def test_sets_iterate_pop_and_grow_alike_in_a_fresh_process(tmp_path: Path) -> None:
    wanted = run("5", "encode", str(tmp_path / "graph"))
    assert wanted.count("\n") == 4 * set_cases.COUNT
    assert run("5", "restore", str(tmp_path / "graph")) == wanted


def test_another_hash_seed_is_reported(tmp_path: Path) -> None:
    run("5", "encode", str(tmp_path / "graph"))
    assert "missing" in run("6", "restore", str(tmp_path / "graph"))
