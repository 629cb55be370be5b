"""The graph of Python objects in a checkpoint (format 4): nodes of one form for all kinds of objects, the limits of
encoder and decoder, and the record of a framework's tensor.

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
"""Arrays above this size that have not changed since the loop was entered are kept by digest, not by value."""

MAX_DEPTH: Final = 1000
"""Objects nested deeper than this are named, not captured."""
_CALLS_A_LEVEL: Final = 10

NANS: Final = {"math": math.nan, "numpy": np.nan}
"""Well-known NaN objects, which programs use as keys of their tables."""

FORMAT: Final = 4
Item = Any
"""A scalar, `[number of a node]` or `[name of an array]`."""


class Node(msgspec.Struct, array_like=True):
    """One object. `kind` and `data` describe the object itself; `items` and `named` refer to other objects."""

    kind: str
    data: Any = None
    """The part without references: lists and scalars."""
    items: list[Item] = []
    named: list[list[Item]] = []
    """Attributes, or the content of a dictionary: pairs of a name or key and a value, both of them items."""
    there: Any = None
    """The way in which a resumed process finds the object: the address that it had when the loop was entered; for an
    array, whether it is unchanged since then. It does not describe the object itself."""


class Graph(msgspec.Struct):
    """A graph with its named roots."""

    format: int
    nodes: list[Node]
    roots: dict[str, Item]
    lost: list[int] = []
    """Numbers of the nodes that were named as lost."""
    spare: list[int] = []
    """Numbers of the nodes that a resume can do without."""

    def pack(self) -> bytes:
        """Return the graph as MessagePack."""
        return msgspec.msgpack.encode(self)


def is_reference(item: Item) -> bool:
    """Return whether an item is the number of a node."""
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
    """A tensor that is changed in place: a view of a memory, which other tensors may share."""

    owner: str
    """Name of the tensor's adapter."""
    memory: Any
    """The same object for all tensors that share it."""
    form: list[Item]
    """The tensor's view of the memory: class, dtype, offset, shape, strides and the like."""
    extent: tuple[int, int]
    """The bytes of the memory that the tensor covers, from the first to behind the last: bytes that no tensor covers
    were never written, and may have any value."""
    parts: list[object]
    """Other objects that belong to it and may reach other tensors: its gradient, its hooks."""
    loss: str = ""
    """The part of it that cannot be captured, in words; empty if there is none."""
    base: Any = None
    """The tensor of which it is a view, if a write with gradients into one is computed for the other, too."""
    is_parameter: bool = False
    """Whether it has gradients and was not computed from other tensors."""
    graph: Any = None
    """What computed it, if gradients would go back through that; its `metadata` is a dictionary for others' marks."""


class MemorySpan(NamedTuple):
    """The addresses of a memory of tensors, or of an array, in this process."""

    start: int
    end: int
    number: int
    path: str
    array: Array | None = None
    memory: SharedTensor | None = None
    is_foreign: bool = False
    """Whether the memory belongs to a class that is neither NumPy's own nor a framework's: nothing looks into it."""


SPENT_NAMES: Final = "kept|names that are read no more"
"""The root that lists the roots of names that no code reads again: other objects may hold their values."""
UNBOUND_NAMES: Final = "kept|names that the loop has unbound"
"""The root that lists the places of names that were bound when the loop was entered, and are not bound any more."""
WITH_VARIABLES: Final = "with variables of its own"
"""The reason of a loss if no other object of its class can replace the object."""


class Encoded(msgspec.Struct, frozen=True):
    """A graph as bytes, the arrays that it refers to, and the objects that could not be captured (`path (type)`)."""

    graph: bytes
    arrays: dict[str, Array]
    not_captured: list[str]
    moved: list[str] = []
    """Objects that have moved since loop entry; a resumed run moves them, too, by loading the same batches."""


_WITH_CLASS: Final = ("object", "namedtuple", "enum", "static")
"""Kinds of nodes with data that are, or begin with, the name of a class."""


def classes_in(nodes: Iterable[Node]) -> set[str]:
    """Return the names of the classes of the objects in a graph, and of the classes that it holds."""
    named = [node.data if isinstance(node.data, str) else node.data[0] for node in nodes if node.kind in _WITH_CLASS]
    return {name.partition(" @ ")[0] for name in named}


def shown(path: str) -> str:
    """Return a path as messages show it: a long one without its middle."""
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
    except ValueError:  # the number has more digits than Python writes
        return "int"


def is_item(value: Any) -> bool:
    """Return whether a value is its own item. Most values are, and need no path."""
    kind = type(value)
    if kind is str:
        return bool(value.isascii())
    return value in INT64 if kind is int else value == value if kind is float else kind in _ITEMS  # noqa: PLR0124 - not a NaN


def is_plain(values: list[Any]) -> bool:
    """Return whether all values are scalars of one type that are their own items. Only C code looks at each value:
    there may be millions (a corpus).
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
    """Let Python recurse as deeply as MAX_DEPTH needs, from any depth of the program. Since 3.11, calls between Python
    functions take no room on the C stack.

    The garbage collector is off meanwhile: a large state makes millions of objects, none of them garbage, and the
    collector would go over all objects of the process again and again.
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
