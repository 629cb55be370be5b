"""Python state -> graph: walks live objects, and describes each by data alone. What does not fit is named,
never guessed."""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping
from typing import Any

import numpy as np

from detrain.base.array_memory import owner_of
from detrain.base.plain_types import CONTAINERS
from detrain.python.codec import arrays, containers, functions, made_again, objects, scalars, strangers, streams, tensors, told
from detrain.python.codec.encoding import Encoding, Rule
from detrain.python.codec.recipes import is_reduced, recipe_of
from detrain.python.codec.state_rules import is_wrapper
from detrain.python.inspect.enums import is_enum
from detrain.python.inspect.names import METHODS, STATIC, stream_base, value_base
from detrain.python.inspect.object_graph import ABSENT, FORMAT, Encoded, Graph, Item, Node, classes_in
from detrain.python.inspect.random_state import DRAWN_FROM
from detrain.python.inspect.tables import is_table
from detrain.python.process.reducers import reduction_of


class Encoder(Encoding):
    """Turns live objects into nodes. One encoder makes one graph; call `encode` for each root, then `finish`."""

    def finish(self, roots: Mapping[str, Item]) -> Encoded:
        """Return the graph with its named roots."""
        for number, view, path in self.far_views:
            is_near = id(owner_of(view)) in self.numbers
            self.nodes[number] = arrays.encode_view(self, view, path) if is_near else self.encode_array("ndarray", view, view, path)
        self.note_told()
        if (self.memories or any(span.is_foreign for span in self.spans)) and not self.collects:
            self.join_memories()
        for number, holder, keys, path in self.addresses:
            containers.mark_addresses(self, number, holder, keys & self.numbers.keys(), path)
        cells = {
            f"cells|{place}": [self.numbers[id(cell)]] for place, cell in (self.cells or {}).items() if id(cell) in self.numbers
        }
        roots = {**roots, **self.more_roots, **cells}
        graph = Graph(FORMAT, self.nodes, dict(roots), sorted(self.lost_numbers), sorted(self.spare))  # type: ignore[arg-type]
        return Encoded(b"" if self.collects else graph.pack(), self.arrays, self.lost, self.moved)

    def classes(self) -> set[str]:
        """Return the names of the classes whose objects are in the graph, and of classes that it holds."""
        return classes_in(node for node in self.nodes if node is not None)

    note_told = told.note_told
    encode_opaque = strangers.encode_opaque
    encode_derived = objects.encode_derived
    encode_set = containers.encode_set
    encode_array = arrays.encode_array
    encode_memory = tensors.encode_memory
    join_memories = tensors.join_memories
    note_addresses = containers.note_addresses
    is_of_loop = functions.is_of_loop

    def address_of(self, value: object) -> str | None:
        return self.baseline.address(value)

    def rule_of(self, value: Any) -> Rule:
        cls = type(value)
        if CONTAINERS.get(cls.__name__) is cls:
            return functools.partial(containers.encode_plain, cls=cls)
        if cls is np.ndarray:
            return arrays.encode_ndarray
        if stream_base(cls) is not None:
            return type(self).encode_derived
        if issubclass(cls, DRAWN_FROM):
            return streams.encode_random
        if cls is float:
            return scalars.encode_nan
        if value is ABSENT:
            return lambda *_: Node("absent")
        if is_enum(cls):
            return scalars.encode_enum
        if value_base(cls) is not None:
            return objects.encode_value
        if cls is types.CellType:
            return functions.encode_cell
        if (reduction := reduction_of(cls)) is not None:
            return functools.partial(strangers.encode_reduced, reduction=reduction)
        if issubclass(cls, type):
            return functions.encode_type
        if is_wrapper(value):
            return functions.encode_wrapped
        if issubclass(cls, (*STATIC, *METHODS, np.ufunc, type(np.mean))):
            return functions.encode_callable
        if issubclass(cls, functools.partial):
            return functions.encode_partial
        if is_table(value):
            return made_again.encode_table
        if is_reduced(cls):
            return made_again.encode_reduced_object
        return strangers.encode_stranger if recipe_of(value) is None else made_again.encode_made
