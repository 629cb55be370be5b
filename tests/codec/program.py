"""Classes, functions and objects that a program may hold, for the samples; the codec must run none of their code."""

from __future__ import annotations

import contextlib
import datetime
import decimal
import enum
import functools
import importlib
import json
import logging
import random
import re
import sys
import threading
import types
import typing
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tests.runtime import state_values as kinds
from tests.runtime.state_values import World, refuse

sys.path.append(str(Path(__file__).parent / "site-packages"))
LIBRARY: Any = importlib.import_module("library_of_data")
"""Code counts as a library's by its folder."""


def used(value: Any, *uses: Callable[[Any], object], **attributes: object) -> Any:
    """Return a value after using it and setting attributes of it."""
    for use in uses:
        use(value)
    for name, item in attributes.items():
        setattr(value, name, item)
    return value


# Objects.


class Forwarding:
    """An object without a dictionary, whose class has a `__getattr__` for every name."""

    __slots__ = ("inner",)

    def __init__(self, inner: object) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)


class Guarded(dict[str, Any]):
    """A dict whose attributes are its items; they are set by a method."""

    __setattr__ = refuse

    @classmethod
    def made(cls) -> Guarded:
        object.__setattr__(value := cls(a=1), "__dict__", value)
        return value


class Worker(threading.Thread):
    """A class of the program that derives from a library's class."""

    def __init__(self) -> None:
        super().__init__(name="worker")
        self.done, self.items, self.lock = 0, [{"turn": 0}], threading.Lock()

    def work(self) -> None:
        self.done += 1
        self.items[0]["turn"] = self.done


Wrapper: Any = type("Wrapper", (), {"__module__": "gymnasium.wrappers"})


def of_a_library(**attributes: Any) -> Any:
    """Return an object of a library that does not consist of data alone: it holds a thread."""
    made = Wrapper()
    vars(made).update(attributes, thread=threading.Thread(name="waits"))
    return made


class Env(type("Env", (), {"__module__": "gymnasium.core"})):  # type: ignore[misc]
    """A class of the program that derives from a library's class; both keep state in an object of it."""

    def __init__(self, **of_the_library: Any) -> None:
        vars(self).update(of_the_library, rng=np.random.default_rng(0), lives=[3])
        self.steps = 0

    def step(self) -> float:
        self.steps += 1
        self.lives[0] -= 1
        return float(self.rng.random())


class EveryOther(logging.Filter):
    count = 0

    def filter(self, record: logging.LogRecord) -> bool:
        self.count += 1
        return self.count % 2 == 0


