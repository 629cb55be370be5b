"""Graphs of objects: what they share, how deep they are, and what the order of sets and keys hangs on."""

from __future__ import annotations

import collections
import dataclasses
import math
import pickle
import struct
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detrain.python.inspect.hooks import Hooks
from tests.codec import program
from tests.codec.sample import hold, places, put_back, resumed, run_twice
from tests.runtime import state_values as kinds
from tests.runtime.state_compare import difference
from tests.runtime.state_values import Recipe, World, baseline_of, encode, recipes, restore

# Any graph.


@given(recipes)
def test_a_graph_that_is_restored_where_nothing_is_comes_back_to_the_bit(recipe: Recipe) -> None:
    pool = recipe.build()
    assert difference(pool, resumed({"pool": pool}, {})["pool"]) is None


@given(recipes, recipes)
def test_what_lay_in_the_place_of_a_graph_does_not_show(recipe: Recipe, other: Recipe) -> None:
    pool = recipe.build()
    assert difference(pool, resumed({"pool": pool}, {"pool": other.build()})["pool"]) is None


@given(recipes, recipes)
def test_what_differs_in_a_graph_of_the_same_making_is_put_right(recipe: Recipe, other: Recipe) -> None:
    pool = recipe.build()
    like = dataclasses.replace(recipe, leaves=other.leaves, links=other.links).build()
    assert difference(pool, resumed({"pool": pool}, {"pool": like})["pool"]) is None


@given(recipes)
def test_encoding_changes_nothing_and_the_same_graph_has_the_same_bytes(recipe: Recipe) -> None:
    pool = recipe.build()
    encoded = encode({"pool": pool}, baseline_of({"pool": pool}))
    assert difference(pool, recipe.build()) is None
    assert encoded.graph == encode({"pool": pool}, baseline_of({"pool": pool})).graph
    assert encode({"pool": pool}).graph == encode({"pool": recipe.build()}).graph


def spoil(value: Any) -> None:
    """Change an object in place, if it can be."""
    match value:
        case list():
            list.insert(value, 0, "spoilt")
        case collections.deque():
            collections.deque.appendleft(value, "spoilt")
        case collections.Counter() | dict():
            for key in list(dict.keys(value))[:1]:
                dict.__delitem__(value, key)
            dict.__setitem__(value, "spoilt", 1)
        case bytearray():
            value += b"spoilt"
        case np.ndarray() if value.flags.writeable and value.dtype != object and value.size and value.ndim:
            if value.flags.c_contiguous:
                value.view(np.uint8).reshape(-1)[:1] ^= 0xFF
    if type(value).__module__.startswith("tests.") and isinstance(getattr(value, "__dict__", None), dict):
        vars(value)["spoilt"] = 1


@given(recipes)
def test_what_is_done_to_a_graph_is_undone_in_the_very_objects(recipe: Recipe) -> None:
    pool = recipe.build()
    held, objects = hold({"pool": pool}), list(pool)

    for value in objects:
        spoil(value)
    pool.clear()
    world, missing = put_back(held)

    assert (missing, world["pool"] is pool) == ([], True)
    values = bool | int | float | complex | str | bytes | np.generic | None
    assert all(one is other or isinstance(one, values) for one, other in zip(pool, objects, strict=True))
    assert difference(pool, recipe.build()) is None


@given(st.integers(0, 2**64 - 1), st.floats() | st.just(-0.0), st.integers(), st.text(), st.binary())
def test_every_bit_counts(bits: int, number: float, count: int, text: str, content: bytes) -> None:
    value = struct.unpack("<d", struct.pack("<Q", bits))[0]
    world: World = {"value": value, "pair": complex(value, -0.0), "scalar": np.uint64(bits).view(np.float64)}
    world["own"] = [program.Meters(number), program.Count(count, text), program.Label(text), program.Blob(content)]
    there = resumed(world, {})

    assert struct.pack("<d", there["value"]) == struct.pack("<d", there["pair"].real) == struct.pack("<Q", bits)
    assert there["scalar"].view(np.uint64) == bits
    assert list(map(program.shown, there["own"])) == list(map(program.shown, world["own"]))


SCALARS = [
    *(0, -7, 1 << 63, (1 << 63) - 1, -(1 << 63), -(1 << 63) - 1),
    *(1.5, math.nan, -0.0),
    *("a", "é", "\ud800", b"x", None, True),
]


