"""Objects that are made again from their parts: values, iterators, files in memory, tables, objects of frameworks."""

from __future__ import annotations

import array
import contextlib
import weakref
from collections.abc import Callable
from types import GeneratorType
from typing import Any, Final

import numpy as np

from detrain.base.array_memory import bounds_of
from detrain.python.codec.decoding import Decoding
from detrain.python.codec.encoding import Encoding
from detrain.python.codec.kind import define
from detrain.python.codec.recipes import RECIPES, describe, make_again
from detrain.python.codec.strangers import encode_stranger
from detrain.python.inspect.names import type_name
from detrain.python.inspect.object_graph import ABSENT, MemorySpan, Node
from detrain.python.inspect.progress import place_of, position
from detrain.python.inspect.tables import TABLES, become, is_large, make_table, table_parts

_WEAK: Final = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet)


def encode_made(encoding: Encoding, number: int, value: Any, path: str) -> Node:
    """Encode an object by its parts; as a stranger, if it cannot be made again from them."""
    if type(value) in (bytearray, array.array) and not encoding.collects:
        encoding.spans.append(MemorySpan(*bounds_of(np.frombuffer(value, np.uint8)), number, path, is_foreign=True))
    node = _encode_described(encoding, value, path)
    if node is None:
        return encode_stranger(encoding, number, value, path)
    _note_weak(encoding, value, path)
    return node


def _encode_described(encoding: Encoding, value: object, path: str) -> Node | None:
    """Encode an object by its parts; None if it cannot be made again from them, or is a generator from before the loop,
    which a resumed process has, too.
    """
    if type(value) is GeneratorType and (encoding.collects or encoding.baseline.has(value)):
        return None
    described = describe(value)
    return None if described is None else Node(described[0], None, encoding.encode_all(described[1], path))


def _note_weak(encoding: Encoding, value: object, path: str) -> None:
    """Name a weak collection that has changed: a baseline may keep its objects alive longer than they would live."""
    if type(value) not in _WEAK:
        return
    if encoding.collects:
        encoding.baseline.add_position(value, position(value))
    elif not encoding.baseline.is_at(value, position(value)):
        encoding.name_loss(path, value, f"{type_name(value)}: when what it holds is let go of is not as without detrain")


def encode_table(encoding: Encoding, number: int, value: Any, path: str) -> Node:
    """Encode a table by its content; a large one that is as it was stays as it is."""
    return _encode_moved(encoding, number, value, path, table_parts, is_large=is_large(value))


def encode_reduced_object(encoding: Encoding, number: int, value: Any, path: str) -> Node:
    """Encode an extension's object by the whole state that it reports, if it is new or has changed."""
    return _encode_moved(encoding, number, value, path, describe, is_large=True)


def _encode_moved(
    encoding: Encoding,
    number: int,
    value: Any,
    path: str,
    describe: Callable[[Any], tuple[str, list[Any]] | None],
    *,
    is_large: bool,
) -> Node:
    is_kept = is_large and encoding.baseline.has(value) and encoding.baseline.is_at(value, position(value))
    described = None if encoding.collects or is_kept else describe(value)
    if described is not None:
        return Node(described[0], None, encoding.encode_all(described[1], path))
    node = encoding.encode_opaque(number, value, path)
    place = None if encoding.collects or encoding.lost_numbers.get(number) else place_of(value, encoding.hooks.is_loader)
    if place is not None and node.kind == "opaque" and len(node.data) == 1:
        node.data.append(place)
    return node


def decode_made(decoding: Decoding, _number: int, node: Node, current: Any, path: str) -> Any:
    """Make an object again from its parts: a date, an iterator, a file in memory, a table."""
    kind = node.kind
    now = None if current is ABSENT else describe(current) or decoding.hooks.parts(current)
    old = now[1] if now is not None and now[0] == kind else []
    values = decoding.items(node.items, old, path)
    if kind in TABLES:
        return _decode_table(decoding, kind, values, current, path)
    made = decoding.hooks.remake(kind, values, current)
    if made is None:
        with contextlib.suppress(TypeError, ValueError, ImportError):  # parts or pandas may be missing
            made = make_again(kind, values, current)
    if made is None:
        decoding.miss(path, f"this Python cannot make {kind}")
    return ABSENT if made is None else made


def _decode_table(decoding: Decoding, kind: str, values: list[Any], current: Any, path: str) -> Any:
    try:
        made = make_table(kind, values)
    except Exception as error:  # an edge: another version of pandas, or none
        decoding.miss(path, f"{kind} cannot be made again ({type(error).__name__})")
        return ABSENT
    if not decoding.claim(current, type(made)):
        return made
    become(current, made)
    return current


for _recipe in RECIPES.values():
    define(_recipe.name, decode=decode_made, form=None, holds=_recipe.holds)
define("made", decode=decode_made, form=None)
