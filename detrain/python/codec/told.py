"""What the classes of libraries say themselves that their objects hold: what of it no graph has, is named."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

from detrain.python.codec.encoding import Encoding
from detrain.python.inspect.held import walk
from detrain.python.inspect.names import type_name
from detrain.python.inspect.object_graph import Item, Node, is_reference
from detrain.python.inspect.ownership import makes_plainly, new_object
from detrain.python.inspect.reductions import key, numbers_and_texts, streams_kept, tells, told


def note_told(encoding: Encoding) -> None:
    """Look at what the classes of libraries say themselves that their objects hold. What of it is not in the graph,
    and was not like that when the loop was entered, is named."""
    with streams_kept() if encoding.asked else nullcontext():
        _ask(encoding)


def note_asked(encoding: Encoding, number: int, value: object, path: str) -> None:
    if tells(type(value)) and not encoding.finds_by_place:
        encoding.asked.append((number, value, path))


def _ask(encoding: Encoding) -> None:
    for number, value, path in encoding.asked:
        missed = _not_below(encoding, number, _said(encoding, value))
        if missed and not encoding.baseline.has(value) and makes_plainly(type(value)):
            missed -= _said(encoding, new_object(type(value)))  # a version, say
        if encoding.collects:
            encoding.baseline.add_told(value, missed)
        elif missed != encoding.baseline.told(value) and number not in encoding.lost_numbers:  # it is named already
            encoding.lose(number, path, f"{type_name(value)}: its class says of it what nothing shows")


def _said(encoding: Encoding, value: object) -> set[object]:
    said = told(value)
    return set() if said is None else numbers_and_texts(said, lambda item: id(item) in encoding.numbers)


def _not_below(encoding: Encoding, number: int, wanted: set[object]) -> set[object]:
    """Return those of some numbers and texts that are not in a node, nor in what it leads to."""
    items = walk([[number]], lambda item: _items_below(encoding.nodes, item), lambda item: item[0] if is_reference(item) else None)
    for item in items:
        if not wanted:
            break
        node = encoding.nodes[item[0]] if is_reference(item) else None
        wanted -= {key(item)} if node is None else set(map(key, _flat(node.data)))
    return wanted


def _items_below(nodes: list[Node | None], item: Item) -> list[Item]:
    node = nodes[item[0]] if is_reference(item) else None
    return [] if node is None else [*node.items, *itertools.chain(*node.named)]


def _flat(data: Any) -> Iterator[object]:
    """Yield the scalars of nested lists."""
    if isinstance(data, list | tuple):
        for each in data:
            yield from _flat(each)
    else:
        yield data