class Lines(logging.Handler):
    """A handler that is reached only from its logger, with a filter that is reached only from the handler."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.addFilter(EveryOther())

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


# Objects of classes that derive from values: `class Meters(float)`.


class Meters(float):
    """A class with attributes, as most such classes are."""


class Count(int):
    """A class with more arguments than its value."""

    def __new__(cls, value: int, unit: str) -> Count:
        made = super().__new__(cls, value)
        made.unit = unit
        return made

    unit: str


class Inches(float):
    __slots__ = ("unit",)


class Label(str):
    __slots__ = ()


class Blob(bytes):
    __repr__ = refuse


class Wave(complex): ...


class Pair(tuple[Any, ...]):
    __iter__ = refuse


class Day(datetime.date): ...


class Moment(datetime.datetime): ...


class Money(decimal.Decimal): ...


class Stop(Exception):
    def __init__(self, epoch: int, *, why: str) -> None:
        super().__init__(epoch)
        self.why = why


class Missing(OSError):
    def __init__(self, name: str) -> None:
        super().__init__(2, "no file", name)


class Grid(np.ndarray): ...


class Observed(np.ndarray):
    """A class of arrays that runs its own code for each new array."""

    def __array_finalize__(self, _of: object) -> None: ...


OF_VALUES: dict[str, Callable[[int], Any]] = {
    "float of the program's": lambda number: Meters(number / 3),
    "int of the program's": lambda number: Count(number << 70, f"unit {number}"),
    "float with slots": lambda number: Inches(-0.0 if number == 2 else number),
    "str of the program's": lambda number: Label(f"\ud800{number}"),
    "bytes of the program's": lambda number: Blob(b"%d" % number),
    "complex of the program's": lambda number: Wave(number, -0.0),
    "tuple of the program's": lambda number: Pair((number, str(number))),
    "date of the program's": lambda number: Day(2026, 1, 1 + number),
    "datetime of the program's": lambda number: Moment(2026, 1, 1 + number, tzinfo=datetime.UTC, fold=1),
    "Decimal of the program's": lambda number: Money(f"{number}.10"),
    "exception of the program's": lambda number: Stop(number, why="late"),
    "exception of Python's": lambda number: ValueError("some", number),
    "exception of the system's": lambda number: FileNotFoundError(2, "no file", f"file {number}"),
    "exception of the system's with an `__init__`": lambda number: Missing(f"file {number}"),
    "exception of a library's": lambda number: json.JSONDecodeError("no number", "some text", number),
    "array of the program's": lambda number: np.arange(number).view(Grid),
    "matrix": lambda number: np.full((1, number + 1), number).view(np.matrix),
    "masked array": lambda number: np.ma.masked_array([number, *range(number)], mask=number % 2, fill_value=number),
    "record array": lambda number: np.full(number + 1, number, [("a", "i4"), ("b", "f4")]).view(np.recarray),
}


def grow(tree: Any) -> None:
    tree.children["a"] = LIBRARY.Tree(tree)
    tree.children["a"].parent = tree
    tree.rows = LIBRARY.Row(LIBRARY.Point(np.float32(1)), LIBRARY.Config({"x": 1}))


def shown(value: Any) -> object:
    """Return the parts of a value that `copy` and `pickle` get from its base class: an oracle beside the codec."""
    if isinstance(value, re.Pattern):
        return value.pattern, value.flags
    if isinstance(value, types.UnionType):
        return type(value), value.__args__
    if isinstance(value, type | types.BuiltinFunctionType | np.ufunc | type(Ellipsis) | type(NotImplemented)):
        return value
    base = type(value).__mro__[1] if type(value).__module__ == __name__ else type(value)
    return (
        type(value),
        repr(base.__reduce_ex__(value, 4)[1:]).replace(", {})", ",)"),  # an exception without attributes may have room for them
        vars(value) if base is not type(value) and hasattr(value, "__dict__") else None,
    )


# Random streams.


class Counted(random.Random):
    """A stream that counts its draws; the codec must read and set its state without the class's methods."""

    draws = 0

    def random(self) -> float:
        self.draws += 1
        return super().random()

    getstate = refuse


class Legacy(np.random.RandomState):
    pass


class Modern(np.random.Generator):
    def coin(self) -> bool:
        self.tosses = getattr(self, "tosses", 0) + 1
        return bool(self.random() < 0.5)


def around(bits: Any) -> World:
    return {"legacy": np.random.RandomState(bits), "one": np.random.Generator(bits), "bits": bits, "seeds": bits.seed_seq}


def use_streams(world: World) -> list[object]:
    counted, legacy, modern = world.values()
    drawn = [counted.random(), counted.gauss(0, 1), legacy.normal(), modern.coin(), modern.normal()]
    return [*drawn, counted.draws, modern.tosses]


# Functions, methods and classes.


def closures() -> World:
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


def call(world: World) -> None:
    world["add"]()
    world["add"](3)
    world["add"].__defaults__ = (7,)
    world["add"].calls[0] += 1
    world["add"].more = world["seen"]


def annotated() -> Callable[[int], object]:
    def add(x: int) -> object:
        return x

    add.__annotations__ = {"x": int, "return": object}
    return add


def names(function: Any) -> list[object]:
    return [function.__doc__, function.__name__, function.__qualname__, function.__module__, function.__annotations__]


def signed(a: int, /, b: None = None, *c: float, d: bool = True, **e: object) -> list[str]:
    raise NotImplementedError


