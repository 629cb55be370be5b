"""Objects of the program's classes that derive from values: `class Meters(float)`."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import json
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detrain.base.errors import CheckpointDamaged
from detrain.python.codec.api import Baseline
from detrain.python.codec.graph_files import unpack
from detrain.python.codec.in_process import LiveDecoder, LiveEncoder
from tests.runtime.state_values import NO_FRAMEWORK, baseline_of, encode, restore


class Meters(float):
    """Has attributes, as most such classes."""


class Count(int):
    """Is made from more than its value."""

    def __new__(cls, value: int, unit: str) -> Count:
        made = super().__new__(cls, value)
        made.unit = unit
        return made

    unit: str


class Slotted(float):
    __slots__ = ("unit",)


class Label(str):
    __slots__ = ()


class Blob(bytes):
    def __repr__(self) -> str:
        raise AssertionError("no code of the program is run")


class Wave(complex): ...


class Pair(tuple[Any, ...]):
    def __iter__(self) -> Any:
        raise AssertionError("no code of the program is run")


class Day(datetime.date): ...


class Moment(datetime.datetime): ...


class Money(decimal.Decimal): ...


class Stop(Exception):
    def __init__(self, epoch: int, *, why: str) -> None:
        super().__init__(epoch)
        self.why = why


class Grid(np.ndarray): ...


UTC = datetime.UTC
MAKES: dict[str, Callable[[int], Any]] = {
    "float": lambda number: Meters(number / 3),
    "int": lambda number: Count(number << 70, f"unit {number}"),
    "slots": lambda number: Slotted(-0.0 if number == 2 else 0.0),
    "str": lambda number: Label(f"\ud800{number}"),
    "bytes": lambda number: Blob(b"%d" % number),
    "complex": lambda number: Wave(number, -0.0),
    "tuple": lambda number: Pair((number, str(number))),
    "date": lambda number: Day(2026, 1, 1 + number),
    "datetime": lambda number: Moment(2026, 1, 1 + number, tzinfo=UTC, fold=1),
    "Decimal": lambda number: Money(f"{number}.10"),
    "exception": lambda number: Stop(number, why="late"),
    "exception of Python's": lambda number: ValueError("some", number),
    "exception of the system's": lambda number: FileNotFoundError(2, "no file", f"file {number}"),
    "exception of a library's": lambda number: json.JSONDecodeError("no number", "some text", number),
    "array": lambda number: np.arange(number).view(Grid),
    "matrix": lambda number: np.full((1, 2), number).view(np.matrix),
    "masked array": lambda number: np.ma.masked_array([number, 1.0], mask=[False, True], fill_value=number),
    "record array": lambda number: np.array([(number, 2.0)], [("a", "i4"), ("b", "f4")]).view(np.recarray),
}


def shown(value: Any) -> tuple[object, ...]:
    """What `copy` and `pickle` are told of a value, by the class that it derives from: an oracle beside the codec."""
    if isinstance(value, BaseException):
        return type(value), str(value), repr(value.args), getattr(value, "filename", None)
    base = type(value) if isinstance(value, np.ndarray) else type(value).__mro__[1]
    return type(value), repr(base.__reduce_ex__(value, 4)[1:])


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES.keys())
def test_one_that_the_loop_has_made_comes_back(make: Callable[[int], Any]) -> None:
    value = make(2)
    if hasattr(value, "__dict__"):
        value.seen = [1, 2]
    world: dict[str, Any] = {}

    encoded = encode({"one": value, "other": value}, baseline_of({}))

    assert encoded.not_captured == []
    assert restore(encoded, world) == []
    assert world["one"] is world["other"]
    assert shown(world["one"]) == shown(value)
    assert getattr(world["one"], "seen", None) == getattr(value, "seen", None)


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES.keys())
def test_one_that_is_still_the_same_is_filled_in_place(make: Callable[[int], Any]) -> None:
    after, before = {"value": make(2)}, {"value": make(2)}
    baseline = baseline_of(after)
    if hasattr(after["value"], "__dict__"):
        after["value"].seen = [1]
        before["value"].late = True
    live = before["value"]

    assert restore(encode(after, baseline), before, baseline_of({"value": live})) == []
    assert before["value"] is live
    assert repr(getattr(live, "__dict__", {})) == repr(getattr(after["value"], "__dict__", {}))


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES.keys())
def test_one_that_was_replaced_is_another_object_but_an_array_is_filled(make: Callable[[int], Any]) -> None:
    after, before = {"value": make(2)}, {"value": make(1)}
    live, was = before["value"], shown(before["value"])

    assert restore(encode(after, baseline_of({"value": make(1)})), before, baseline_of(before)) == []
    assert shown(before["value"]) == shown(after["value"])
    is_filled = isinstance(live, np.ndarray) and live.shape == after["value"].shape
    assert (before["value"] is live) == is_filled
    assert is_filled or shown(live) == was


@given(st.floats() | st.just(-0.0), st.integers(), st.text(), st.binary())
def test_bits_are_kept(number: float, count: int, text: str, content: bytes) -> None:
    world: dict[str, Any] = {}
    values = [Meters(number), Count(count, text), Label(text), Blob(content)]

    assert restore(encode({"values": values}), world) == []
    assert list(map(shown, world["values"])) == list(map(shown, values))


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES.keys())
def test_attributes_go_back_in_the_process(make: Callable[[int], Any]) -> None:
    value = make(2)
    if not hasattr(value, "__dict__"):
        pytest.skip("it has none")
    value.seen = 1
    encoder = LiveEncoder(NO_FRAMEWORK, Baseline())
    live = encoder.finish_live({"value": encoder.encode(value, "value")})
    value.seen = 2

    decoder = LiveDecoder(live, NO_FRAMEWORK, Baseline())
    assert decoder.decode(decoder.roots["value"], None, "value") is value
    assert value.seen == 1
    assert decoder.missing == []


class Holder(logging.Formatter):
    """Stays as the process has it, being of a class of Python's: what its methods store comes back where it is data."""

    def __init__(self) -> None:
        super().__init__()
        self.best: Any = None


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES.keys())
def test_one_that_an_object_holds_comes_back(make: Callable[[int], Any]) -> None:
    after, before = {"holder": Holder()}, {"holder": Holder()}
    baseline = baseline_of(after)
    after["holder"].best = make(2)

    encoded = encode(after, baseline)

    assert encoded.not_captured == []
    assert restore(encoded, before, baseline_of(before)) == []
    assert shown(before["holder"].best) == shown(after["holder"].best)