@given(st.lists(st.sampled_from(SCALARS), max_size=6) | st.sampled_from(SCALARS).map(lambda each: [each] * 3))
def test_scalars_in_a_list_come_back_whatever_their_kinds(values: list[Any]) -> None:
    there = resumed({"values": values, "tuple": tuple(values)}, {})

    assert [(type(each), repr(each)) for each in there["values"]] == [(type(each), repr(each)) for each in values]
    assert repr(there["tuple"]) == repr(tuple(values))
    if set(map(type, values)) == {float}:  # lists compare by identity first, and as a key NaN is found by that alone
        assert there["values"] == values


# What is shared, and what is deep.


def test_names_that_held_one_object_and_no_longer_do_come_apart() -> None:
    one: list[int] = [0]
    assert resumed({"a": [1], "b": [2]}, {"a": one, "b": one}) == {"a": [1], "b": [2]}


def test_values_that_hold_themselves_come_back() -> None:
    loop: list[Any] = []
    inside: tuple[Any, ...] = (loop, [])
    loop += [loop, inside]
    inside[1].append(inside)
    batch = kinds.Batch(None)
    batch.x = {"me": batch, "point": kinds.Point(batch, [])}
    batch.x["point"].y.append(batch.x["point"])
    world = {"loop": loop, "inside": inside, "batch": batch}
    assert difference(world, resumed(world, {})) is None


AROUND: dict[str, Callable[[Any], Any]] = {
    "list": lambda value: [value],
    "dict": lambda value: {"a": value},
    "tuple": lambda value: (1, value),
    "object": kinds.Batch,
    "slots": kinds.Slotted,
}


@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND)
def test_values_may_be_nested_as_deeply_as_programs_nest_them_and_are_named_beyond(around: Callable[[Any], Any]) -> None:
    def nested(count: int) -> Any:
        value: Any = []
        for _ in range(count):
            value = around(value)
        return value

    def depth(value: Any) -> int:
        count = 0
        while value != []:
            [value] = [each for each in pickle_parts(value) if not isinstance(each, int | str | None)]
            count += 1
        return count

    def pickle_parts(value: Any) -> list[Any]:
        if isinstance(value, kinds.Batch | kinds.Slotted):
            return [value.x if isinstance(value, kinds.Batch) else value.one]
        return list(value.values() if isinstance(value, dict) else value)

    assert depth(resumed({"deep": nested(900)}, {})["deep"]) == 900
    [said] = encode({"deep": nested(5000)}).not_captured
    assert "nested too deeply" in said


@pytest.mark.parametrize("other", [2, None])
def test_the_length_of_a_deque_is_its_own_in_a_subclass_too(other: int | None) -> None:
    assert (
        difference(kinds.Replay(range(4), 3), resumed({"v": kinds.Replay(range(4), 3)}, {"v": kinds.Replay(range(4), other)})["v"])
        is None
    )


# Addresses, and the order of sets.


@pytest.mark.parametrize("is_first", [True, False])
def test_keys_that_are_addresses_lead_to_the_objects_of_each_process(is_first: bool) -> None:
    def make() -> World:
        world: World = {"table": {7: 2.0}, "item": [0.0], "other": kinds.Loose(0)}
        return world if is_first else dict(reversed(world.items()))

    def change(world: World) -> None:
        world["made"] = made = [1.0]
        world["table"] |= {id(world["item"]): 1.0, id(made): 4.0, id(world["other"]): 3.0}

    _after, before = run_twice(make, change)
    assert list(before["table"]) == [7, id(before["item"]), id(before["made"]), id(before["other"])]


@pytest.mark.parametrize("is_first", [True, False])
def test_a_set_of_addresses_has_those_of_the_objects_of_each_process(is_first: bool) -> None:
    def make() -> World:
        item = [0.0]
        world: World = {"stored": {id(item), 7}, "kept": frozenset({1}), "item": item, "other": kinds.Loose(0)}
        return world if is_first else dict(reversed(world.items()))

    def change(world: World) -> None:
        world["made"] = made = [[float(number)] for number in range(20)]  # enough to lie in another order
        world["stored"].remove(id(world["item"]))
        world["stored"] |= {id(world["other"]), *map(id, made)}

    after, before = run_twice(make, change)
    assert before["stored"] == {7, id(before["other"]), *map(id, before["made"])}
    assert after["stored"].isdisjoint(before["stored"] - {7})