def decorate(function: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(function)
    def wrapper(*args: object) -> object:
        return function(*args)

    return wrapper


@decorate
def decorated(value: object) -> object:
    return value


class Base:
    def step(self) -> str:
        return "step"

    def other(self) -> str:
        return "other"


class Sub(Base):
    first = lambda self: 1  # noqa: E731
    second = lambda self: 2  # noqa: E731

    def step(self) -> str:
        return "sub"

    def inherited(self) -> Callable[[], str]:
        return super().step


KNOWN = [Sub.second, decorated.__wrapped__]  # type: ignore[attr-defined]
METHODS: dict[str, tuple[Callable[[Any], Any], object]] = {
    "of the class": (lambda value: value.step, "sub"),
    "of the base": (lambda value: value.other, "other"),
    "by super": (lambda value: value.inherited(), "step"),
    "without a name": (lambda value: value.second, 2),
    "of another function": (lambda value: types.MethodType(decorated, value), None),
    "in a partial call": (lambda value: functools.partial(value.other), "other"),
}
"""Functions that get a bound method of an object, each with the method's result (None: the object)."""


def with_class() -> World:
    class Agent:
        def act(self, memory: list[int] = []) -> int:  # noqa: B006
            memory.append(1)
            return len(memory)

        def still(self) -> int:
            return 1

        def gone(self) -> int:
            return 1

        left = gone

        @staticmethod
        def free(memory: list[int] = []) -> int:  # noqa: B006
            memory.append(1)
            return len(memory)

        @property
        def late(self) -> int:
            return 1

    return {"agent": Agent(), "kind": Agent}


def change_class(world: World) -> None:
    kind = world["kind"]
    world["agent"].act()
    kind.free()
    kind.still, kind.more, kind.late = kind.act, vars(kind)["free"], property(kind.act)
    del kind.gone, kind.left


def use_class(world: World) -> list[object]:
    agent = world["agent"]
    return [
        agent.act(),
        agent.still(),
        agent.free(),
        agent.late if "more" in vars(world["kind"]) else None,
        sorted(vars(world["kind"])),
    ]


class Mode(enum.Enum):
    FAST = 1
    LISTED = ["names"]  # noqa: RUF012 - the value of a member

    def __init__(self, _number: int) -> None:
        self.hits: list[int] = []
        self.count = 0


class Counting(Base):
    total = 0
    names: typing.ClassVar[list[str]] = []


def with_members() -> World:
    Counting.total, Counting.names, Mode.FAST.hits, Mode.FAST.count = 0, [], [], 0
    if hasattr(Counting, "more"):
        del Counting.more
    return {"kind": Counting, "value": Counting(), "mode": Mode}


def change_members(world: World) -> None:
    world["kind"].total, world["kind"].more = 5, [1]
    world["kind"].names.append("a")
    Mode.FAST.hits.append(1)
    Mode.FAST.count += 1


# Arrays.


class Place:
    """Has a hash of its attributes, and is a key of what it holds."""

    def __init__(self, name: str) -> None:
        self.near: set[Place] = set()
        self.roads: dict[tuple[Place, int], object] = {}
        self.name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Place) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    def join(self, other: Place) -> None:
        self.near.add(other)
        self.roads[other, 1] = [self]


def objects(*items: object) -> Any:
    array = np.empty(len(items), object)
    for index, item in enumerate(items):
        array[index] = item
    return array


OWNERS: dict[str, Callable[[], Any]] = {
    "an array": lambda: np.arange(12.0),
    "an array in Fortran's order": lambda: np.asfortranarray(np.arange(12.0).reshape(3, 4)),
    "an array with axes swapped": lambda: np.array(np.arange(24.0).reshape(2, 3, 4).transpose(0, 2, 1), order="K"),
}


def large() -> World:
    data = np.arange(40_000.0)
    small = np.arange(4.0)
    return {"a": data, "b": np.ones(40_000), "c": None, "batch": data[:4], "small": small, "best": small[:]}


def swap_large(world: World) -> None:
    """Bind large arrays to other names, and bind new arrays to the names of views."""
    world["a"], world["b"], world["c"] = world["b"], np.zeros(40_000), world["a"]
    world["batch"], world["best"] = world["c"][8:12], np.full(4, 9.0)


# Objects of Python's library.


class Feed:
    """An iterator of a program's own; each call of `iter` starts it again."""

    def __init__(self, data: list[int]) -> None:
        self.times, self.at, self.data = 0, 0, [*data]

    def __iter__(self) -> Feed:
        self.times, self.at = self.times + 1, 0
        return self

    def __next__(self) -> int:
        if self.at == len(self.data):
            raise StopIteration
        self.at += 1
        return 10 * self.times + self.data[self.at - 1]


