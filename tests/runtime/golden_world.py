"""A world with one object of each kind, and what a loop does to it: what earlier versions wrote of it must be read.

`Path(FILE).write_bytes(golden_world.packed())`, with the last version of a format, makes the file that stays.
"""

from __future__ import annotations

import collections
import csv
import datetime
import decimal
import functools
import io
import itertools
import logging
import math
import pathlib
import random
import re
import threading
import types
import uuid
import weakref
import zoneinfo
from collections.abc import Callable
from typing import Any, ClassVar

import msgspec
import numpy as np

from tests.runtime import state_values as kinds
from tests.runtime.state_values import World, baseline_of, encode

SEED = 5


class Counted(logging.Handler):
    """Derives from a class of Python's library."""

    lines = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.last = record.msg


class Drawing(random.Random):
    """Derives from a generator."""

    calls = 0


class Tool:
    """Holds state in the class, and has its methods replaced."""

    total = 0
    table: ClassVar[dict[str, int]] = {}

    def act(self) -> str:
        return "old"

    @staticmethod
    def fixed() -> str:
        return "fixed"


def other_act(_self: Tool) -> str:
    return "new"


def counter(start: int) -> Callable[[], int]:
    count = start

    def add() -> int:
        nonlocal count
        count += 1
        return count

    return add


def made() -> World:
    """Return what there is when a loop is entered."""
    Tool.total, Tool.table = 0, {}
    for name, method in (("act", _ACT), ("fixed", staticmethod(_FIXED))):
        setattr(Tool, name, method)
    nested: Any = [1, 2.5, "text", b"bytes", None, True]
    base = np.arange(12.0)
    ordered = collections.OrderedDict(b=1, a=2)
    vars(ordered)["metadata"] = {"version": 1}
    node = kinds.Loose(1)
    holder: World = {
        "nested": nested,
        "again": nested,
        "containers": [
            collections.deque([1, 2], 3), collections.Counter("aab"), collections.defaultdict(list, {"a": [1]}), ordered,
            {1, 2}, frozenset({1, 2}), kinds.Point(1, [2]),
        ],
        "derived": [
            kinds.filled(kinds.Table, {"k": 1}, own=1), kinds.filled(kinds.Row, [1], own=2), kinds.filled(kinds.Bag, {1}, own=3),
            kinds.AttributeTable(a=1), kinds.Child(4), node, kinds.Batch(1, [2]),
        ],
        "values": [], "generators": {**kinds.randoms(SEED), "derived": Drawing(1)},
        "array": base, "view": base[2:8].reshape(2, 3), "large": np.arange(40_000.0),
        "objects": np.array([nested, None, 3], object),
        "add": counter(1), "bound": nested.append, "partial": functools.partial(kinds.Batch, 1, y=nested),
        "tool": Tool(), "handler": Counted(), "made in the loop": None, "iterators": [],
        "file": io.StringIO("ab"), "shown": types.MappingProxyType({"a": nested}), "event": threading.Event(),
        "weak": weakref.WeakValueDictionary(), "node": node, "by address": {},
        "pattern": re.compile("a+"), "slice": slice(1, 2, 3), "space": types.SimpleNamespace(a=1, b=nested),
    }  # fmt: skip
    return holder


_ACT, _FIXED = Tool.act, Tool.fixed


def moved(world: World) -> World:
    """Do to a world what a loop does."""
    world["nested"] += [1 << 70, float("nan"), math.nan, "\ud800", 1 - 2j, bytearray(b"ab"), world["node"]]
    deque, tally, groups, ordered, names, _frozen, point = world["containers"]
    deque.append(3), tally.update("b"), groups["b"].append(2), ordered.update(c=3), names.add(3), point.y.append(3)
    vars(ordered)["metadata"]["version"] = 2
    table, row, bag, attributes, child, loose, batch = world["derived"]
    dict.__setitem__(table, "more", 2), list.append(row, 2), set.add(bag, 2)
    attributes["b"], child.more, loose.link, batch.x = 2, [5], child, loose
    world["values"] = [
        datetime.date(2020, 1, 2), datetime.datetime(2020, 1, 2, 3, fold=1, tzinfo=datetime.UTC), datetime.time(1, 2),
        datetime.timedelta(1, 2, 3), datetime.timezone(datetime.timedelta(hours=2), "odd"), zoneinfo.ZoneInfo("UTC"),
        decimal.Decimal("1.50"), uuid.UUID(int=7), pathlib.Path("a/b"), pathlib.PureWindowsPath("c:\\x"), range(1, 9, 2),
        np.float32(1.5), np.str_("ab"), np.bytes_(b"a\0b"), np.dtype("<f4"), np.datetime64("2020-01-02"),
        kinds.Colour.BLUE, kinds.Flags.A | kinds.Flags.C, kinds.Level.HIGH, int, collections.Counter,
    ]  # fmt: skip
    kinds.draw({name: each for name, each in world["generators"].items() if name != "derived"}, 2)
    world["generators"]["derived"].random()
    world["generators"]["derived"].calls = 3
    world["array"] += 1
    world["array"], world["kept array"] = world["array"] * 2, world["array"]
    world["objects"][1] = world["tool"]
    world["add"](), world["add"]()
    Tool.total, Tool.act = 3, other_act  # type: ignore[method-assign]
    Tool.table["k"] = 1
    world["handler"].emit(logging.makeLogRecord({"msg": "said"}))
    world["made in the loop"] = counter(7)
    numbers = iter([1, 2, 3])
    next(numbers)
    world["iterators"] = [numbers, enumerate([5, 6], 3), itertools.count(4), zip([1], [2], strict=False)]
    world["file"].seek(2)
    world["writer"] = csv.writer(world["file"])
    world["writer"].writerow([1, "b"])
    world["space"].a = 2
    world["event"].set()
    world["weak"]["node"] = world["node"]
    world["by address"] = {id(world["node"]): "node"}
    world["pattern"], world["slice"] = re.compile("b", re.IGNORECASE), slice(None, 4)
    return world


def packed() -> bytes:
    """Return the state of the world after the loop, as a checkpoint holds it: the graph and its arrays."""
    world = made()
    baseline = baseline_of(world)
    encoded = encode(moved(world), baseline)
    assert [each for each in encoded.not_captured if not each.startswith(("weak ", "generators['derived']"))] == []
    arrays = {name: (array.dtype.str, list(array.shape), array.tobytes()) for name, array in encoded.arrays.items()}
    return msgspec.msgpack.encode((encoded.graph, arrays))
