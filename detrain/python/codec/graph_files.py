"""A graph as it lies in a checkpoint. The form of each node is checked first, so that a malformed graph gives one clear
error before any value is put back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

import msgspec

from detrain.base.errors import CheckpointDamaged
from detrain.python.codec.graph_of_format_3 import node_of_format_3, unfold
from detrain.python.codec.table import find_kind
from detrain.python.inspect.object_graph import FORMAT, Graph, Item


def unpack(content: bytes, arrays: Collection[str] | None = None) -> Graph:
    """Return the graph that `Graph.pack`, or an earlier version, has written. `arrays`: the names of the arrays beside
    it; without them the graph is not checked, as it was made in this process.

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
            _check(graph.nodes, arrays)
            _check_items(graph.roots.values(), len(graph.nodes), arrays)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:  # those of msgspec are ValueErrors
        raise unreadable(str(error)) from error
    return graph


def unreadable(reason: str) -> CheckpointDamaged:
    """Return the error for a graph that cannot be read."""
    advice = "go on from another checkpoint (--from), or start anew with --fresh"
    return CheckpointDamaged(f"the Python objects in the checkpoint cannot be read: {reason}", advice)


_decoder: Final = msgspec.msgpack.Decoder(Graph)


def _converted(nodes: list[Any]) -> list[Any]:
    """Return the nodes of an earlier version in today's form; parts that were nodes inside of others come last."""
    more: list[Any] = []

    def apart(node: Any) -> Item:
        number = len(nodes) + len(more)
        more.append(None)
        more[number - len(nodes)] = node_of_format_3(node, apart)
        return [number]

    return [*[node_of_format_3(unfold(node, nodes), apart) for node in nodes], *more]


def _check(nodes: Sequence[Any], arrays: Collection[str]) -> None:
    """Check the form of nodes, and that all their items are there. `arrays`: the names of the arrays beside the graph.

    Raises ValueError, with the number of the first malformed node.
    """
    for number, node in enumerate(nodes):
        reason = _reason(node, len(nodes), arrays)
        if reason:
            raise ValueError(f"node {number} ({node.kind!r:.40}) {reason}")


def _check_items(items: Iterable[Any], count: int, arrays: Collection[str]) -> None:
    """Check that each of some items leads somewhere. Raises ValueError."""
    for item in items:
        if type(item) is list and not _leads_somewhere(item, count, arrays):
            raise ValueError(f"{item!s:.40} leads to what is not there")


def _reason(node: Any, count: int, arrays: Collection[str]) -> str:
    """Return why a node is malformed; empty if it is not."""
    kind = find_kind(node.kind)
    if kind is None:
        return "is of an unknown kind"
    form = kind.form
    items = node.items
    for item in (*items, *(each for pair in node.named for each in pair)):
        if type(item) is list and not _leads_somewhere(item, count, arrays):
            return f"leads to {item!s:.40}, which is not there"
    if any(len(pair) != 2 for pair in node.named):
        return "names what is no pair"
    if form is None:
        return ""
    if not _fits(node.data, form.data):
        return f"has data of another form: {node.data!s:.60}"
    if not form.least <= len(items) <= form.most:
        return f"has {len(items)} items, expected {form.least} to {form.most}"
    wanted = {"node": int, "array": str}.get(form.first)
    if wanted is not None and items and not (type(items[0]) is list and type(items[0][0]) is wanted):
        return f"has as its first item {items[0]!s:.40}, expected one that leads to {form.first}"
    return ""


def _leads_somewhere(item: list[Any], count: int, arrays: Collection[str]) -> bool:
    if len(item) != 1 or type(item[0]) not in (int, str):
        return False
    return 0 <= item[0] < count if type(item[0]) is int else item[0] in arrays


def _fits(data: Any, wanted: Any) -> bool:
    if not isinstance(wanted, list):
        return isinstance(data, wanted)
    return isinstance(data, list) and len(data) >= len(wanted) and all(map(isinstance, data, wanted))
