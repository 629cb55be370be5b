"""The table of samples: one or more of each kind of objects that a checkpoint holds."""

from __future__ import annotations

import array
import collections
import concurrent.futures
import contextvars
import csv
import datetime
import decimal
import fractions
import functools
import inspect
import io
import itertools
import logging
import math
import operator
import pathlib
import queue
import re
import struct
import sys
import threading
import time
import types
import typing
import uuid
import weakref
import zoneinfo
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse

from tests.codec import program
from tests.codec.program import objects, used
from tests.codec.sample import Sample, one, replaced
from tests.runtime import state_values as kinds
from tests.runtime.state_values import World

NAN = struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000001))[0]
LARGE = 40_000
"""Elements of an array that a checkpoint keeps by its digest as long as it does not change."""

CONTAINERS = {
    "list": one(lambda: [1, [2]], lambda it: it[1].append(3)),
    "tuple": one(lambda: ([1], "a"), lambda it: it[0].append(it)),
    "dict": one(lambda: {"a": [1], "b": 2, "c": 3}, lambda it: (it["a"].append(-0.0), it.update(d=it), it.pop("b"))),
    "set": one(lambda: {1, 2}, lambda it: (it.add(1 << 70), it.discard(2))),
    "set that pops": one(lambda: {9, 17, 1, 3}, set.pop, lambda it: [it.pop() for _ in range(len(it))], is_returned=False),
    "frozenset": replaced(lambda number: frozenset([number, str(number)])),
    "deque": one(lambda: collections.deque([1], 3), lambda it: it.extend([2, 3, 4])),
    "Counter": one(lambda: collections.Counter("aab"), lambda it: it.update("abc")),
    "OrderedDict": one(lambda: collections.OrderedDict(a=1, b=2), lambda it: it.move_to_end("a")),
    "OrderedDict with attributes": one(collections.OrderedDict, lambda it: setattr(it, "_metadata", {"version": [1]})),
    "Counter with attributes": one(lambda: used(collections.Counter("a"), total=[1]), lambda it: it.total.append(2), vars),
    "defaultdict": one(lambda: collections.defaultdict(list, {1: [2]}), lambda it: it[5].append(1)),
    "UserDict": one(lambda: collections.UserDict(a=1), lambda it: it.update(b=it)),
    "namespace": one(lambda: types.SimpleNamespace(a=1), lambda it: setattr(it, "b", it)),
    "keys that lead to themselves": one(
        lambda: [program.Place("a")],
        lambda it: (it.append(program.Place("b")), it[1].join(it[0]), it[0].join(it[1]), it[1].join(it[1])),
        lambda it: [(each.name, [other in each.near for other in it], each.roads.get((it[0], 1))) for each in it],
    ),
    "keys that are no numbers": one(
        lambda: {math.nan: 1, NAN: 2, "key": NAN},
        lambda it: it.update({math.nan: 3, np.nan: 4}),
        lambda it: (it.get(math.nan), it.get(np.nan), it[it["key"]], len(it)),
    ),
    "slice that leads on": one(lambda: slice([1], None), lambda it: it.start.append(2), remade=("value",)),
    "view for reading": one(lambda: types.MappingProxyType({"a": [0.0]}), lambda it: it["a"].append(1.0), dict),
    **{
        f"{name} of a dict": replaced(lambda number, name=name: getattr({number: 1}, name)(), list, is_seen_only=True)
        for name in ("keys", "values", "items")
    },
    "logger that the loop asks for": one(list, lambda it: it.append(logging.getLogger("asked for"))),
    "slots": one(lambda: kinds.Slotted(1), lambda it: object.__setattr__(it, "other", [3])),
    "dataclass": one(lambda: kinds.Batch([1], np.zeros(2)), lambda it: (it.y.fill(1), setattr(it, "x", it))),
    "frozen": one(lambda: kinds.Config(1), lambda it: object.__setattr__(it, "rate", 2)),
    "slots of a base": one(lambda: kinds.Child(1), lambda it: setattr(it, "more", [it])),
    "slot under a property": one(lambda: kinds.Child(1), lambda it: vars(kinds.Parent)["kept"].__set__(it, [1])),
    "slot that is unset": one(lambda: kinds.Loose(1), vars(kinds.Parent)["_Parent__hidden"].__delete__),
    "slots and attributes": one(lambda: kinds.Loose(1), lambda it: used(it, a=1, kept=[2])),
    "attributes gone": one(lambda: kinds.Batch([1]), lambda it: (delattr(it, "x"), used(it, late=[2]))),
    "list of the program's": one(lambda: kinds.filled(kinds.Row, [1], own=1), lambda it: list.append(it, 2)),
    "set of the program's": one(lambda: kinds.filled(kinds.Bag, [1], own=1), lambda it: set.add(it, "x")),
    "deque of the program's": one(lambda: kinds.Replay(range(4), 3), lambda it: collections.deque.append(it, it)),
    "endless deque of the program's": one(lambda: kinds.Replay([1]), lambda it: collections.deque.append(it, 7)),
    "dict of the program's": one(lambda: kinds.filled(kinds.Table, {1: 2}, own=1), lambda it: dict.__setitem__(it, 3, it)),
    "counter of the program's": one(lambda: kinds.Tally("a"), lambda it: it.update("ab")),
    "order of the program's": one(lambda: kinds.Order(a=1, b=2), lambda it: it.move_to_end("a")),
    "groups of the program's": one(lambda: kinds.Groups(list), lambda it: it[1].append(2)),
    "items as attributes": one(lambda: kinds.AttributeTable(a=1), lambda it: (delattr(it, "a"), used(it, z=1))),
    "hooks that fail": one(program.Guarded.made, lambda it: dict.__setitem__(it, "b", [2])),
    "every name is answered for": one(lambda: program.Forwarding([1]), lambda it: it.inner.append(2)),
    "named tuple": one(lambda: kinds.Point([1]), lambda it: it.x.append(it)),
    "enumeration": replaced(lambda number: list(kinds.Colour)[number % 2]),
    "enumeration of numbers": replaced(lambda number: list(kinds.Level)[number % 2]),
    "flags": replaced(lambda number: (kinds.Flags.A | kinds.Flags.C, kinds.Flags(0), kinds.Flags.B)[number % 3]),
}
"""Containers, and objects of the program's classes."""

