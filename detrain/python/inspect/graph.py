"""The graph of Python objects, as it lies in a checkpoint (format 4): nodes of one form, whatever kind an object is of.

An *item* is a scalar (None, bool, int of 64 bits, float, str, bytes), a list of one number (that of a node), or a list
of one text (the name of an array).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import msgspec

from detrain.base.errors import CheckpointDamaged
from detrain.python.inspect.graph_forms import check, check_items
from detrain.python.inspect.graph_of_format_3 import node_of_format_3, unfold

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


def unpack(content: bytes, arrays: Collection[str] | None = None) -> Graph:
    """Return the graph that `Graph.pack` has written, or an earlier version. `arrays`: the names of those beside it;
    without them the graph is not checked, as it was made in this process.

    Raises CheckpointDamaged for any other bytes.
    """
    try:
        try:
            graph = _decoder.decode(content)
        except msgspec.ValidationError:
            earlier = msgspec.msgpack.decode(content)
            if "format" in earlier:
                raise
            graph = msgspec.convert({**earlier, "format": FORMAT, "nodes": _converted(earlier["nodes"])}, Graph)
        if graph.format != FORMAT:
            raise ValueError(f"it is of format {graph.format}; this detrain reads up to {FORMAT}")
        if arrays is not None:
            check(graph.nodes, arrays)
            check_items(graph.roots.values(), len(graph.nodes), arrays)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:  # those of msgspec are ValueErrors
        raise unreadable(str(error)) from error
    return graph


def unreadable(reason: str) -> CheckpointDamaged:
    """Return the error of a graph that is of no form."""
    advice = "go on from another checkpoint (--from), or start anew with --fresh"
    return CheckpointDamaged(f"the Python objects in the checkpoint cannot be read: {reason}", advice)


_decoder: Final = msgspec.msgpack.Decoder(Graph)


def is_reference(item: Item) -> bool:
    """Return whether an item leads to a node."""
    return type(item) is list and len(item) == 1 and type(item[0]) is int


def is_array(item: Item) -> bool:
    """Return whether an item is the name of an array."""
    return type(item) is list and len(item) == 1 and type(item[0]) is str


def _converted(nodes: list[Any]) -> list[Any]:
    """Return the nodes of an earlier version in today's form; parts that were nodes inside of others come last."""
    more: list[Any] = []

    def apart(node: Any) -> Item:
        number = len(nodes) + len(more)
        more.append(None)
        more[number - len(nodes)] = node_of_format_3(node, apart)
        return [number]

    return [*[node_of_format_3(unfold(node, nodes), apart) for node in nodes], *more]
