"""The codec: a restored world is the encoded one, bit for bit, in the objects that were there; what is not data is
named.
"""

from __future__ import annotations

import collections
import copy
import ctypes
import dataclasses
import decimal
import functools
import gc
import hashlib
import inspect
import io
import itertools
import json
import logging
import logging.handlers
import math
import mmap
import multiprocessing
import operator
import pathlib
import pickle
import random
import re
import sqlite3
import struct
import subprocess
import sys
import threading
import time
import types
import typing
import weakref
import zlib
from collections.abc import Callable
from multiprocessing import shared_memory
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from detrain.base.errors import CheckpointDamaged
from detrain.python.codec.api import ABSENT, Decoder, Encoder
from detrain.python.codec.graph_files import unpack
from detrain.python.codec.kind import KINDS
from detrain.python.inspect import function_source
from detrain.python.inspect.graph import FORMAT
from detrain.python.outside import open_files
from tests.runtime import state_values as kinds
from tests.runtime.state_compare import difference
from tests.runtime.state_values import Recipe, World, baseline_of, encode, recipes, restore

LARGE = 40_000
"""Elements of an array that is kept by digest while it is as it was."""


def resume(after: World, before: World) -> World:
    """Restore a state into the world of a process that has come to the loop; nothing may be lost."""
    encoded = encode(after, baseline_of(before))
    assert encoded.not_captured == []
    assert restore(encoded, before, baseline_of(before)) == []
    return before


def run_twice(make: Callable[[], World], change: Callable[[World], object]) -> tuple[World, World]:
    """Return (the world that a loop changed, another one that its state was restored into)."""
    after, before = make(), make()
    baseline = baseline_of(after)
    change(after)
    encoded = encode(after, baseline)
    assert encoded.not_captured == []
    assert restore(encoded, before, baseline_of(before)) == []
    return after, before


# Any graph.


@given(recipes)
@settings(max_examples=200, deadline=None)
def test_a_graph_that_is_restored_where_nothing_is_comes_back_to_the_bit(recipe: Recipe) -> None:
    pool = recipe.build()
    assert difference(pool, resume({"pool": pool}, {})["pool"]) is None


@given(recipes, recipes)
@settings(max_examples=120, deadline=None)
def test_what_lay_in_the_place_of_a_graph_does_not_show(recipe: Recipe, other: Recipe) -> None:
    pool = recipe.build()
    assert difference(pool, resume({"pool": pool}, {"pool": other.build()})["pool"]) is None


@given(recipes, recipes)
@settings(max_examples=120, deadline=None)
def test_what_differs_in_a_graph_of_the_same_making_is_put_right(recipe: Recipe, other: Recipe) -> None:
    pool = recipe.build()
    like = dataclasses.replace(recipe, leaves=other.leaves, links=other.links).build()
    assert difference(pool, resume({"pool": pool}, {"pool": like})["pool"]) is None


@given(recipes)
@settings(max_examples=80, deadline=None)
def test_encoding_changes_nothing(recipe: Recipe) -> None:
    pool = recipe.build()
    encode({"pool": pool}, baseline_of({"pool": pool}))
    assert difference(pool, recipe.build()) is None


@given(recipes)
@settings(max_examples=80, deadline=None)
def test_the_same_graph_has_the_same_bytes(recipe: Recipe) -> None:
    one, other = (encode({"pool": recipe.build()}) for _ in range(2))
    assert one.graph == other.graph


@given(st.integers(0, 2**64 - 1))
@settings(deadline=None)
def test_every_bit_of_a_float_counts(bits: int) -> None:
    value = struct.unpack("<d", struct.pack("<Q", bits))[0]
    world = resume({"value": value, "pair": complex(value, -0.0), "scalar": np.uint64(bits).view(np.float64)}, {})
    assert struct.pack("<d", world["value"]) == struct.pack("<Q", bits)
    assert struct.pack("<d", world["pair"].real) == struct.pack("<Q", bits)
    assert world["scalar"].view(np.uint64) == bits


# In place, and shared.


def mutables() -> World:
    return {
        "list": [1, [2]],
        "dict": {"a": [1]},
        "set": {1, 2},
        "deque": collections.deque([1], 3),
        "bytes": bytearray(b"ab"),
        "array": np.zeros((2, 3)),
        "objects": kinds.MAKERS[-2](lambda index: [index], [1, 2]),
        "batch": kinds.Batch([1], np.zeros(2)),
        "frozen": kinds.Config(1),
        "slotted": kinds.Slotted(1),
        "row": kinds.filled(kinds.Row, [1], own=1),
        "bag": kinds.filled(kinds.Bag, [1], own=1),
        "replay": kinds.filled(kinds.Replay, [1], own=1),
        "table": kinds.filled(kinds.Table, {1: 2}, own=1),
        "counter": collections.Counter("aab"),
        "ordered": collections.OrderedDict(a=1, b=2),
        "groups": collections.defaultdict(list, {1: [2]}),
        "space": types.SimpleNamespace(a=1),
        "attributes": kinds.AttributeTable(a=1),
        **kinds.randoms(3),
    }


def change_mutables(world: World) -> None:
    world["list"][1].append(3)
    world["dict"]["a"].append(-0.0)
    world["dict"]["b"] = world["list"]
    world["set"].add(1 << 70)
    world["deque"].extend([2, 3, 4])
    world["bytes"] += b"c"
    world["array"][1] = np.nan
    world["objects"][0] = world["array"]
    world["batch"].y += 1
    object.__setattr__(world["frozen"], "rate", 2)
    object.__setattr__(world["slotted"], "other", [3])
    list.append(world["row"], 2)
    set.add(world["bag"], "x")
    collections.deque.append(world["replay"], 2)
    dict.__setitem__(world["table"], 3, world["table"])
    world["counter"].update("abc")
    world["ordered"].move_to_end("a")
    world["groups"][5].append(1)
    world["space"].b = world["space"]
    del world["attributes"].a
    world["attributes"].z = 1
    kinds.draw({name: world[name] for name in kinds.randoms(0)}, 3)


def test_others_who_hold_an_object_see_its_restored_state() -> None:
    others: list[object] = []

    def make() -> World:
        world = mutables()
        others[:] = world.values()
        return world

    after, before = run_twice(make, change_mutables)
    assert difference(after, before) is None
    assert all(held is value for held, value in zip(others, before.values(), strict=True))


def test_what_several_names_hold_is_one_object_afterwards_too() -> None:
    shared: list[object] = []
    pair = (shared, {"again": shared})
    world = resume({"a": shared, "b": pair, "c": [pair, pair]}, {"a": [], "b": ([], {}), "c": [[], []]})
    assert world["b"][0] is world["b"][1]["again"] is world["a"]
    assert world["c"][0] is world["c"][1] is world["b"]


def test_names_that_held_one_object_and_no_longer_do_come_apart() -> None:
    one: list[int] = [0]
    world = resume({"a": [1], "b": [2]}, {"a": one, "b": one})
    assert (world["a"], world["b"]) == ([1], [2])


def test_values_that_hold_themselves_come_back() -> None:
    loop: list[Any] = []
    inside: tuple[Any, ...] = (loop, [])
    loop += [loop, inside]
    inside[1].append(inside)
    batch = kinds.Batch(None)
    batch.x = {"me": batch, "point": kinds.Point(batch, [])}
    batch.x["point"].y.append(batch.x["point"])
    world = {"loop": loop, "inside": inside, "batch": batch}
    assert difference(world, resume(world, {})) is None