lib = program.LIBRARY
OF_LIBRARIES = {
    "config": one(
        lambda: lib.Config({"gone": 1, "lr": 0.1, "inner": lib.Config({"deep": 1})}),
        lambda it: (dict.update(it, lr=[0.5], rest=lib.Config({"z": 1})), dict.update(it["inner"], deep=3), it.pop("gone")),
    ),
    "dict that shows its items as attributes": one(lambda: lib.Shown(a=1), lambda it: it.update(b=[2])),
    "list of a library's": one(lambda: lib.Row([1]), lambda it: (list.append(it, 3.0), list.pop(it, 0), used(it, title=["new"]))),
    "deque of a library's": one(lambda: lib.Queue([1]), lambda it: (it.append(2), used(it, title=["new"]))),
    "set of a library's": one(lambda: lib.Group([1]), lambda it: (set.update(it, [8, 9]), used(it, title=["new"]))),
    "text of a library's": replaced(lib.Tag),
    "made by its class each time anew": replaced(lambda number: used(lib.Made(), number=number)),
    "attribute that comes to hold another object": one(lib.Meter, lambda it: used(it, total=1.5, last=lib.Point(2.5))),
    "tree": one(lib.Tree, program.grow),
    "named tuple that a class holds": one(lib.Keeper, lambda it: it.saved.append(it.Item(0.5, "a.pt"))),
    "partial call of a library's": one(
        lambda: used(lib.Bound(kinds.Batch, [1.0], y=3), title=[]), lambda it: it.args[0].append(it.title), vars
    ),
    "object of the program's that is a thread": one(
        program.Worker, program.Worker.work, lambda it: (it.done, it.items, it.name), is_makeable=False
    ),
    "what a library keeps in an object of the program's": one(
        lambda: program.Env(env=program.Env()),
        lambda it: (it.step(), it.env.step()),
        lambda it: (it.steps, it.lives, it.env.step(), it.env.lives),
        is_makeable=False,
    ),
    "handlers of a logger": one(
        lambda: used(logging.Logger("some"), lambda it: it.addHandler(program.Lines())),
        lambda it: [it.info("line %d", number) for number in range(3)],
        lambda it: (it.info("line 3"), it.info("line 4"), it.handlers[0].lines),
        is_makeable=False,
        is_seen_only=True,
    ),
    "object of a library that leads to the program's": one(
        lambda: program.of_a_library(callbacks=({"each": [kinds.Batch([1], np.zeros(2))]},)),
        lambda it: it.callbacks[0]["each"][0].x.append(2),
        lambda it: it.callbacks[0]["each"][0].x,
        is_makeable=False,
        left=("value",),
    ),
}

