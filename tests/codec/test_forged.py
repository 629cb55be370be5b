"""Graphs that were tampered with: a node of a wrong form is one clear error, and a file binds, changes, imports and
runs nothing of Python or a library.
"""

from __future__ import annotations

import collections
import copy
import pathlib
import re
import sys
import threading
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from detrain.base.errors import CheckpointDamaged
from detrain.python.codec.graph_files import unpack
from detrain.python.codec.kind import KINDS
from detrain.python.inspect.names import class_name
from detrain.python.inspect.object_graph import ABSENT, FORMAT, Encoded
from tests.codec import program
from tests.runtime.state_values import Flags, Recipe, World, baseline_of, encode, recipes, restore


def tampered(*nodes: list[object]) -> Encoded:
    """Return a graph of these nodes, whose first one the name `value` holds."""
    graph = msgspec.msgpack.encode({"format": FORMAT, "nodes": list(nodes), "roots": {"value": [0]}})
    return msgspec.structs.replace(encode({}), graph=graph)


def test_flags_of_bits_that_are_no_flags_are_missing_and_end_nothing() -> None:
    name = class_name(Flags)

    assert restore(tampered(["enum", [name, None], [64], [], ""]), {}) != []
    assert restore(tampered(["enum", [name, None], ["no number"], [], ""]), {}) != []


FORMS = {name: kind.form for name, kind in KINDS.items() if kind.form is not None}


def _of_form(name: str) -> list[Any]:
    """Return a node that is of the form of its kind."""
    form = FORMS[name]

    def of(wanted: Any) -> Any:
        cls = wanted[0] if isinstance(wanted, tuple) else wanted
        return None if cls in (type(None), object) else cls()

    data = [of(each) for each in form.data] if isinstance(form.data, list) else of(form.data)
    return [name, data, [[1]] * max(form.least, 1 if form.first and form.most else 0)]


@pytest.mark.parametrize("name", FORMS)
def test_a_node_of_another_form_than_its_kind_has_is_one_error_before_anything_is_put_back(name: str) -> None:
    form, other = FORMS[name], ["list", None, []]
    kind, data, items = _of_form(name)
    spoilt: list[tuple[list[Any], str]] = [([kind, data, [[7]] * max(form.least, 1)], "leads to .7., which is not there")]
    spoilt.append(([kind, data, items, [[1]]], "names what is no pair"))
    if form.data is not object:
        spoilt.append(([kind, {"a": 1}, items], "has data of another form"))
    if form.least:
        spoilt.append(
            ([kind, data, items[1:]] if form.first != "array" else [kind, data, []], f"has {form.least - 1} items, expected")
        )
    if form.most < 9:
        spoilt.append(([kind, data, [[1]] * (form.most + 1)], f"has {form.most + 1} items, expected"))
    if form.first:
        spoilt.append(([kind, data, [5, *items[1:]]], f"expected one that leads to {form.first}"))
    for node, why in spoilt:
        world: World = {"value": [1]}
        with pytest.raises(CheckpointDamaged, match=rf"node 0 \('{re.escape(name)}'\) .*{why}"):
            restore(tampered(node, other), world)
        assert world == {"value": [1]}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ({"nodes": [["reduce", "os:system", ["ls"]]]}, r"node 0 \('reduce'\) is of an unknown kind"),
        ({"roots": {7: [0]}}, r".* at `key` in `\$\.roots`"),
        ({"format": FORMAT + 1}, f"it is of format {FORMAT + 1}"),
    ],
)
def test_a_graph_that_is_none_is_refused(content: dict[str, Any], why: str) -> None:
    graph = msgspec.msgpack.encode({"format": FORMAT, "nodes": [["list"]], "roots": {"a": [0]}} | content)
    with pytest.raises(CheckpointDamaged, match=f"objects in the checkpoint cannot be read: {why}"):
        restore(msgspec.structs.replace(encode({}), graph=graph), {})


@given(recipes, st.randoms(use_true_random=False))
def test_a_damaged_graph_is_refused_or_makes_data(recipe: Recipe, random: Any) -> None:
    encoded = encode({"pool": recipe.build()})
    assume(b"class" not in encoded.graph)  # it would change the classes of this test
    graph = bytearray(encoded.graph)
    for _ in range(random.randrange(1, 4)):
        graph[random.randrange(len(graph))] = random.randrange(256)
    world: World = {}
    try:
        restore(msgspec.structs.replace(encoded, graph=bytes(graph)), world)
    except (AssertionError, AttributeError, MemoryError, SystemError):
        raise
    except Exception:  # whatever a reader makes of it, it says so
        return
    assert all(value is not ABSENT for value in world.values())


# Names that lead elsewhere.


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


_THREAD = threading.Thread(name="kept")


@pytest.mark.parametrize(
    ("live", "nodes"),
    [
        (_THREAD, [["object", ["threading:Thread", 0, False], [], [["_name", "changed"]]]]),
        *(
            (cls, [["class", f"{cls.__module__}:{cls.__qualname__}", [], [["update", 1], ["more", 2]]]])
            for cls in (collections.Counter, list, collections.UserDict, pathlib.PosixPath)
        ),
        (copy.deepcopy, [["function", ["copy:deepcopy"], [[1], None, None], [], "value"], ["tuple", None, [1, 2]]]),
    ],
)
def test_a_graph_changes_nothing_live_of_python_or_a_library(live: Any, nodes: list[list[object]]) -> None:
    world: World = {"value": live, "other": np.linalg.norm}
    baseline = baseline_of(world)
    before = dict(vars(live)), getattr(live, "__defaults__", None)
    restore(tampered(*nodes), world, baseline)
    assert (dict(vars(live)), getattr(live, "__defaults__", None)) == before


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


class Loud:
    __str__ = program.refuse


@pytest.mark.parametrize(
    ("value", "parts"),
    [
        (program.Meters(0.5), ["no number"]),
        (program.Meters(0.5), [None]),
        (program.Meters(0.5), [1, 2, 3]),
        (program.Label("a"), "loud"),
    ],
)
def test_parts_that_make_no_such_value_are_refused(value: object, parts: Any) -> None:
    graph = unpack((encoded := encode({"value": value, "loud": Loud()})).graph)
    node = next(each for each in graph.nodes if each.kind == "value")
    node.items = [graph.roots["loud"]] if parts == "loud" else parts

    assert restore(msgspec.structs.replace(encoded, graph=graph.pack()), {}) != []


def test_every_kind_of_node_is_documented() -> None:
    root = pathlib.Path(__file__).parents[2]
    written = KINDS.keys() - {"made", "constant", "large"}  # the last two stay in the process
    documented = (root / "docs/reference/format.md").read_text().partition("### The Python graph")[2].partition("## The journal")[0]
    assert sorted(written - set(re.findall(r"`([\w.]+)`", documented))) == []
