"""Python state -> graph: walks live objects, and describes each by data alone. What does not fit is named,
never guessed."""

from __future__ import annotations

import enum
import functools
import types
from collections.abc import Mapping
from typing import Any

import numpy as np

from detrain.base.array_memory import owner_of
from detrain.base.digest import Array
from detrain.python.codec.arrays import encode_array, encode_ndarray, encode_view
from detrain.python.codec.containers import encode_plain, encode_set, mark_addresses, note_addresses
from detrain.python.codec.encoding import Encoding, Rule
from detrain.python.codec.functions import encode_callable, encode_cell, encode_partial, encode_type, encode_wrapped, is_of_loop
from detrain.python.codec.made_again import encode_made, encode_table
from detrain.python.codec.objects import encode_derived
from detrain.python.codec.recipes import recipe_of
from detrain.python.codec.scalars import encode_enum, encode_nan
from detrain.python.codec.state_rules import is_wrapper
from detrain.python.codec.strangers import encode_opaque, encode_reduced, encode_stranger
from detrain.python.codec.streams import RANDOM, encode_random
from detrain.python.codec.tensors import encode_memory, join_memories
from detrain.python.codec.told import note_told
from detrain.python.inspect.graph import FORMAT, Graph, Item, Node
from detrain.python.inspect.names import METHODS, STATIC, stream_base
from detrain.python.inspect.object_graph import ABSENT, CONTAINERS, Encoded, SharedTensor, classes_in
from detrain.python.inspect.pandas_tables import is_table
from detrain.python.process.reducers import reduction_of


class Encoder(Encoding):
    """Turns live objects into nodes. One encoder makes one graph; call `encode` for each root, then `finish`."""

    def finish(self, roots: Mapping[str, Item]) -> Encoded:
        """Return the graph with its named roots."""
        for number, view, path in self.far_views:
            is_near = id(owner_of(view)) in self.numbers
            self.nodes[number] = encode_view(self, view, path) if is_near else self.encode_array("ndarray", view, view, path)
        self.note_told()
        if self.memories and not self.collects:
            self.join_memories()
        for number, holder, keys, path in self.addresses:
            mark_addresses(self, number, holder, keys & self.numbers.keys(), path)
        cells = {
            f"cells|{place}": [self.numbers[id(cell)]] for place, cell in (self.cells or {}).items() if id(cell) in self.numbers
        }
        roots = {**roots, **self.more_roots, **cells}
        graph = Graph(FORMAT, self.nodes, dict(roots), sorted(self.lost_numbers), sorted(self.spare))  # type: ignore[arg-type]
        return Encoded(b"" if self.collects else graph.pack(), self.arrays, self.lost, self.moved, self.unknown)

    def classes(self) -> set[str]:
        """Return the names of the classes whose objects are in the graph, and of classes that it holds."""
        return classes_in(node for node in self.nodes if node is not None)

    def note_told(self) -> None:
        """Name what the classes of libraries say that their objects hold, and the graph has not."""
        note_told(self)

    def encode_opaque(self, number: int, value: object, path: str, *, is_captured: bool = False) -> Node:
        return encode_opaque(self, number, value, path, is_captured=is_captured)

    def encode_derived(self, number: int, value: Any, path: str) -> Node:
        return encode_derived(self, number, value, path)

    def encode_set(self, number: int, value: Any, path: str) -> Node:
        return encode_set(self, number, value, path)

    def encode_array(self, kind: str, value: object, array: Array, path: str) -> Node:
        return encode_array(self, kind, value, array, path)

    def encode_memory(self, shared: SharedTensor, path: str) -> Node:
        return encode_memory(self, shared, path)

    def join_memories(self) -> None:
        """Describe arrays and memories of tensors that lie in one another as such."""
        join_memories(self)

    def note_addresses(self, number: int, cls: type, keys: list[object], path: str) -> None:
        note_addresses(self, number, cls, keys, path)

    def address_of(self, value: object) -> str | None:
        return self.baseline.address(value)

    def is_of_loop(self, value: object) -> bool:
        return is_of_loop(self, value)

    def rule_of(self, value: Any) -> Rule:
        cls = type(value)
        if CONTAINERS.get(cls.__name__) is cls:
            return functools.partial(encode_plain, cls=cls)
        if cls is np.ndarray:
            return encode_ndarray
        if stream_base(cls) is not None:
            return type(self).encode_derived
        if issubclass(cls, RANDOM):
            return encode_random
        if cls is float:
            return encode_nan
        if value is ABSENT:
            return lambda *_: Node("absent")
        if issubclass(cls, enum.Enum):
            return encode_enum
        if cls is types.CellType:
            return encode_cell
        if (reduction := reduction_of(cls)) is not None:
            return functools.partial(encode_reduced, reduction=reduction)
        if issubclass(cls, type):
            return encode_type
        if is_wrapper(value):
            return encode_wrapped
        if issubclass(cls, (*STATIC, *METHODS, np.ufunc, type(np.mean))):
            return encode_callable
        if issubclass(cls, functools.partial):
            return encode_partial
        if is_table(value):
            return encode_table
        return encode_stranger if recipe_of(value) is None else encode_made
