"""Objects that are made from parts, as a class of Python's or NumPy's says: exceptions, arrays with attributes."""

from __future__ import annotations

import collections
from typing import Any

import msgspec
import numpy as np
import pytest

from detrain.python.codec.graph_files import unpack
from detrain.python.inspect.names import named_fields, named_tuple_by
from tests.codec.program import Observed, Stop
from tests.runtime.state_values import baseline_of, encode, restore


def test_views_of_one_memory_stay_so_or_are_named() -> None:
    masked, record = np.ma.masked_array(np.arange(4.0), mask=[0, 1, 0, 0]), np.zeros(2, [("a", "f4")]).view(np.recarray)
    world: dict[str, Any] = {}

    assert restore(encode({"whole": masked, "part": masked[2:], "plain": np.asarray(masked)[:3]}), world) == []
    world["whole"][2] = 9
    assert (world["part"][0], world["plain"][2]) == (9, 9)
    assert encode({"whole": record, "part": record.a}).not_captured != []


def test_an_array_whose_class_runs_code_is_not_made_and_named() -> None:
    assert encode({"value": np.arange(2).view(Observed)}).not_captured != []


def test_what_looks_at_bytes_of_pythons_is_named_without_a_framework_too() -> None:
    content = bytearray(8)

    assert encode({"content": content, "seen": np.frombuffer(content, np.uint8)}).not_captured != []


@pytest.mark.parametrize("current", [None, (n for n in [1])], ids=["none", "one that has not ended"])
def test_a_generator_that_has_ended_is_made_again(current: object) -> None:
    """Whatever made it, it yields nothing more; a loader that kept one from epoch to epoch was refused."""
    ended, world = (n for n in [1]), {"rows": current, "same": 0}
    assert list(ended) == [1]

    encoded = encode({"rows": ended, "same": ended}, baseline_of({"rows": None, "same": 0}))

    assert restore(encoded, world) == encoded.not_captured == []
    assert list(world["rows"]) == []  # type: ignore[call-overload]
    assert world["rows"] is world["same"]


@pytest.mark.parametrize("module", [__name__, "library_of_data"])
def test_named_tuples_of_a_class_that_the_loop_made_come_back_with_such_a_class(module: str) -> None:
    """A library's refused the resume; with the program's own it failed, and no warning had said so."""
    cls = collections.namedtuple("Made", "x y", module=module)  # type: ignore[misc]
    world: dict[str, Any] = {"points": [None]}

    encoded = encode({"points": [cls(1, 2.5), cls(3, 4.5)]}, baseline_of({"points": []}))

    assert restore(encoded, world) == encoded.not_captured == []
    first, second = world["points"]
    assert (first, second, first.x, second.y) == ((1, 2.5), (3, 4.5), 1, 4.5)
    assert type(first) is type(second)
    assert repr(first) == "Made(x=1, y=2.5)"


@pytest.mark.parametrize("text", ["a:Made(x,x)", "a:Made(for)", "a:Made(_x)", "a:Made(x y)", "a:Made(x,)", "a:for(x)"])
def test_a_text_that_names_no_class_of_named_tuples_makes_none(text: str) -> None:
    assert named_tuple_by(text, None) is None


def test_a_class_of_named_tuples_with_more_than_its_fields_is_none_of_these() -> None:
    plain: Any = collections.namedtuple("Made", "x")
    more: Any = collections.namedtuple("Made", "x", defaults=[1])
    derived: Any = type("Made", (plain,), {})

    assert [named_fields(cls) for cls in (plain, more, derived, tuple)] == [("x",), None, None, None]


def test_an_exception_has_its_cause_and_lacks_its_traceback_harmlessly() -> None:
    try:
        try:
            raise KeyError("no key")
        except KeyError as cause:
            raise Stop(3, why="late") from cause
    except Stop as caught:
        value = caught
    world: dict[str, Any] = {}

    encoded = encode({"value": value})

    assert {said.partition(" (")[2] for said in encoded.not_captured} == {"traceback, harmless)"}
    assert restore(encoded, world) == []
    made = world["value"]
    assert (made.args, made.why, made.__suppress_context__, made.__traceback__) == ((3,), "late", True, None)
    assert made.__cause__ is made.__context__
    assert repr(made.__cause__) == "KeyError('no key')"


@pytest.mark.parametrize("parts", [["no tuple", None, None, True], [[1], "no exception", None, True], [[1]]], ids=str)
def test_parts_that_make_no_exception_are_refused(parts: list[Any]) -> None:
    graph = unpack((encoded := encode({"value": ValueError("some")})).graph)
    node = next(each for each in graph.nodes if each.kind == "value")
    node.items = [each if not isinstance(each, list) else node.items[0] for each in parts]
    forged = msgspec.structs.replace(encoded, graph=graph.pack())

    assert restore(forged, {}) != []
