"""The one walk over things: each once, in an order that the caller chooses."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detrain.python.inspect.held import walk

graphs = st.lists(st.lists(st.integers(0, 7), max_size=4), min_size=8, max_size=8)
"""What is below each of eight things."""


def deep(graph: list[list[int]], first: list[int], seen: set[int]) -> Iterator[int]:
    """An oracle: by calls of itself."""
    for thing in first:
        if thing not in seen:
            seen.add(thing)
            yield thing
            yield from deep(graph, graph[thing], seen)


def wide(graph: list[list[int]], first: list[int]) -> list[int]:
    """An oracle: by rounds."""
    found: list[int] = []
    while first:
        found += (new := [thing for thing in dict.fromkeys(first) if thing not in found])
        first = [below for thing in new for below in graph[thing]]
    return found


@given(graphs, st.lists(st.integers(0, 7), max_size=3))
def test_a_walk_meets_each_thing_once_in_the_order_of_a_program(graph: list[list[int]], first: list[int]) -> None:
    assert list(walk(first, graph.__getitem__, lambda thing: thing)) == list(deep(graph, first, set()))


@given(graphs, st.lists(st.integers(0, 7), max_size=3))
def test_a_wide_walk_goes_by_rounds(graph: list[list[int]], first: list[int]) -> None:
    assert list(walk(first, graph.__getitem__, lambda thing: thing, is_wide=True)) == wide(graph, first)


def test_what_has_no_number_is_met_as_often_as_it_is_there() -> None:
    assert list(walk([[1, 1], 1], lambda thing: thing if isinstance(thing, list) else [])) == [[1, 1], 1, 1, 1]


@pytest.mark.parametrize("is_wide", [False, True])
def test_it_ends_behind_so_many_things(is_wide: bool) -> None:
    assert list(walk([0], lambda thing: [thing + 1], lambda thing: thing, is_wide=is_wide, most=5)) == [0, 1, 2, 3, 4]


def test_a_thing_is_asked_for_what_is_below_it_when_the_next_one_is_wanted() -> None:
    asked: list[int] = []

    def below(thing: int) -> list[int]:
        asked.append(thing)
        return [thing + 1]

    assert list(itertools.islice(walk([0], below, lambda thing: thing), 2)) == [0, 1]
    assert asked == [0]