WEAK: dict[str, Callable[[list[Any]], Any]] = {
    "weak keys": lambda nodes: weakref.WeakKeyDictionary({nodes[0]: 5}),
    "weak values": lambda nodes: weakref.WeakValueDictionary({"first": nodes[0]}),
    "weak set": lambda nodes: weakref.WeakSet(nodes[:1]),
}


def with_nodes(make: Callable[[list[Any]], Any]) -> Callable[[], World]:
    def made() -> World:
        nodes = [kinds.Loose(0), kinds.Loose(1)]
        return {"nodes": nodes, "weak": make(nodes), "dead": None}

    return made


def change_weak(world: World) -> None:
    weak, node = world["weak"], world["nodes"][1]
    weak.clear()
    if isinstance(weak, weakref.WeakSet):
        weak.add(node)
    else:
        weak.update({node: 7} if isinstance(weak, weakref.WeakKeyDictionary) else {2: node})


def see_weak(world: World) -> list[object]:
    weak, nodes = world["weak"], world["nodes"]
    pairs = weak.items() if isinstance(weak, weakref.WeakKeyDictionary | weakref.WeakValueDictionary) else enumerate(weak)
    return [tuple(nodes.index(each) if each in nodes else each for each in pair) for pair in pairs]


def is_gone(proxy: Any) -> bool:
    with contextlib.suppress(ReferenceError):
        return proxy.__repr__ is None
    return True


# Tables.


def _rows(frame: Any, count: int) -> None:
    for number in range(count):
        frame.loc[len(frame)] = [number / 3, number]


TABLES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "rows added": (lambda: pd.DataFrame(columns=["loss", "step"]), lambda frame: _rows(frame, 3)),
    "a cell set": (lambda: pd.DataFrame(np.ones((4, 3))), lambda frame: frame.__setitem__(1, frame[1] * 0.1)),
    "a column added": (lambda: pd.DataFrame({"a": [1.5, 2.5]}), lambda frame: frame.__setitem__("who", ["x", None])),
    "dates": (lambda: pd.DataFrame({"a": pd.to_datetime(["2020", "2021"])}), lambda frame: frame.__setitem__("b", frame.a.dt.year)),
    "index of dates": (
        lambda: pd.DataFrame({"a": [1.5, 2.5]}, index=pd.date_range("2020", periods=2)),
        lambda frame: frame.__setitem__("a", frame.a * 0.1),
    ),
    "index of levels": (
        lambda: pd.DataFrame({"a": [1.5, 2.5]}, index=pd.MultiIndex.from_tuples([(1, "x"), (1, "y")], names=["k", None])),
        lambda frame: frame.__setitem__("a", frame.a * 0.1),
    ),
    "emptied": (lambda: pd.DataFrame({"a": [1, 2]}), lambda frame: frame.drop(frame.index, inplace=True)),
    "series": (lambda: pd.Series([1.0, 2.0], name="loss"), lambda series: series.__setitem__(0, 0.3)),
    "lists in cells": (lambda: pd.Series([[1], [2]]), lambda series: series.iloc[0].append(5)),
    "attributes": (lambda: pd.Series([1.0]), lambda series: series.attrs.update(best=0.5)),
}
SPARSE = [f"{form}_{kind}" for form in ("bsr", "coo", "csc", "csr", "dia", "dok", "lil") for kind in ("array", "matrix")]


def see_table(table: Any) -> object:
    strides = [getattr(each.values, "strides", None) for each in table._mgr.blocks]
    blocks = table.to_numpy().tobytes() if len(table) > 100 else (strides, [each.values.tolist() for each in table._mgr.blocks])
    return type(table), repr(blocks), [(type(axis), axis.dtype, axis.tolist(), axis.name) for axis in table.axes], table.attrs


def change_sparse(matrix: Any) -> None:
    if matrix.format in ("csr", "csc", "lil", "dok"):
        matrix[2, 3] = 7.5
    else:
        matrix *= 1.5


def see_sparse(matrix: Any) -> object:
    content = matrix.toarray().tobytes() if matrix.shape[0] < 100 else matrix.data.tobytes()
    return type(matrix), matrix.dtype, matrix.shape, content, sorted(vars(matrix))