def test_an_object_whose_address_comes_first_is_the_live_one() -> None:
    def make() -> World:
        item = [0.0]
        return {"stored": {id(item)}, "table": {id(item): 1}, "item": item}

    after, before = make(), make()
    after["item"].append(1.0)
    live = before["item"]
    assert restore(encode(after, baseline_of(after)), before, baseline_of(before)) == []
    assert before["item"] is live
    assert before == {"stored": {id(live)}, "table": {id(live): 1}, "item": [0.0, 1.0]}


@pytest.mark.parametrize("kind", [kinds.Table, kinds.Bag])
def test_addresses_in_what_derives_from_a_dictionary_or_a_set_are_those_of_each_process(kind: Any) -> None:
    def make() -> World:
        item = [0.0]
        return {"held": kind({id(item): 0} if issubclass(kind, dict) else [id(item)]), "item": item}

    after, before = make(), make()
    assert restore(encode(after, baseline_of(after)), before, baseline_of(before)) == []
    base: Any = dict if issubclass(kind, dict) else set
    assert list(base.__iter__(before["held"])) == [id(before["item"])]


@pytest.mark.parametrize(
    ("made", "text"),
    [(set, "for each in table: print(each)"), (frozenset, "")],
    ids=["a set that the program goes over", "one that cannot be filled later"],
)
def test_a_set_of_addresses_whose_order_is_seen_is_named(
    made: Any, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    item = [0.0]
    world: World = {"table": made([id(item)]), "item": item, "times": {time.time_ns() // 1000 // 8 * 8: 1}}
    (tmp_path / "program.py").write_text(text)
    monkeypatch.setattr(Hooks, "files", lambda _: [str(tmp_path / "program.py")])

    [said] = encode(world, baseline_of(world)).not_captured

    assert said.startswith("table")
    assert "it has addresses (`id`), others in each process" in said


def test_a_set_in_the_order_of_addresses_is_named_unless_it_is_as_it_was() -> None:
    def make() -> World:
        return {"kinds": {int, str, object}, "frozen": frozenset([list, dict, type(None)]), "more": {int, str}}

    after, before = make(), make()
    held, baseline = before["kinds"], baseline_of(after)
    after["more"].add(float)
    encoded = encode(after, baseline)
    assert encoded.not_captured == ["more (set: its order is that of addresses, harmless)"]
    restore(encoded, before, baseline_of(before))
    assert before == after
    assert before["kinds"] is held
    assert encode({"value": {1.0, float("nan")}}).not_captured == ["value (set: its order is that of addresses, harmless)"]


def test_a_set_whose_order_cannot_be_made_again_is_named_within_the_process_only_if_it_has_changed() -> None:
    one, other = program.Base(), program.Base()
    objects = {one, other}
    held = hold({"objects": objects})
    assert put_back(held)[1] == []

    objects.remove(one)

    assert places(put_back(held)[1]) == ["objects"]


def test_a_set_that_had_popped_gives_way_to_one_that_has_not() -> None:
    popped = {1, 2, 3}
    popped.pop()
    wanted = {9, 17, 1}
    there = resumed({"value": wanted}, {"value": popped})["value"]
    assert [there.pop() for _ in range(3)] == [wanted.pop() for _ in range(3)]


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
    expected, turns = list(after), iter(before)
    first = [next(turns), next(turns)]

    assert difference(after, resumed({"names": after}, {"names": before})["names"]) is None
    assert first + list(turns) == expected


# Which texts are one: pickle writes one text once, so that a program that saves by it writes other bytes.


def _a_text() -> World:
    text = "".join(["a", "word"])
    return {"number": {text: 1}, "word": {1: text}, "seen": [0, text]}


def _names_of_attributes() -> World:
    first, second = (types.SimpleNamespace(number=1, word=2) for _ in range(2))
    return {"objects": [first, second], "names": list(vars(first))}


def _train_objects(world: World) -> None:
    world["objects"][0].number = 5
    vars(world["objects"][1])["new"] = 6


def _train_state(world: World) -> None:
    """As `torch.save(optimizer.state_dict())` has it: what an optimizer keeps of each weight."""
    for number in range(3):
        world["state"][number] = {"exp_avg": number + 1.5, "step": number}


@pytest.mark.parametrize(
    ("make", "change"),
    [(_a_text, len), (_names_of_attributes, _train_objects), (lambda: {"state": {}}, _train_state)],
    ids=["a text", "names of attributes", "keys of many dictionaries"],
)
def test_texts_that_are_one_stay_one(make: Callable[[], World], change: Callable[[World], object]) -> None:
    after, before = run_twice(make, change)
    assert pickle.dumps(before) == pickle.dumps(after)
