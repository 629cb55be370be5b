"""The graph of Python objects, as it lies in a checkpoint (format 4): nodes of one form, whatever kind an object is of;
the limits of encoder and decoder, and what they ask of frameworks.

An *item* is a scalar (None, bool, int of 64 bits, float, str, bytes), a list of one number (that of a node), or a list
of one text (the name of an array).
"""

from __future__ import annotations

import gc
import math
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from detrain.base.digest import Array
from detrain.python.inspect.frames import outwards

INT64: Final = range(-(1 << 63), 1 << 63)
"""Numbers that are their own items."""
_ITEMS: Final = frozenset({type(None), bool, bytes})

LARGE_BYTES: Final = 1 << 16
"""Arrays above this size that are as they were when the loop was entered are kept by digest, not by value."""

MAX_DEPTH: Final = 1000
"""Objects nested deeper than this are named, not captured."""
_CALLS_A_LEVEL: Final = 10

NANS: Final = {"math": math.nan, "numpy": np.nan}
"""Well-known objects that are not a number, under which programs look into their tables."""

FORMAT: Final = 4
Item = Any
"""A scalar, `[number of a node]` or `[name of an array]`."""


class Node(msgspec.Struct, array_like=True):
    """One object. What it is, is in `kind` and `data`; what it leads to in `items` and `named`."""

    kind: str
    data: Any = None
    """What of it leads nowhere: lists and scalars."""
    items: list[Item] = []
    named: list[list[Item]] = []
    """Attributes, or what a dictionary holds: pairs of a name or key and a value, which are items both."""
    there: Any = None
    """How a resumed process finds it: the address that it had when the loop was entered; of an array, whether it is as
    it was then. It says nothing of what the object is."""


class Graph(msgspec.Struct):
    """A graph with its named roots."""

    format: int
    nodes: list[Node]
    roots: dict[str, Item]
    lost: list[int] = []
    """Numbers of the nodes that were named as lost."""
    spare: list[int] = []
    """Numbers of those that need not be there."""

    def pack(self) -> bytes:
        """Return the graph as MessagePack."""
        return msgspec.msgpack.encode(self)


def is_reference(item: Item) -> bool:
    """Return whether an item leads to a node."""
    return type(item) is list and len(item) == 1 and type(item[0]) is int


def is_array(item: Item) -> bool:
    """Return whether an item is the name of an array."""
    return type(item) is list and len(item) == 1 and type(item[0]) is str


class Absent:
    """The type of `ABSENT`: there is no live object at this place."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = Absent()


class SharedTensor(msgspec.Struct, frozen=True):
    """A tensor that is changed in place: a look at a memory, which other tensors may share."""

    owner: str
    """Name of the adapter that knows it."""
    memory: Any
    """The same object for all tensors that share it."""
    form: list[Item]
    """How the tensor looks at the memory: class, dtype, offset, shape, strides and the like."""
    extent: tuple[int, int]
    """The bytes of the memory from the first to behind the last that the tensor looks at: what no tensor looks at was
    never written, and is whatever was there."""
    parts: list[object]
    """What else belongs to it and may lead to other tensors: its gradient."""
    loss: str = ""
    """What of it cannot be captured, in words."""
    base: Any = None
    """The tensor that it is a view of, where what is written into the one with gradients is computed for the other."""
    is_parameter: bool = False
    """Whether it was not computed, and has gradients."""


class Span(NamedTuple):
    """Where in the process a memory of tensors or an array lies."""

    start: int
    end: int
    number: int
    path: str
    array: Array | None = None
    memory: SharedTensor | None = None
    is_foreign: bool = False
    """Neither of NumPy's own class nor a framework's: nothing looks into it."""


SPENT_NAMES: Final = "kept|names that are read no more"
"""The root that lists the roots of such names: what they are bound to may be held elsewhere."""
WITH_VARIABLES: Final = "with variables of its own"
"""Of an object that no other one of its class can stand in for."""


class Encoded(msgspec.Struct, frozen=True):
    """A graph as bytes, the arrays it refers to, and what could not be captured (`path (type)`)."""

    graph: bytes
    arrays: dict[str, Array]
    not_captured: list[str]
    moved: list[str] = []
    """What has moved on, and is where it was once a resumed run has loaded the same batches."""


_WITH_CLASS: Final = ("object", "namedtuple", "enum", "static")
"""Kinds of nodes whose data are the name of a class, or begin with it."""


def classes_in(nodes: Iterable[Node]) -> set[str]:
    """Return the names of the classes whose objects are in a graph, and of classes that it holds."""
    named = [node.data if isinstance(node.data, str) else node.data[0] for node in nodes if node.kind in _WITH_CLASS]
    return {name.partition(" @ ")[0] for name in named}


def shown(path: str) -> str:
    """Return a path as messages show it: deep ones without their middle."""
    return path if len(path) <= 120 else f"{path[:60]}…{path[-50:]}"


def key_path(path: str, key: object) -> str:
    """Return the path of a dictionary's value.

    Only plain keys are spelled out: `repr` of others runs the program's code.
    """
    is_plain = key is None or type(key) in (bool, int, float, str, bytes)
    return f"{path}[{_repr(key) if is_plain else type(key).__qualname__}]"


def _repr(key: object) -> str:
    try:
        return f"{key!r:.40}"
    except ValueError:  # more digits than Python writes
        return "int"


def is_item(value: Any) -> bool:
    """Return whether a value is its own item: most are, and they need no path."""
    kind = type(value)
    if kind is str:
        return bool(value.isascii())
    return value in INT64 if kind is int else value == value if kind is float else kind in _ITEMS  # noqa: PLR0124 - not a NaN


def is_plain(values: list[Any]) -> bool:
    """Return whether values are scalars of one kind that are their own items: of millions (a corpus), only C looks at
    each.
    """
    kinds: set[type] = set(map(type, values))
    if kinds == {int}:
        return bool(min(values) in INT64 and max(values) in INT64)
    if kinds == {float}:
        return not any(map(math.isnan, values))
    if kinds == {str}:
        return all(map(str.isascii, values))
    return kinds <= {bool, bytes, type(None)}


@contextmanager
def deep_calls() -> Iterator[None]:
    """Let Python recurse as deeply as MAX_DEPTH takes, from wherever the program called. Calls between Python functions
    take no room on the stack of C since 3.11.

    No garbage is looked for meanwhile: a large state makes millions of objects, none of them garbage, and Python would
    go over all that the process has again and again.
    """
    collects = gc.isenabled()
    gc.disable()
    depth = sum(1 for _ in outwards(sys._getframe()))
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, depth + MAX_DEPTH * _CALLS_A_LEVEL + 1000))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)
        if collects:
            gc.enable()