def test_values_may_be_nested_as_deeply_as_programs_nest_them() -> None:
    deep: list[Any] = []
    for _ in range(900):
        deep = [deep]
    assert difference(repr(deep), repr(resume({"deep": deep}, {})["deep"])) is None


def test_what_is_nested_too_deeply_is_named() -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    encoded = encode({"deep": deep})
    assert len(encoded.not_captured) == 1
    assert "nested too deeply" in encoded.not_captured[0]


def test_nan_is_found_again_as_the_key_that_it_was() -> None:
    other = struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000001))[0]

    def make() -> World:
        return {"table": {math.nan: 1, other: 2}, "key": other}

    _after, before = run_twice(make, lambda world: world["table"].update({math.nan: 3, np.nan: 4}))
    assert before["table"][math.nan] == 3
    assert before["table"][np.nan] == 4
    assert before["table"][before["key"]] == 2
    assert len(before["table"]) == 3


@pytest.mark.parametrize("is_first", [True, False])
def test_keys_that_are_addresses_lead_to_the_objects_of_each_process(is_first: bool) -> None:
    def make() -> World:
        world: World = {"table": {7: 2.0}, "item": [0.0], "other": kinds.Loose(0)}
        return world if is_first else dict(reversed(world.items()))

    def change(world: World) -> None:
        world["made"] = made = [1.0]
        world["table"] |= {id(world["item"]): 1.0, id(made): 4.0, id(world["other"]): 3.0}

    after, before = make(), make()
    baseline, item = baseline_of(after), before["item"]
    change(after)
    encoded = encode(after, baseline)
    assert encoded.not_captured == []
    assert restore(encoded, before, baseline_of(before)) == []

    assert before["item"] is item
    keys = [7, id(item), id(before["made"]), id(before["other"])]
    assert list(before["table"]) == keys


