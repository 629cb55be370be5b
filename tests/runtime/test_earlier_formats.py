"""What earlier versions wrote of Python objects is read: of one object of each kind, as format 3 described it."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import msgspec
import numpy as np
import pytest

from detrain.python.codec.graph_files import unpack
from detrain.python.inspect.names import own_attributes, slots_of
from detrain.python.inspect.object_graph import FORMAT, Encoded
from tests.runtime import golden_world
from tests.runtime.state_compare import difference
from tests.runtime.state_values import World, baseline_of, encode, restore

FILE = Path(__file__).parent / "golden" / "python-3.msgpack"


def written() -> Encoded:
    graph, arrays = msgspec.msgpack.decode(FILE.read_bytes())
    made = {name: np.frombuffer(content, np.dtype(kind)).reshape(shape) for name, (kind, shape, content) in arrays.items()}
    return Encoded(graph, made, [])


def resumed(encoded: Encoded) -> World:
    world = golden_world.made()
    assert restore(encoded, world, baseline_of(world)) == []
    return world


def of_this_version() -> Encoded:
    world = golden_world.made()
    baseline = baseline_of(world)
    return encode(golden_world.moved(world), baseline)


_OF_311 = pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the file has the code of a function, of Python 3.11")


@pytest.mark.parametrize("encoded", [pytest.param(written, marks=_OF_311), of_this_version])
def test_a_world_of_all_kinds_comes_back(encoded: object) -> None:
    found = resumed(encoded())  # type: ignore[operator]
    tool, act, total = golden_world.Tool.table.copy(), golden_world.Tool.act, golden_world.Tool.total
    add, addresses = found.pop("made in the loop"), found.pop("by address")
    expected = golden_world.moved(golden_world.made())
    expected.pop("by address")
    other = expected.pop("made in the loop")

    assert difference(expected, found) is None
    assert (tool, act, total) == ({"k": 1}, golden_world.other_act, 3)
    assert [add(), add()] == [other(), other()] == [8, 9]
    assert addresses == {id(found["node"]): "node"}


def test_nothing_of_it_is_lost_but_what_a_collection_holds_weakly() -> None:
    """Not a class of the program that derives from a generator, either: its state is in a node of its own."""
    assert [loss.partition(" ")[0] for loss in of_this_version().not_captured] == ["weak"]


@pytest.mark.parametrize("value", [np.str_("a\0"), np.bytes_(b"a\0"), np.str_("\0"), np.float32(1.5), np.datetime64("2020", "25s")])
def test_a_scalar_of_numpy_keeps_all_its_bytes(value: np.generic) -> None:
    world: World = {}
    assert restore(encode({"value": value}), world) == []

    assert type(world["value"]) is type(value)
    assert world["value"].dtype == value.dtype
    assert world["value"].tobytes() == value.tobytes()


def test_the_attributes_of_a_namespace_are_attributes() -> None:
    """Its `__dict__` is a member of the class, as slots are."""
    space = types.SimpleNamespace(a=1)

    assert own_attributes(space) is vars(space)
    assert slots_of(types.SimpleNamespace) == {}


def test_both_versions_say_the_same_of_it() -> None:
    one, other = unpack(written().graph), unpack(of_this_version().graph)
    kinds = [{node.kind for node in graph.nodes} for graph in (one, other)]

    assert one.format == other.format == FORMAT
    assert kinds[0] - {"npscalar"} == kinds[1] - {"numpy.generic"}
