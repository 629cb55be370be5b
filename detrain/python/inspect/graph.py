"""The graph of Python objects, as it lies in a checkpoint (format 4): nodes of one form, whatever kind an object is of.

An *item* is a scalar (None, bool, int of 64 bits, float, str, bytes), a list of one number (that of a node), or a list
of one text (the name of an array).
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

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