@pytest.mark.parametrize("is_first", [True, False])
def test_a_set_of_addresses_is_named(is_first: bool) -> None:
    item = [0.0]
    world: World = {"table": {id(item)}, "item": item, "times": {time.time_ns() // 1000 // 8 * 8: 1}}
    world = world if is_first else dict(reversed(world.items()))

    [said] = encode(world, baseline_of(world)).not_captured

    assert said.startswith("table")
    assert "it has addresses (`id`), others in each process" in said


def test_a_set_in_the_order_of_addresses_is_named_unless_it_is_as_it_was() -> None:
    def make() -> World:
        return {"kinds": {int, str, object}, "frozen": frozenset([list, dict, type(None)]), "more": {int, str}}

    after, before = make(), make()
    held = before["kinds"]
    baseline = baseline_of(after)
    after["more"].add(float)
    encoded = encode(after, baseline)
    assert encoded.not_captured == ["more (set: its order is that of addresses, harmless)"]
    restore(encoded, before, baseline_of(before))
    assert before == after
    assert before["kinds"] is held


def test_a_set_with_a_nan_is_in_the_order_of_addresses() -> None:
    assert encode({"value": {1.0, float("nan")}}).not_captured == ["value (set: its order is that of addresses, harmless)"]


def test_a_set_that_had_popped_gives_way_to_one_that_has_not() -> None:
    popped = {1, 2, 3}
    popped.pop()
    wanted = {9, 17, 1}
    world = resume({"value": wanted}, {"value": popped})
    assert [world["value"].pop() for _ in range(3)] == [wanted.pop() for _ in range(3)]


# Objects of the program.


class Forwarding:
    """Has no dictionary, and answers for every name."""

    __slots__ = ("inner",)

    def __init__(self, inner: object) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)


class Guarded(dict[str, Any]):
    """Its attributes are its items, by way of a method."""

    def __setattr__(self, name: str, value: object) -> None:
        if name != "__dict__" or value is not self:
            raise AssertionError("the codec ran code of the program")
        raise AssertionError("the codec ran code of the program")


def test_no_hook_of_a_class_is_run() -> None:
    world = resume({"value": Forwarding([1])}, {"value": Forwarding([2])})
    assert world["value"].inner == [1]


def test_a_class_that_is_its_own_dictionary_comes_back_without_its_hooks() -> None:
    value = Guarded(a=1)
    object.__setattr__(value, "__dict__", value)
    world = resume({"value": value}, {})
    assert difference(value, world["value"]) is None
    assert vars(world["value"]) is world["value"]


def test_a_slot_under_a_property_of_a_subclass_comes_back() -> None:
    def child(value: object) -> kinds.Child:
        made = kinds.Child(value)
        kinds.Parent.__dict__["kept"].__set__(made, value)
        return made

    one, unset = child([1]), kinds.Child(None)
    assert difference(one, resume({"v": one}, {"v": child([2])})["v"]) is None
    assert difference(unset, resume({"v": unset}, {"v": child([2])})["v"]) is None


def test_the_length_of_a_deque_is_its_own_in_a_subclass_too() -> None:
    def replay(length: int | None) -> Any:
        value = kinds.Replay([], length)
        collections.deque.extend(value, range(4))
        return value

    for other in ({}, {"v": replay(2)}, {"v": replay(None)}):
        assert difference(replay(3), resume({"v": replay(3)}, other)["v"]) is None


class Counting:
    total = 0
    names: typing.ClassVar[list[str]] = []

    @classmethod
    def reset(cls) -> None:
        for name in set(vars(cls)) - {"total", "names"}:
            if not name.startswith("__") and name not in ("reset", "step", "other"):
                delattr(cls, name)
        cls.total, cls.names = 0, []

    def step(self) -> str:
        return "step"

    def other(self) -> str:
        return "other"


def test_attributes_of_a_class_are_state() -> None:
    Counting.reset()
    baseline = baseline_of({"cls": Counting})
    names = Counting.names
    Counting.total, Counting.more = 5, [1]  # type: ignore[attr-defined]
    names.append("a")
    encoded = encode({"cls": Counting, "value": Counting()}, baseline)
    Counting.reset()
    Counting.names = names
    names.clear()
    Counting.gone = 1  # type: ignore[attr-defined]
    assert restore(encoded, {"cls": Counting}) == []
    assert (Counting.total, Counting.names, Counting.more) == (5, ["a"], [1])  # type: ignore[attr-defined]
    assert Counting.names is names
    assert not hasattr(Counting, "gone")
    assert Counting().step() == "step"
    Counting.reset()


def make_functions() -> World:
    count, seen = 0, []

    def add(step: int = 1, *, log: list[int] = seen) -> int:
        nonlocal count
        count += step
        log.append(count)
        return count

    def read() -> tuple[int, list[int]]:
        return count, seen

    add.calls = [0]  # type: ignore[attr-defined]
    return {"add": add, "read": read, "seen": seen}


def test_closures_defaults_and_attributes_of_functions_are_state() -> None:
    def change(world: World) -> None:
        world["add"]()
        world["add"](3)
        world["add"].__defaults__ = (7,)
        world["add"].calls[0] += 1
        world["add"].more = world["seen"]

    after, before = run_twice(make_functions, change)
    assert difference(after, before) is None
    assert before["add"]() == 11
    assert before["read"]() == (11, before["seen"])
    assert before["seen"] == [1, 4, 11]


def test_functions_that_the_loop_has_made_are_made_again() -> None:
    made = kinds.make_functions(2)
    made["add"](3)
    encoded = encode({"made": [made, made["add"]], "there": kinds.add_to(5)}, baseline_of({}))
    assert encoded.not_captured == []
    world: World = {"made": None, "there": None}
    assert restore(encoded, world, baseline_of(world)) == []
    again, add = world["made"]
    assert again["add"] is add is not made["add"]
    assert [made["add"](1), made["add"](2), made["read"](), made["fall"](4)] == [6, 8, 8, 24]
    assert [again["add"](1), again["add"](2), again["read"](), again["fall"](4)] == [6, 8, 8, 24]
    assert again["log"] == made["log"] == [3, 1, 2]
    assert (add.__doc__, add.__qualname__, add.__annotations__) == (
        "Add, and tell.",
        made["add"].__qualname__,
        {"step": "int", "return": "int"},
    )
    assert world["there"](1) == 6


def test_functions_that_the_loop_has_made_share_variables_with_those_that_are_there() -> None:
    after, before = kinds.make_functions(2), kinds.make_functions(2)
    baseline = baseline_of(after)
    after["double"] = after["make"](2)
    after["add"](3)
    encoded = encode({"double": after["double"], **after}, baseline)  # the new one comes first
    assert restore(encoded, before, baseline_of(before)) == []
    for world in (after, before):
        assert world["double"]() == 10
        world["add"](1)
        assert world["double"]() == 12


def test_a_function_is_not_made_from_another_source(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = encode({"made": [kinds.add_to(5)]}, baseline_of({}))
    monkeypatch.setattr(function_source, "_indices", {kinds.__name__: {}})
    world: World = {"made": None}
    assert restore(encoded, world, baseline_of(world))[0].startswith(
        "made[0]: the source of 'tests.runtime.state_values' has no function"
    )


def test_annotations_that_are_no_classes_are_named() -> None:
    function = kinds.add_to(5)
    function.__annotations__["x"] = list[int]
    encoded = encode({"made": function}, baseline_of({}))
    assert encoded.not_captured == ["made.__annotations__['x'] (types.GenericAlias, harmless)"]
    world: World = {"made": None}
    assert restore(encoded, world, baseline_of(world)) == []
    assert world["made"].__annotations__ == {"return": "int"}


def test_functions_that_are_alike_by_name_are_told_apart() -> None:
    def make() -> World:
        names = [lambda: 1, lambda: 2]
        return {"table": {"a": names[0], "b": names[1]}, "chosen": names[0]}

    _after, before = run_twice(make, lambda world: world.update(chosen=world["table"]["b"]))
    assert before["chosen"] is before["table"]["b"]
    assert before["chosen"]() == 2


def decorate(function: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(function)
    def wrapper(*args: object) -> object:
        return function(*args)

    return wrapper


@decorate
def decorated(value: object) -> object:
    return value


def test_a_decorated_function_stays_the_wrapper_of_what_it_wraps() -> None:
    original = decorated.__wrapped__  # type: ignore[attr-defined]
    _after, before = run_twice(lambda: {"a": decorated, "b": [original], "c": None}, lambda world: world.update(c=original))
    assert before == {"a": decorated, "b": [original], "c": original}
    assert decorated(3) == 3


class Sub(Counting):
    first = lambda self: 1  # noqa: E731
    second = lambda self: 2  # noqa: E731

    def step(self) -> str:
        return "sub"

    def inherited(self) -> Callable[[], str]:
        return super().step


@pytest.mark.parametrize(
    ("choose", "result"),
    [
        (lambda value: value.step, "sub"),
        (lambda value: value.other, "other"),
        (lambda value: value.inherited(), "step"),
        (lambda value: value.second, 2),
        (lambda value: types.MethodType(decorated, value), None),
        (lambda value: functools.partial(value.other), "other"),
    ],
)
def test_a_bound_method_is_the_same_function_of_the_same_object(choose: Callable[[Any], Any], result: object) -> None:
    def make() -> World:
        value = Sub()
        return {"value": value, "call": value.first, "known": [Sub.second, decorated.__wrapped__]}  # type: ignore[attr-defined]

    _after, before = run_twice(make, lambda world: world.update(call=choose(world["value"])))
    assert before["call"]() == (before["value"] if result is None else result)


def test_methods_of_containers_and_generators_stay_bound_to_them() -> None:
    def make() -> World:
        items, source = [1], np.random.default_rng(3)
        return {"items": items, "add": items.append, "source": source, "draw": source.normal}

    after, before = run_twice(make, lambda world: (world["add"](2), world["draw"]()))
    before["add"](3)
    assert before["items"] == [1, 2, 3]
    assert before["draw"]() == after["draw"]()


def test_containers_made_by_a_type_of_python_need_nothing_else() -> None:
    assert encode({"groups": collections.defaultdict(list), "cls": dict, "kind": kinds.Batch}).not_captured == []


def test_an_alias_of_typing_is_left_alone() -> None:
    alias = typing.Optional[kinds.Batch]  # noqa: UP045
    before = (alias.__args__, dict(vars(alias)))
    world: World = {"alias": alias}
    encoded = encode(world, baseline_of(world))
    assert restore(encoded, world, baseline_of(world)) == []
    assert (alias.__args__, dict(vars(alias))) == before
    assert world["alias"] is alias


# Arrays.


def swapped() -> Any:
    return np.array(np.arange(24.0).reshape(2, 3, 4).transpose(0, 2, 1), order="K")


@pytest.mark.parametrize("owner", [lambda: np.arange(12.0), lambda: np.asfortranarray(np.arange(12.0).reshape(3, 4)), swapped])
@pytest.mark.parametrize("has_world", [True, False])
def test_views_stay_views_of_their_owner(owner: Callable[[], Any], has_world: bool) -> None:
    def make() -> World:
        array = owner()
        return {"view": array[1:], "owner": array, "again": array[::-1].T, "bits": array.view(np.uint64)[1:]}

    after, before = make(), make() if has_world else {}
    after["view"][...] = 7
    resume(after, before)
    assert difference(after, before) is None
    before["owner"][...] = 5
    assert np.all(before["view"] == 5)


@pytest.mark.parametrize("has_world", [True, False])
def test_a_small_view_that_is_met_before_its_large_owner_stays_a_view(has_world: bool) -> None:
    def make() -> World:
        owner = np.zeros(LARGE)
        return {"view": owner[5:7], "owner": owner}

    after, before = make(), make() if has_world else {}
    after["owner"][6] = 1
    encoded = encode(after)
    assert restore(encoded, before) == []
    assert difference(after, before) is None


def test_an_array_that_lies_where_a_view_lay_leaves_the_owner_alone() -> None:
    def make() -> World:
        data = np.arange(float(LARGE))
        return {"batch": data[:4], "small": (small := np.arange(4.0)), "best": small[:], "data": data}

    def change(world: World) -> None:
        world["batch"] = world["data"][8:12]
        world["best"] = np.full(4, 9.0)

    after, before = run_twice(make, change)
    assert difference(after, before) is None


def test_a_batch_of_data_that_nobody_else_holds_does_not_change_the_data_of_the_resumed_process() -> None:
    def make() -> World:
        data = np.arange(float(LARGE))
        return {"batch": data[:4], "rows": (row for row in [data])}

    after, before = make(), make()
    data = next(before["rows"])
    baseline = baseline_of(after)
    after["batch"] = next(after["rows"])[8:12]
    assert restore(encode(after, baseline), before, baseline_of(before)) == []
    assert before["batch"].tolist() == [8, 9, 10, 11]
    assert data[:4].tolist() == [0, 1, 2, 3]


def test_views_of_arrays_of_objects_stay_views() -> None:
    owner = kinds.MAKERS[-2](lambda index: [index], [1, 2, 3, 4])
    world = resume({"view": owner[1:3], "owner": owner}, {})
    assert difference({"view": owner[1:3], "owner": owner}, world) is None


def test_an_array_that_nobody_may_write_to_stays_so() -> None:
    value = np.arange(3)
    value.flags.writeable = False
    assert not resume({"value": value}, {})["value"].flags.writeable
    assert resume({"value": np.arange(3)}, {"value": value})["value"].flags.writeable


def test_large_arrays_that_the_loop_left_alone_are_not_stored() -> None:
    world = {"data": np.arange(LARGE), "state": np.zeros(3)}
    assert {len(array) for array in encode(world, baseline_of(world)).arrays.values()} == {3}


def test_large_arrays_are_found_under_other_names() -> None:
    def make() -> World:
        return {"a": np.arange(LARGE), "b": np.ones(LARGE), "c": None}

    def change(world: World) -> None:
        world["a"], world["b"], world["c"] = world["b"], np.zeros(LARGE), world["a"]

    after, before = run_twice(make, change)
    assert difference(after, before) is None


def test_large_data_that_differ_in_the_resumed_process_are_reported() -> None:
    after, before = {"data": np.zeros(LARGE)}, {"data": np.ones(LARGE)}
    (said,) = restore(encode(after, baseline_of(after)), before, baseline_of(before))
    assert said.startswith("data: the ")
    assert "is not the one that the first run had" in said


def test_small_data_that_differ_in_the_resumed_process_are_put_back_and_told() -> None:
    after, before = {"data": np.zeros(3)}, {"data": np.ones(3)}
    encoded = encode(after, baseline_of(after))
    decoder = Decoder(unpack(encoded.graph, encoded.arrays), encoded.arrays, kinds.NO_FRAMEWORK, baseline_of(before))
    assert decoder.decode(decoder.roots["data"], before["data"], "data") is before["data"]
    assert decoder.finish() == []
    assert before["data"].tolist() == [0, 0, 0]
    (said,) = decoder.others
    assert said.startswith("data: the array is not the one that the first run had")


# Random streams.


@given(st.integers(0, 2**32 - 1), st.integers(0, 3), st.integers(0, 3), st.booleans())
@settings(max_examples=15, deadline=None)
def test_random_generators_go_on_with_the_same_streams(seed: int, first: int, second: int, has_world: bool) -> None:
    after, before = kinds.randoms(seed), kinds.randoms(seed) if has_world else {}
    kinds.draw(after, first)
    baseline = baseline_of(before)
    resumed = before
    kinds.draw(resumed, second)
    encoded = encode(after, baseline)
    assert encoded.not_captured == []
    assert restore(encoded, resumed, baseline) == []
    assert difference(after, resumed) is None
    assert kinds.draw(after, 2) == kinds.draw(resumed, 2)


def test_a_bit_generator_and_seeds_that_are_shared_stay_shared() -> None:
    def make() -> World:
        bits = np.random.PCG64(np.random.SeedSequence([1, 2**90], spawn_key=(3,)))
        return {"legacy": np.random.RandomState(bits), "one": np.random.Generator(bits), "bits": bits, "seeds": bits.seed_seq}

    after, before = make(), make()
    after["one"].spawn(2)
    for world in (resume(after, before), resume(after, {})):
        assert difference(after, world) is None
        assert world["one"].bit_generator is world["bits"]
        assert [each.random() for each in copy.deepcopy(world)["one"].spawn(2)] == [
            each.random() for each in copy.deepcopy(after)["one"].spawn(2)
        ]


class Counted(random.Random):
    """Counts its draws, which pass the methods of the class by when its state is read or set."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.draws = 0

    def random(self) -> float:
        self.draws += 1
        return super().random()

    def getstate(self) -> typing.NoReturn:
        raise AssertionError


class Legacy(np.random.RandomState):
    pass


class Modern(np.random.Generator):
    def coin(self) -> bool:
        self.tosses = getattr(self, "tosses", 0) + 1
        return bool(self.random() < 0.5)


def test_generators_of_classes_of_the_program_go_on_with_their_streams() -> None:
    def make() -> World:
        return {"counted": Counted(1), "legacy": Legacy(2), "modern": Modern(np.random.PCG64(3))}

    def use(world: World) -> list[object]:
        counted, legacy, modern = world.values()
        drawn = [counted.random(), counted.gauss(0, 1), legacy.normal(), modern.coin(), modern.normal()]
        return [*drawn, counted.draws, modern.tosses]

    after, before = make(), make()
    live = dict(before)
    baseline, baseline_before = baseline_of(after), baseline_of(before)
    for _ in range(3):
        use(after)
    encoded = encode(after, baseline)
    assert encoded.not_captured == []
    use(before)

    assert restore(encoded, before, baseline_before) == []

    assert use(before) == use(after)
    assert all(before[name] is value for name, value in live.items())


class Numbered(enumerate[int]): ...


class Signal(threading.Event): ...


class Precision(decimal.Context): ...


class Grid(bytearray):
    """A class of the program that derives from one of C, and shows nothing of what that keeps."""


@pytest.mark.parametrize("make", [lambda: Grid(2), lambda: Numbered([1, 2]), Signal, Precision])
def test_what_would_not_show_that_it_has_moved_is_lost(make: Callable[[], Any]) -> None:
    """It stayed as a resumed process had it, in silence."""
    world: World = {"held": make()}

    assert [said.partition(" (")[0] for said in encode(world, baseline_of(world)).not_captured] == ["held"]


def test_an_iterator_that_the_body_moved_on_is_missed_behind_the_loading() -> None:
    """A loader of a library for validation went on from where the resumed process had it, with
    no more than a warning.
    """
    world: World = {"checks": _loader_of_a_library()}
    there: World = {"checks": _loader_of_a_library()}
    baseline = baseline_of(world)
    next(world["checks"].rows)
    encoder = Encoder(kinds.NO_FRAMEWORK, baseline, are_loads_replayed=True)
    encoded = encoder.finish({"checks": encoder.encode(world["checks"], "checks")})
    assert (encoded.not_captured, len(encoded.moved)) == ([], 1)

    decoder = Decoder(unpack(encoded.graph, encoded.arrays), encoded.arrays, kinds.NO_FRAMEWORK, baseline_of(there))
    decoder.decode(decoder.roots["checks"], there["checks"], "checks")

    [said] = decoder.missing
    assert said.startswith("checks: gymnasium.wrappers.Wrapper is not where the first run had it")


def test_functions_of_a_library_stay_where_an_object_of_it_lists_them() -> None:
    """A pipeline of webdataset lost the functions that it calls, and a resumed run ended with an AttributeError."""

    def made() -> World:
        stage = type("Stage", (), {"__module__": "gymnasium.wrappers"})()
        vars(stage).update(calls=[json.dumps], named={"handler": json.loads}, count=0)
        return {"stage": stage}

    world, there = made(), made()
    baseline = baseline_of(world)
    world["stage"].count = 3
    encoded = encode(world, baseline)

    decoder = Decoder(unpack(encoded.graph, encoded.arrays), encoded.arrays, kinds.NO_FRAMEWORK, baseline_of(there))
    decoder.decode(decoder.roots["stage"], there["stage"], "stage")

    assert vars(there["stage"]) == {"calls": [json.dumps], "named": {"handler": json.loads}, "count": 3}


# What is not data.


def count_up() -> typing.Iterator[int]:
    yield from range(9)


OPAQUE: dict[str, Callable[[], object]] = {
    "lock": threading.Lock,
    "thread": threading.Thread,
    "file": lambda: io.BufferedReader(io.BytesIO()),
    "generator": count_up,
    "iterator": lambda: iter({1: 2}),
    "memory": lambda: memoryview(b"ab"),
    "local class": type("Local", (threading.Thread,), {}),
    "function": lambda: types.FunctionType(compile("lambda: 0", "a.py", "eval").co_consts[0], globals()),
    "scalar array of objects": lambda: np.array(None, object),
}


@pytest.mark.parametrize("name", OPAQUE)
def test_what_the_loop_made_and_cannot_be_captured_is_named_at_each_place(name: str) -> None:
    made = OPAQUE[name]()
    encoded = encode({"value": [made], "again": made}, baseline_of({"value": []}))
    assert [said.partition(" (")[0] for said in encoded.not_captured] == ["value[0]", "again"]


@pytest.mark.parametrize("name", OPAQUE)
def test_what_was_there_and_cannot_be_captured_stays(name: str) -> None:
    def make() -> World:
        return {"value": [OPAQUE[name]()], "again": None, "count": 0}

    after, before = make(), make()
    held = before["value"][0]
    baseline = baseline_of(after)
    after["again"], after["count"] = after["value"].pop(), 1
    encoded = encode(after, baseline)
    assert encoded.not_captured == []
    assert restore(encoded, before, baseline_of(before)) == []
    assert before["again"] is held
    assert before["value"] == []
    assert before["count"] == 1


class Worker(threading.Thread):
    """A class of the program that derives from a library's."""

    def __init__(self) -> None:
        super().__init__(name="worker")
        self.done, self.items, self.lock = 0, [{"turn": 0}], threading.Lock()

    def work(self) -> None:
        self.done += 1
        self.items[0]["turn"] = self.done


def test_what_the_program_stores_in_an_object_of_a_library_comes_back_in_place() -> None:
    def change(world: World) -> None:
        world["worker"].work()
        world["worker"].name = "of the library"

    def make() -> World:
        worker = Worker()
        return {"worker": worker, "items": worker.items}

    after, before = make(), make()
    held, lock, items = before["worker"], before["worker"].lock, before["items"]
    baseline = baseline_of(after)
    change(after)
    encoded = encode(after, baseline)
    assert encoded.not_captured == []
    assert restore(encoded, before, baseline_of(before)) == []
    assert before["worker"] is held
    assert (held.done, held.items, held.lock, held.name) == (1, [{"turn": 1}], lock, "worker")
    assert held.items is items


MOVING: dict[str, Callable[[], typing.Iterator[object]]] = {
    "generator": count_up,
    "iterator": lambda: iter({1: 2}),
}


@pytest.mark.parametrize("name", MOVING)
def test_what_was_there_and_has_moved_on_is_named(name: str) -> None:
    world: World = {"value": MOVING[name](), "other": MOVING[name]()}
    baseline = baseline_of(world)
    next(world["value"])
    assert [said.partition(" (")[0] for said in encode(world, baseline).not_captured] == ["value"]


def _array_of(value: object) -> Any:
    [array] = [item for held in gc.get_referents(value) if isinstance(held, tuple) for item in held if isinstance(item, np.ndarray)]
    return array


def _database() -> sqlite3.Connection:
    made = sqlite3.connect(":memory:")
    made.execute("create table t (x)")
    return made


def _numbers() -> sqlite3.Cursor:
    return sqlite3.connect(":memory:").execute("select 1 union select 2")


def _of_a_library(**attributes: Any) -> Any:
    """Return an object of a library that is not data through and through: it holds a lock."""
    made = type("Wrapper", (), {"__module__": "gymnasium.wrappers"})()
    vars(made).update(attributes, lock=threading.Lock())
    return made


def _loader_of_a_library() -> Any:
    made = _of_a_library(rows=(n for n in [1, 2]))
    type(made).__iter__ = lambda self: self
    type(made).__next__ = lambda self: next(self.rows)
    return made


def _set_item(value: Any) -> None:
    value[0] = 7


_KEPT_ALIVE = kinds.Loose(0)

HIDDEN: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "numbers of C": (ctypes.c_double * 2, _set_item),
    "number of several processes": (lambda: multiprocessing.Value("d", 0.0), lambda value: setattr(value, "value", 1.0)),
    "numbers of several processes": (lambda: multiprocessing.Array("i", 2), _set_item),
    "memory map": (lambda: mmap.mmap(-1, 4), _set_item),
    "memory view": (lambda: memoryview(bytearray(2)), _set_item),
    "semaphore": (threading.Semaphore, lambda value: value.acquire()),
    "barrier": (lambda: threading.Barrier(2), lambda value: value.abort()),
    "event of processes": (multiprocessing.Event, lambda value: value.set()),
    "semaphore of processes": (multiprocessing.Semaphore, lambda value: value.acquire()),
    "queue of processes": (multiprocessing.SimpleQueue, lambda value: value.put(1)),
    "memory of processes": (lambda: shared_memory.SharedMemory(create=True, size=2), lambda value: value.buf.__setitem__(0, 1)),
    "process": (lambda: subprocess.Popen(["true"]), lambda value: value.wait()),
    "flat iterator": (lambda: np.arange(3).flat, next),
    "weak set": (weakref.WeakSet, lambda value: value.add(_KEPT_ALIVE)),
    "handler": (logging.NullHandler, lambda value: value.setLevel(logging.ERROR)),
    "logger": (lambda: logging.Logger("some"), lambda value: value.addHandler(logging.NullHandler())),
    "handler that writes later": (
        lambda: logging.handlers.MemoryHandler(9),
        lambda value: value.emit(logging.makeLogRecord({"levelno": logging.INFO})),
    ),
    "hash": (hashlib.sha256, lambda value: value.update(b"x")),
    "hash of any length": (hashlib.shake_128, lambda value: value.update(b"x")),
    "compressor": (zlib.compressobj, lambda value: value.compress(b"x")),
    "array within an object of C": (lambda: operator.methodcaller("sum", np.ones(2)), lambda value: _array_of(value).fill(0)),
    "cursor of a database": (_numbers, next),
    "cursor within an object of a library": (lambda: _of_a_library(rows=_numbers()), lambda value: next(value.rows)),
    "iterator within an object of a library": (lambda: _of_a_library(rows=zip(iter([1, 2]))), lambda value: next(value.rows)),
    "generator within an object of a library": (lambda: _of_a_library(rows=(n for n in [1, 2])), lambda value: next(value.rows)),
    "cycle within an object of a library": (lambda: _of_a_library(rows=itertools.cycle([1, 2])), lambda value: next(value.rows)),
    "database": (_database, lambda value: value.execute("insert into t values (1)")),
}
"""Objects that keep what they hold where no attribute shows it, and what changes them."""
NEVER_SAY = {"compressor", "cursor of a database", "cursor within an object of a library", "cycle within an object of a library"}
"""Those that do not say whether they have moved."""


def test_what_is_shown_for_reading_comes_back_in_place() -> None:
    after: World = {"value": types.MappingProxyType({"a": [0.0]}), "new": None}
    before: World = {"value": types.MappingProxyType({"a": [0.0]}), "new": None}
    held, items = before["value"], before["value"]["a"]
    baseline = baseline_of(after)
    after["value"]["a"].append(1.0)
    after["new"] = types.MappingProxyType({"b": 1})

    encoded = encode(after, baseline)

    assert encoded.not_captured == []
    assert restore(encoded, before, baseline_of(before)) == []
    assert before["value"] is held
    assert held["a"] is items
    assert items == [0.0, 1.0]
    assert (type(before["new"]), dict(before["new"])) == (types.MappingProxyType, {"b": 1})


@pytest.mark.parametrize("name", HIDDEN)
def test_what_holds_its_content_out_of_sight_is_named_when_that_changes(name: str) -> None:
    make, change = HIDDEN[name]
    world: World = {"value": make(), "other": make()}
    baseline = baseline_of(world)
    before = encode(world, baseline).not_captured
    change(world["value"])
    after = encode(world, baseline).not_captured
    assert before == [] or name in NEVER_SAY
    assert "value" in [said.partition(" (")[0] for said in after]


def test_what_changes_deep_inside_of_an_object_of_a_library_is_named() -> None:
    """Only its own numbers were compared: an environment in wrappers began anew in a resumed run, in silence."""
    inner = _of_a_library(turns=0, board=np.zeros(3), rng=np.random.default_rng(0))
    world: World = {"value": _of_a_library(env=[_of_a_library(env=inner)]), "other": _of_a_library(env=_of_a_library(turns=0))}
    baseline = baseline_of(world)
    assert encode(world, baseline).not_captured == []
    for change in (lambda: setattr(inner, "turns", 1), lambda: inner.board.fill(2), inner.rng.random):
        change()
        assert [said.partition(" (")[0] for said in encode(world, baseline).not_captured] == ["value"]
        baseline = baseline_of(world)


def _inside_a_library() -> World:
    """Return an object of a library through which alone an object of the program is found."""
    held = kinds.Batch([1], np.zeros(2))
    return {"value": _of_a_library(callbacks=({"each": [held]},), inner=_of_a_library(text="cuda"))}


def test_an_object_of_the_program_that_only_a_librarys_object_leads_to_comes_back_in_place() -> None:
    """It began anew in silence: objects of the program were taken to be reached otherwise."""

    def held(world: World) -> Any:
        return world["value"].callbacks[0]["each"][0]

    before = _inside_a_library()
    there = held(before)
    after, restored = run_twice(_inside_a_library, lambda world: held(world).x.append(2))
    assert held(restored).x == held(after).x == [1, 2]

    baseline = baseline_of(before)
    there.x.append(5)
    encoded = encode(before, baseline)
    there.x.append(6)
    assert restore(encoded, before, baseline) == []
    assert held(before) is there
    assert there.x == [1, 5]


def test_what_a_librarys_object_has_come_to_hold_is_named() -> None:
    world = _inside_a_library()
    baseline = baseline_of(world)
    world["value"].callbacks[0]["each"][0] = kinds.Batch([7], np.zeros(2))

    [said] = encode(world, baseline).not_captured
    assert said.startswith("value.callbacks[0]['each'][0] (")
    assert said.endswith(": an object of a library holds it since)")


class Env(type("Env", (), {"__module__": "gymnasium.core"})):  # type: ignore[misc]
    """A class of the program that derives from a library's, which keeps state of its own in it."""

    def __init__(self, **of_the_library: Any) -> None:
        vars(self).update(of_the_library, rng=np.random.default_rng(0), lives=[3])
        self.steps = 0

    def step(self) -> float:
        self.steps += 1
        self.lives[0] -= 1
        return float(self.rng.random())


def test_what_a_library_keeps_in_an_object_of_the_programs_comes_back() -> None:
    """A wrapper of an environment began anew in a resumed run, in silence: only what its own methods store was
    captured.
    """
    after, before = ({"env": Env(env=Env())} for _ in range(2))
    baseline = baseline_of(after)
    after["env"].step(), after["env"].env.step()
    encoded = encode(after, baseline)
    assert encoded.not_captured == []
    assert restore(encoded, before, baseline_of(before)) == []
    assert before["env"].env.steps == 1
    assert (before["env"].step(), before["env"].env.step()) == (after["env"].step(), after["env"].env.step())
    assert before["env"].lives == before["env"].env.lives == [1]


def test_what_a_library_keeps_in_an_object_of_the_programs_is_named_where_it_is_not_all_data() -> None:
    world: World = {"env": Env(env=Env(), lock=threading.Lock())}
    baseline = baseline_of(world)
    world["env"].steps += 1
    assert encode(world, baseline).not_captured == []
    world["env"].env.step()
    assert [said.partition(" (")[0] for said in encode(world, baseline).not_captured] == ["env"]


def test_what_leads_to_an_object_of_an_extension_that_shows_nothing_is_named() -> None:
    """The game behind an environment (ale_py) is in an object of C++, and began anew in a resumed run, in silence."""
    cv2 = pytest.importorskip("cv2")
    game = cv2.createBackgroundSubtractorMOG2()
    world: World = {"env": _of_a_library(env=_of_a_library(game=game)), "game": game, "other": _of_a_library(turns=0)}

    said = encode(world, baseline_of(world)).not_captured

    assert [loss.partition(" (")[0] for loss in said] == ["env", "game"]
    assert all("what an extension keeps in it cannot be read" in loss for loss in said)


class Lines(logging.Handler):
    """A handler of the program's that nothing but its logger leads to, with a filter that nothing else leads to."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.addFilter(EveryOther())

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


class EveryOther(logging.Filter):
    count = 0

    def filter(self, record: logging.LogRecord) -> bool:
        self.count += 1
        return self.count % 2 == 0


def test_handlers_of_the_program_come_back_where_only_their_logger_leads_to_them() -> None:
    def make() -> World:
        log = logging.Logger("some")
        log.addHandler(Lines())
        return {"log": log}

    after, before = make(), make()
    baseline = baseline_of(after)
    for number in range(5):
        after["log"].info("line %d", number)
    encoded = encode(after, baseline)
    assert encoded.not_captured == []

    assert restore(encoded, before, baseline_of(before)) == []

    before["log"].info("line 5")
    assert before["log"].handlers[0].lines == ["line 1", "line 3", "line 5"]


def test_an_event_of_threads_is_set_again_or_not() -> None:
    after: World = {"set": threading.Event(), "clear": threading.Event(), "new": None}
    before: World = {"set": threading.Event(), "clear": threading.Event(), "new": None}
    live = before["set"]
    baseline = baseline_of(after)
    after["set"].set()
    before["clear"].set()
    after["new"] = threading.Event()

    encoded = encode(after, baseline)
    assert encoded.not_captured == []
    assert restore(encoded, before, baseline_of(before)) == []

    assert before["set"] is live
    assert [before[name].is_set() for name in ("set", "clear", "new")] == [True, False, False]


def test_collections_that_hold_weakly_come_back() -> None:
    def make() -> World:
        nodes = [kinds.Loose(0), kinds.Loose(1)]
        weak = {"keys": weakref.WeakKeyDictionary(), "values": weakref.WeakValueDictionary(), "set": weakref.WeakSet(nodes[:1])}
        return {"nodes": nodes, **weak, "none": None, "new": None}

    after, before = make(), make()
    live, live_set = before["keys"], before["set"]
    before["keys"][before["nodes"][0]] = "other"
    baseline = baseline_of(after)
    after["keys"][after["nodes"][1]], after["values"]["first"] = 5, after["nodes"][0]
    after["none"] = weakref.WeakValueDictionary({1: after["nodes"][1]})
    after["set"].add(after["nodes"][1])
    after["set"].discard(after["nodes"][0])
    after["new"] = weakref.WeakSet(after["nodes"])
    encoded = encode(after, baseline)
    why = "when what it holds is let go of is not as without detrain"
    kinds_of = {
        **{"keys": "weakref.WeakKeyDictionary", "values": "weakref.WeakValueDictionary", "set": "_weakrefset.WeakSet"},
        **{"none": "weakref.WeakValueDictionary", "new": "_weakrefset.WeakSet"},
    }
    assert encoded.not_captured == [f"{name} ({kind}: {why})" for name, kind in kinds_of.items()]
    assert restore(encoded, before, baseline_of(before)) == []

    nodes = before["nodes"]
    assert before["set"] is live_set
    assert (set(live_set), set(before["new"])) == ({nodes[1]}, set(nodes))
    assert before["keys"] is live
    assert list(before["keys"].items()) == [(nodes[1], 5)]
    assert [*before["values"].items(), *before["none"].items()] == [("first", nodes[0]), (1, nodes[1])]


def test_weak_references_lead_to_what_they_led_to() -> None:
    def make() -> World:
        nodes = [kinds.Loose(0), kinds.Loose(1)]
        return {"nodes": nodes, "weak": weakref.ref(nodes[0]), "dead": weakref.ref(nodes[1]), "none": None}

    after, before = make(), make()
    baseline = baseline_of(after)
    after["weak"], after["dead"], after["none"] = weakref.ref(after["nodes"][1]), weakref.ref(kinds.Loose(2)), after["weak"]
    encoded = encode(after, baseline)
    assert encoded.not_captured == []
    assert restore(encoded, before, baseline_of(before)) == []

    assert before["weak"]() is before["nodes"][1]
    assert before["none"]() is before["nodes"][0]
    assert before["dead"]() is None


def test_weak_proxies_signatures_and_unions_come_back() -> None:
    def make() -> World:
        nodes = [kinds.Loose(0), kinds.Loose(1)]
        return {"nodes": nodes, "proxy": weakref.proxy(nodes[0]), "dead": weakref.proxy(nodes[1]), "signature": None, "union": None}

    def f(a: int, /, b: None = None, *c: float, d: bool = True, **e: object) -> list[str]:
        raise NotImplementedError

    after, before = make(), make()
    baseline = baseline_of(after)
    after["proxy"], after["dead"] = weakref.proxy(after["nodes"][1]), weakref.proxy(kinds.Loose(2))
    after["union"] = typing.Optional[int]  # noqa: UP045  of another class than `int | None`
    after["signature"] = inspect.signature(f, eval_str=False)
    encoded = encode(after, baseline)
    assert encoded.not_captured == []
    assert restore(encoded, before, baseline_of(before)) == []

    assert before["proxy"].__repr__.__self__ is before["nodes"][1]
    with pytest.raises(ReferenceError):
        before["dead"].x  # noqa: B018
    assert before["signature"] == after["signature"]
    assert before["union"] == after["union"]


def test_a_polynomial_comes_back() -> None:
    after, before = ({"old": np.poly1d([1.0, 2.0]), "new": np.polynomial.Polynomial([1.0, 2.0])} for _ in range(2))
    baseline, live = baseline_of(after), dict(before)
    after["old"].coeffs[0] = after["new"].coef[0] = 5.0
    encoded = encode(after, baseline)
    assert encoded.not_captured == []
    assert restore(encoded, before, baseline_of(before)) == []
    assert (before["old"].coeffs.tolist(), before["new"].coef.tolist()) == ([5.0, 2.0], [5.0, 2.0])
    assert all(before[name] is value for name, value in live.items())


def test_a_file_open_for_writing_is_named(tmp_path: pathlib.Path) -> None:
    with (tmp_path / "log").open("w") as log, (tmp_path / "log").open() as lines:
        world: World = {"log": log, "lines": lines, "out": sys.stdout}
        assert encode(world, baseline_of(world)).not_captured == ["log (_io.TextIOWrapper: open for writing)"]


def test_functions_in_a_set_are_not_taken_for_each_other() -> None:
    """A set of functions is in the order of their addresses, which differs between processes."""

    def make(is_first_last: bool) -> World:
        calls = [lambda index=index: index for index in range(12)]
        calls.sort(key=id, reverse=is_first_last)
        for index, call in enumerate(calls):
            call.__defaults__ = (index,)
        return {"all": set(calls), **{f"call {index}": call for index, call in enumerate(calls)}}

    after, before = make(False), make(True)
    calls = [before[f"call {index}"] for index in range(12)]
    restore(encode(after, baseline_of(after)), before, baseline_of(before))
    assert [before[f"call {index}"] for index in range(12)] == calls


# Files that were tampered with.


def tampered(*nodes: list[object], root: object = None) -> Any:
    """Return a graph of these nodes, whose first one the name `value` holds."""
    graph = msgspec.msgpack.encode({"format": FORMAT, "nodes": list(nodes), "roots": {"value": root or [0]}})
    return dataclasses.replace(encode({}), graph=graph)


@pytest.mark.parametrize(
    "name", ["os:system", "builtins:eval", "builtins:exec", "posix:system", "subprocess:Popen", "sys:", "threading:Thread", ":", ""]
)
@pytest.mark.parametrize("kind", ["static", "function", "class", "opaque", "object", "namedtuple", "enum", "method", "partial"])
def test_a_graph_binds_nothing_of_python_or_a_library(kind: str, name: str) -> None:
    nodes: dict[str, list[list[object]]] = {
        "static": [["static", name]],
        "function": [["function", [name], [None, None, None]]],
        "class": [["class", name, [], [["daemon", 1]]]],
        "opaque": [["opaque", [name]]],
        "object": [["object", [name, 0, False], [], [["args", "ls"]]]],
        "namedtuple": [["namedtuple", name, [1]]],
        "enum": [["enum", [name, "A"], [None]]],
        "method": [["method", "system", [[1], [1]]], ["static", name]],
        "partial": [["partial", None, [[1], [2], [3]]], ["static", name], ["tuple", None, ["ls"]], ["dict"]],
    }
    world: World = {"value": None}
    assert restore(tampered(*nodes[kind]), world) != []
    assert world["value"] is None


def test_a_graph_does_not_change_a_live_object_of_a_library() -> None:
    thread = threading.Thread(name="kept")
    before = dict(vars(thread))
    restore(tampered(["object", ["threading:Thread", 0, False], [], [["_name", "changed"]]]), {"value": thread})
    assert vars(thread) == before


@pytest.mark.parametrize("cls", [collections.Counter, list, collections.UserDict, pathlib.PosixPath])
def test_a_graph_does_not_change_a_class_of_python(cls: type) -> None:
    before = dict(vars(cls))
    node = ["class", f"{cls.__module__}:{cls.__qualname__}", [], [["update", 1], ["more", 2]]]
    restore(tampered(node), {"value": cls})
    assert dict(vars(cls)) == before


def test_a_graph_does_not_change_a_function_of_a_library() -> None:
    world: World = {"value": copy.deepcopy, "other": np.linalg.norm}
    baseline = baseline_of(world)
    before = copy.deepcopy.__defaults__
    restore(tampered(["function", ["copy:deepcopy"], [[1], None, None], [], "value"], ["tuple", None, [1, 2]]), world, baseline)
    assert copy.deepcopy.__defaults__ == before


def test_an_address_leads_only_to_what_has_the_name() -> None:
    world: World = {"value": None, "danger": eval, "lock": threading.Lock()}
    baseline = baseline_of(world)
    for node in (["static", "builtins:int", [], [], "danger"], ["opaque", ["io.BytesIO"], [], [], "lock"]):
        world["value"] = None
        restore(tampered(node), world, baseline)
        assert world["value"] in (None, int)


def test_no_module_is_imported() -> None:
    restore(tampered(["static", "antigravity:fly"]), {})
    restore(tampered(["object", ["this:That", 0, False]]), {})
    assert not {"antigravity", "this"} & set(sys.modules)


def test_a_node_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(CheckpointDamaged, match=r"node 0 \('reduce'\) is of an unknown kind"):
        restore(tampered(["reduce", "os:system", ["ls"]]), {})


@given(recipes, st.randoms(use_true_random=False))
@settings(max_examples=80, deadline=None)
def test_a_damaged_graph_is_refused_or_makes_data(recipe: Recipe, random: Any) -> None:
    encoded = encode({"pool": recipe.build()})
    assume(b"class" not in encoded.graph)  # it would change the classes of this test
    graph = bytearray(encoded.graph)
    for _ in range(random.randrange(1, 4)):
        graph[random.randrange(len(graph))] = random.randrange(256)
    world: World = {}
    try:
        restore(dataclasses.replace(encoded, graph=bytes(graph)), world)
    except (AssertionError, AttributeError, MemoryError, SystemError):
        raise
    except Exception:  # whatever a reader makes of it, it says so
        return
    assert all(value is not ABSENT for value in world.values())


def test_a_graph_with_a_root_that_has_no_name_is_refused() -> None:
    encoded = encode({"pool": [1]})
    content = msgspec.msgpack.decode(encoded.graph)
    [item] = content["roots"].values()
    content["roots"] = {7: item}

    with pytest.raises(CheckpointDamaged, match=r"objects in the checkpoint cannot be read: .* at `key` in `\$\.roots`"):
        restore(dataclasses.replace(encoded, graph=msgspec.msgpack.encode(content)), {})


@given(
    st.lists(
        st.sampled_from([0, -7, 1 << 63, -(1 << 63), 1.5, float("nan"), math.inf, -0.0, "a", "é", "\ud800", b"x", None, True]),
        max_size=6,
    )
)
def test_scalars_in_a_list_come_back_whatever_their_kinds(values: list[Any]) -> None:
    world: World = {}
    missing = restore(encode({"values": values, "tuple": tuple(values)}), world)

    assert missing == []
    assert [(type(each), repr(each)) for each in world["values"]] == [(type(each), repr(each)) for each in values]
    assert repr(world["tuple"]) == repr(tuple(values))


@pytest.mark.parametrize("value", [1, 1 << 63, (1 << 63) - 1, -(1 << 63), -(1 << 63) - 1, 0.5, math.nan, "a", "é", "\ud800", True])
def test_lists_of_one_kind_come_back(value: Any) -> None:
    world: World = {}

    assert restore(encode({"values": [value] * 3}), world) == []
    assert [(type(each), repr(each)) for each in world["values"]] == [(type(value), repr(value))] * 3
    if type(value) is float:  # lists compare by identity first, and as a key NaN is found by that alone
        assert world["values"] == [value] * 3


def test_every_kind_of_node_is_documented() -> None:
    root = pathlib.Path(__file__).parents[2]
    kinds_written = KINDS.keys() - {"made", "constant", "large"}  # the last two stay in the process
    documented = (root / "docs/reference/format.md").read_text().partition("### The Python graph")[2].partition("## The journal")[0]
    assert len(kinds_written) > 30
    assert sorted(kinds_written - set(re.findall(r"`([\w.]+)`", documented))) == []


@pytest.mark.parametrize("kind", [dict, collections.OrderedDict, collections.defaultdict, collections.deque, list, set])
def test_a_loop_over_what_has_not_changed_goes_on(kind: type) -> None:
    """An outer loop of the program stands in the middle of a container while it is restored."""
    names = ["b", "a", "d", "c"]

    def make() -> Any:
        pairs = [(name, [1.5]) for name in names]
        return kind(list, pairs) if kind is collections.defaultdict else kind(pairs if issubclass(kind, dict) else names)

    after, before = make(), make()
    if issubclass(kind, dict):  # a hole: refilled, the entries would lie elsewhere
        for each in (after, before):
            each["gone"] = each["e"] = 0
            del each["b"], each["gone"]
            each["b"] = 1
    expected = list(after)
    turns = iter(before)
    first = [next(turns), next(turns)]

    assert difference(after, resume({"names": after}, {"names": before})["names"]) is None
    assert first + list(turns) == expected


def test_a_text_that_has_not_changed_stays_the_object_that_it_is() -> None:
    """What is pickled afterwards has the same bytes: pickle writes one text once."""

    def make() -> World:
        text = "".join(["a", "word"])
        return {"number": {text: 1}, "word": {1: text}, "seen": [0, text]}

    assert pickle.dumps(resume(make(), make())) == pickle.dumps(make())


def test_the_name_of_an_attribute_stays_the_object_that_it_is() -> None:
    """As above: an object that is pickled whole, as by `torch.save(model)`, has the same bytes."""

    def make() -> World:
        first, second = (types.SimpleNamespace(number=1, word=2) for _ in range(2))
        return {"objects": [first, second], "names": list(vars(first))}

    def train(world: World) -> None:
        world["objects"][0].number = 5
        vars(world["objects"][1])["new"] = 6

    after, resumed = run_twice(make, train)
    assert pickle.dumps(resumed) == pickle.dumps(after)


def test_names_that_are_keys_of_many_dictionaries_stay_one_text() -> None:
    """As above: what an optimizer keeps of each weight, which `torch.save(optimizer.state_dict())` pickles."""

    def make() -> World:
        return {"state": {}}

    def train(world: World) -> None:
        for number in range(3):
            world["state"][number] = {"exp_avg": number + 1.5, "step": number}

    after, resumed = run_twice(make, train)
    assert pickle.dumps(resumed) == pickle.dumps(after)


def test_what_stands_in_for_open_is_not_where_batches_come_from() -> None:
    """A program that has it by `from io import open` would else load the batches before a cut again."""
    after, before = ({"open": open_files._Open(types.SimpleNamespace(hear=print))} for _ in range(2))
    encoded = encode(after, baseline_of(after))
    assert encoded.not_captured == []
    assert restore(encoded, before, baseline_of(before)) == []