VALUES: dict[str, Callable[[int], Any]] = {
    "int": lambda number: number << 70,
    "text of no UTF-8": lambda number: f"\ud800{number}",
    "no number": lambda number: (NAN, math.nan, -math.nan)[number % 3],
    "zeros": lambda number: [0.0, -0.0, complex(-0.0, 0.0), complex(0.0, -0.0)][number],
    "complex": lambda number: complex(number, -0.0),
    "range": lambda number: range(number, 1 << 65, 7),
    "slice": lambda number: slice(number, None, -1),
    "Fraction": lambda number: fractions.Fraction(number, 7),
    "Decimal": lambda number: decimal.Decimal(f"{number}.10"),
    "date": lambda number: datetime.date(2026, 1, number),
    "datetime": lambda number: datetime.datetime(2026, 1, number, 2, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"), fold=1),
    "time": lambda number: datetime.time(number, tzinfo=datetime.timezone(datetime.timedelta(hours=-3, seconds=7), "odd")),
    "timedelta": lambda number: datetime.timedelta(-number, 1, 2),
    "UUID": lambda number: uuid.UUID(int=number),
    "path": lambda number: pathlib.Path(f"a/{number}\udc80"),
    "pure path": lambda number: pathlib.PurePosixPath(f"/{number}"),
    "Windows path": lambda number: pathlib.PureWindowsPath(f"c:\\{number}"),
    "number of NumPy": lambda number: np.float16(number / 3),
    "text of NumPy": lambda number: np.str_(f"{number}\0"),
    "bytes of NumPy": lambda number: np.bytes_(b"%d\0" % number),
    "record of NumPy": lambda number: np.array((number, [1, 2]), [("a", "<f4"), ("b", ">i2", (2,))])[()],
    "dtype": lambda number: np.dtype([("a", "<f4", (number,))]),
    "time in parts": lambda number: time.gmtime(86_400.0 * number),
    "pattern": lambda number: re.compile(f"a{number}", re.IGNORECASE),
    "ellipsis": lambda number: (..., NotImplemented, (0, ...))[number % 3],
    "getter of items": lambda number: operator.itemgetter(number, "a"),
    "getter of attributes": lambda number: operator.attrgetter(f"a.b{number}"),
    "union": lambda number: typing.Union[int, (str, list, dict)[number % 3]],  # noqa: UP007  of another class than `int | str`
    "signature": lambda number: inspect.signature((program.signed, program.shown, program.used)[number % 3]),
    "point in time": lambda number: pd.Timestamp(f"2020-10-25 00:{number}0", tz="Europe/Berlin"),
    "duration": lambda number: pd.Timedelta(number, "ns"),
    "point of whole seconds": lambda number: (pd.Timestamp.max, pd.Timestamp("2020-10-25").as_unit("s"), pd.NaT)[number % 3],
    "class": lambda number: (kinds.Batch, int, np.float32)[number % 3],
    "function that computes": lambda number: (np.less, math.sqrt, operator.lt)[number % 3],
    **program.OF_VALUES,
}

ARRAYS_OF_PYTHON = {
    "bytearray": one(lambda: bytearray(b"ab"), lambda it: it.extend(b"c")),
    "array of Python's": one(lambda: array.array("l", [1, 2]), lambda it: it.append(3), lambda it: (it, it.typecode)),
    "array of one length": one(lambda: array.array("b", [1, 2]), lambda it: it.reverse(), lambda it: (it, it.typecode)),
    "array of another type": replaced(lambda number: array.array("bHd"[number % 3], [number]), lambda it: (it, it.typecode)),
}

STREAMS = {
    **{
        f"stream {name}": Sample(
            lambda name=name: {name: kinds.randoms(3)[name]},
            lambda world: kinds.draw(world, 3),
            lambda world: kinds.draw(world, 2),
            is_returned=name in ("python", "legacy", "legacy on PCG64"),  # streams spawned by others are named
        )
        for name in kinds.randoms(0)
    },
    "streams of shared bits": Sample(
        lambda: program.around(np.random.PCG64(np.random.SeedSequence([1, 2**90], spawn_key=(3,)))),
        lambda world: world["one"].spawn(2),
        lambda world: (world["one"].bit_generator is world["bits"], world["legacy"].rand(), world["one"].spawn(1)[0].random()),
        is_returned=False,
    ),
    "streams of the program's classes": Sample(
        lambda: {"counted": program.Counted(1), "legacy": program.Legacy(2), "modern": program.Modern(np.random.PCG64(3))},
        program.use_streams,
        program.use_streams,
        is_makeable=False,
    ),
}

FUNCTIONS = {
    "closures, defaults and attributes": Sample(program.closures, program.call, lambda w: (w["add"](), w["read"]())),
    "functions that make functions": Sample(
        lambda: {"double": None} | (made := kinds.make_functions(2)) | {"double": made["make"](1)},
        lambda w: (w["add"](3), w.update(double=w["make"](2))),
        lambda w: (w["double"](), w["add"](1), w["double"](), w["fall"](4), w["log"], program.names(w["add"])),
    ),
    "functions that are alike by name": Sample(
        lambda: dict(zip("abc", [*(calls := [lambda: 1, lambda: 2]), calls[0]], strict=True)),
        lambda w: w.update(c=w["b"]),
        lambda w: w["c"](),
    ),
    "decorated": Sample(
        lambda: {"a": program.decorated, "b": [program.decorated.__wrapped__], "c": program.decorated},  # type: ignore[attr-defined]
        lambda w: w.update(c=w["b"][0]),
        lambda w: (program.decorated(3), w["c"](3), w["c"] is w["b"][0]),
        is_makeable=False,
    ),
    **{
        f"method {name}": Sample(
            lambda: {"value": (value := program.Sub()), "call": value.first, "known": [*program.KNOWN]},
            lambda w, choose=choose: w.update(call=choose(w["value"])),
            lambda w, result=result: w["call"]() == (w["value"] if result is None else result),
            is_makeable=result is not None,
        )
        for name, (choose, result) in program.METHODS.items()
    },
    "methods of containers and streams": Sample(
        lambda: {"list": (it := [1]), "add": it.append, "stream": (bits := np.random.default_rng(3)), "draw": bits.normal},
        lambda w: (w["add"](2), w["draw"]()),
        lambda w: (w["add"](3), w["draw"](), w["list"]),
    ),
    "annotations": one(program.annotated, lambda it: used(it, calls=[1]), lambda it: it.__annotations__),
    "partial call": one(lambda: functools.partial(kinds.Batch, [1], y=2), lambda it: it.args[0].append(it), remade=("value",)),
    "partial call that is given attributes": one(
        lambda: functools.partial(kinds.Batch, [1]), lambda it: used(it, title=["new"]), vars, remade=("value",)
    ),
    "partial call with attributes": one(
        lambda: used(functools.partial(kinds.Batch, [1]), title=["old"]), lambda it: it.title.append("new"), vars
    ),
    "methods of a class": Sample(program.with_class, program.change_class, program.use_class, is_makeable=False, is_seen_only=True),
    "what a class and its members hold": Sample(
        program.with_members,
        program.change_members,
        lambda _: (
            program.Counting.total,
            program.Counting.names,
            vars(program.Counting).get("more"),
            program.Mode.FAST.hits,
            program.Mode.FAST.count,
        ),
        is_makeable=False,
    ),
}

ARRAYS = {
    "array": one(lambda: np.zeros((2, 3)), lambda it: it.__setitem__(1, np.nan)),
    "array in Fortran's order": one(lambda: np.asfortranarray(np.ones((2, 3))), lambda it: it.__setitem__((0, 1), -0.0)),
    "array with its axes turned": one(
        lambda: np.array(np.arange(24.0).reshape(2, 3, 4).transpose(2, 0, 1), order="K"), lambda it: it.__setitem__((0, 1, 1), -0.0)
    ),
    "array of objects": one(lambda: objects([1], 2), lambda it: it.__setitem__(1, it)),
    "array of one object": one(lambda: np.array({"a": [1]}, object), lambda it: it.item()["a"].append(2)),
    "view of an array of one object": Sample(
        lambda: {"owner": (owner := np.array({"a": 1}, object)), "view": owner.reshape(1)}, lambda w: w["view"][0].update(a=[2])
    ),
    "array for reading": replaced(
        lambda number: used(np.arange(number), lambda it: it.setflags(write=False)), lambda it: it.flags.writeable
    ),
    "array that may be written to again": replaced(
        lambda number: used(np.arange(number), lambda it: it.setflags(write=number == 2)), lambda it: it.flags.writeable
    ),
    **{
        f"views of {name}": Sample(
            lambda owner=owner: {
                **{"view": (array := owner())[1:], "owner": array},
                **{"again": array[::-1].T, "bits": array.view(np.uint64)[1:]},
            },
            lambda w: w["view"].fill(7),
            lambda w: w["owner"].fill(5),
        )
        for name, owner in program.OWNERS.items()
    },
    "views of an array of objects": Sample(
        lambda: {"owner": (owner := objects([1], [2], 3)), "view": owner[1:3]}, lambda w: w["view"].fill(7)
    ),
    "view before its large owner": Sample(
        lambda: {"view": (owner := np.zeros(LARGE))[5:7], "owner": owner}, lambda w: w["owner"].__setitem__(6, 1), is_kept=True
    ),
    "large arrays": Sample(program.large, program.swap_large, is_kept=True),
    "polynomials": Sample(
        lambda: {"old": np.poly1d([1.0, 2.0]), "new": np.polynomial.Polynomial([1.0, 2.0])},
        lambda w: (w["old"].coeffs.fill(5), w["new"].coef.fill(6)),
        lambda w: (w["old"].coeffs.tolist(), w["new"].coef.tolist()),
    ),
}

DATA = [3, 1, 4, 1, 5, 9, 2, 6]
ITERATORS: dict[str, Callable[[list[int]], Iterator[Any]]] = {
    "list": iter,
    "tuple": lambda data: iter(tuple(data)),
    "text": lambda data: iter("".join(map(str, data))),
    "range": lambda data: iter(range(len(data))),
    "reversed": reversed,
    "enumerate": lambda data: enumerate(data, 5),
    "zip": lambda data: zip(data, iter(data), strict=False),
    "map": lambda data: map(operator.neg, data),
    "filter": lambda data: filter(None, data),
    "nested": lambda data: enumerate(zip(data, map(operator.neg, iter(data)), strict=False)),
    "cycle": itertools.cycle,
    "chain": lambda data: itertools.chain(data, data),
    "count": lambda data: itertools.count(data[0]),
    "repeat": lambda data: itertools.repeat(7, 20),
    "islice": lambda data: itertools.islice(data, 1, 7, 2),
    "accumulate": itertools.accumulate,
    "product": lambda data: itertools.product(data[:3], repeat=2),
    "permutations": lambda data: itertools.permutations(data[:4], 2),
    "combinations": lambda data: itertools.combinations(data[:5], 3),
    "compress": lambda data: itertools.compress(data, iter([1, 0, 1, 1, 0, 1, 1, 1])),
    "zip_longest": lambda data: itertools.zip_longest(data, data[:3], fillvalue=0),
    "tee": lambda data: itertools.tee(data)[0],
    "cycle of a product": lambda data: itertools.cycle(itertools.product(data[:2], data[:3])),
}
OVER_A_FEED: dict[str, Callable[[program.Feed], Iterator[Any]]] = {
    "enumerate": enumerate,
    "zip": lambda feed: zip(feed, range(9), strict=False),
    "map": lambda feed: map(operator.neg, feed),
    "filter": lambda feed: filter(None, feed),
    "nested": lambda feed: enumerate(zip(range(9), feed, strict=False)),
    "accumulate": itertools.accumulate,
    "chain": lambda feed: itertools.chain([1, 2], feed),
    "compress": lambda feed: itertools.compress(feed, [1, 0, 1, 1, 0, 1, 1, 1]),
    "cycle": itertools.cycle,
    "dropwhile": lambda feed: itertools.dropwhile(bool, feed),
    "islice": lambda feed: itertools.islice(feed, 1, 7, 2),
    "starmap": lambda feed: itertools.starmap(operator.neg, itertools.zip_longest(feed)),
    "takewhile": lambda feed: itertools.takewhile(bool, feed),
    "tee": lambda feed: itertools.tee(feed)[0],
    "zip_longest": lambda feed: itertools.zip_longest(range(9), feed),
}
"""Iterators over an iterator of the program, which `iter` starts again: the codec must not call `iter` on it."""
ON_3_14_AS_WELL = {
    *("list", "tuple", "text", "range", "reversed", "enumerate", "zip", "map", "filter", "nested"),
    *("chain", "count", "cycle", "islice", "repeat"),
}


def taken(iterator: Iterator[Any], count: int) -> list[Any]:
    return list(itertools.islice(iterator, count))


STEPS = (1, 2, 3, 5, 12)
"""The numbers of elements taken from the iterators: some in the middle of the data, the last at its end."""


def _far(of: str, makers: dict[str, Any], source: Callable[[list[int]], Any]) -> Iterator[tuple[str, Sample]]:
    steps = [each for each in STEPS if source is list or each < 12]
    iterators = tuple(f"iterator {each}" for each in steps)

    def world(make: Any) -> World:
        sources = {f"source {each}": source(DATA) for each in steps}
        return sources | dict(zip(iterators, map(make, sources.values()), strict=True))

    def see(found: World) -> object:
        return [{**getattr(found[f"source {each}"], "__dict__", {})} for each in steps], [taken(found[n], 20) for n in iterators]

    for name, make in makers.items():
        if sys.version_info < (3, 14) or name in ON_3_14_AS_WELL:
            yield (
                f"{name} over {of}",
                Sample(
                    lambda make=make: world(make),  # type: ignore[misc]
                    lambda found: [taken(found[f"iterator {each}"], each) for each in steps],
                    see,
                    remade=iterators,
                    left=iterators,
                    is_seen_only=True,
                ),
            )


def _memory(make: Callable[[Any], Any], text: Any) -> Sample:
    """Return a sample of a file in memory to which the loop writes and from which `see` reads."""
    return one(
        lambda: make(text),
        lambda it: (it.write(text * 2), it.seek(3)),
        lambda it: (it.tell(), it.read(), it.getvalue()),
        left=("value",),
    )


_TEE = Sample(
    lambda: dict(zip(("far", "near"), itertools.tee(iter(range(200))), strict=True)),
    lambda w: (taken(w["far"], 100), taken(w["near"], 3)),
    lambda w: (taken(w["near"], 120), taken(w["far"], 2)),
    remade=("far", "near"),
    left=("far", "near"),
    is_seen_only=True,
)
LIBRARY = {
    **({"two of one tee": _TEE} if sys.version_info < (3, 14) else {}),
    "text in memory": _memory(io.StringIO, "ab\né"),
    "bytes in memory": _memory(io.BytesIO, b"ab\n"),
    "writers of CSV": Sample(
        lambda: {"memory": (memory := io.StringIO()), "writer": csv.writer(memory, delimiter=";"), "late": None},
        lambda w: (w["writer"].writerow([1]), w.update(late=csv.DictWriter(w["memory"], ["a", "b"], quoting=csv.QUOTE_ALL))),
        lambda w: [
            w["writer"].writerow([2, "a"]),
            w["late"] and w["late"].writerow({"a": 1, "b": "x;y"}),
            w["memory"].getvalue(),
        ],
        left=("memory",),
    ),
    "event": one(threading.Event, lambda it: it.set(), lambda it: it.is_set()),
    "what a thread keeps to itself": one(
        lambda: used(threading.local(), items=[0]), lambda it: (it.items.append(1), used(it, new=it.items)), vars
    ),
    "variable of a context": one(
        lambda: used(contextvars.ContextVar("value"), lambda it: it.set([1])),
        lambda it: it.set([2]),
        lambda it: it.get(None),
        is_makeable=False,
    ),
    "job that is done": replaced(
        lambda number: used(concurrent.futures.Future(), lambda it: it.set_result([number])), lambda it: it.result()
    ),
    **{
        cls.__name__: one(
            lambda cls=cls: used(cls(), *(lambda it, number=number: it.put([number]) for number in (3, 1, 2))),
            lambda it: (it.get(), it.put([9])),
            lambda it: (getattr(it, "unfinished_tasks", 0), [it.get() for _ in range(it.qsize())]),
        )
        for cls in (queue.Queue, queue.LifoQueue, queue.PriorityQueue, queue.SimpleQueue)
    },
    **{
        name: Sample(program.with_nodes(make), program.change_weak, program.see_weak, lost=("weak",), is_seen_only=True)
        for name, make in program.WEAK.items()
    },
    "weak reference": Sample(
        program.with_nodes(lambda nodes: weakref.ref(nodes[0])),
        lambda w: w.update(weak=weakref.ref(w["nodes"][1]), dead=weakref.ref(kinds.Loose(2))),
        lambda w: (w["nodes"].index(w["weak"]()), w["dead"] and w["dead"]()),
    ),
    "weak proxy": Sample(
        program.with_nodes(lambda nodes: weakref.proxy(nodes[0])),
        lambda w: w.update(weak=weakref.proxy(w["nodes"][1]), dead=weakref.proxy(kinds.Loose(2))),
        lambda w: (w["weak"].__repr__.__self__ is w["nodes"][1], program.is_gone(w["dead"])),
        is_seen_only=True,
    ),
}

FRAMES = {
    **{f"table, {name}": one(make, change, program.see_table) for name, (make, change) in program.TABLES.items()},
    "table of several blocks": replaced(
        lambda number: pd.concat([pd.DataFrame({"a": [number, 0.2], "b": [0.3, 0.4]}), pd.DataFrame({"a": [0.5], "b": [0.6]})]),
        program.see_table,
    ),
    **{
        name: one(
            lambda name=name: getattr(sparse, name)(sparse.random(4, 6, 0.4, random_state=1)),
            program.change_sparse,
            program.see_sparse,
        )
        for name in program.SPARSE
    },
    "large table": one(
        lambda: pd.DataFrame(np.arange(float(LARGE)).reshape(-1, 4)),
        lambda it: it.iloc.__setitem__((0, 0), -1.0),
        program.see_table,
        left=("value",),
        is_kept=True,
    ),
    "large sparse matrix": one(
        lambda: sparse.random(3000, 3000, 0.01, format="csr", random_state=0),
        lambda it: it.data.__setitem__(0, -1.0),
        program.see_sparse,
        left=("value",),
        is_kept=True,
    ),
}

SAMPLES: dict[str, Sample] = {
    **CONTAINERS,
    **OF_LIBRARIES,
    **{name: replaced(make, program.shown) for name, make in VALUES.items()},
    **ARRAYS_OF_PYTHON,
    **STREAMS,
    **FUNCTIONS,
    **ARRAYS,
    **dict(_far("data", ITERATORS, list)),
    **dict(_far("a feed", OVER_A_FEED, program.Feed)),
    **LIBRARY,
    **FRAMES,
}