def test_views_of_one_memory_stay_so_or_are_named() -> None:
    masked, record = np.ma.masked_array(np.arange(4.0), mask=[0, 1, 0, 0]), np.zeros(2, [("a", "f4")]).view(np.recarray)
    world: dict[str, Any] = {}

    assert restore(encode({"whole": masked, "part": masked[2:], "plain": np.asarray(masked)[:3]}), world) == []
    world["whole"][2] = 9
    assert (world["part"][0], world["plain"][2]) == (9, 9)
    assert encode({"whole": record, "part": record.a}).not_captured != []


def test_what_looks_at_bytes_of_pythons_is_named_without_a_framework_too() -> None:
    content = bytearray(8)

    assert encode({"content": content, "seen": np.frombuffer(content, np.uint8)}).not_captured != []


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
    forged = dataclasses.replace(encoded, graph=graph.pack())

    assert restore(forged, {}) != []


class Loud:
    def __str__(self) -> str:
        raise AssertionError("a file has had code run")


@pytest.mark.parametrize("parts", [["no number"], [[1, 2]], [1, 2, 3]], ids=str)
def test_parts_that_make_no_such_value_are_refused(parts: list[Any]) -> None:
    graph = unpack((encoded := encode({"value": Meters(0.5)})).graph)
    node = next(each for each in graph.nodes if each.kind == "value")
    node.items = [each if not isinstance(each, list) else None for each in parts]
    forged = dataclasses.replace(encoded, graph=graph.pack())

    assert restore(forged, {}) != []


def test_a_text_is_made_from_a_text_alone() -> None:
    graph = unpack((encoded := encode({"value": Label("a"), "loud": Loud()})).graph)
    node = next(each for each in graph.nodes if each.kind == "value")
    node.items = [graph.roots["loud"]]
    forged = dataclasses.replace(encoded, graph=graph.pack())

    assert restore(forged, {}) != []


def test_a_value_that_is_made_from_nothing_is_no_node() -> None:
    graph = unpack((encoded := encode({"value": Meters(0.5)})).graph)
    graph.nodes[0].items = []

    with pytest.raises(CheckpointDamaged, match="has 0 items, expected 1"):
        restore(dataclasses.replace(encoded, graph=graph.pack()), {})
