"""Python state -> graph: walks live objects, and describes each by data only. Objects that do not fit are named, never
guessed. Graph -> Python state: puts values back into live objects, in place, so that all holders of an object see them.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping
from typing import Any

import numpy as np

from detrain.base.array_memory import owner_of
from detrain.base.digest import digest_array
from detrain.base.plain_types import CONTAINERS
from detrain.python.codec import arrays, containers, functions, made_again, objects, scalars, strangers, streams, tensors
from detrain.python.codec.baseline import Baseline
from detrain.python.codec.containers import fill_set
from detrain.python.codec.decoding import Decoding
from detrain.python.codec.encoding import Encoding, Rule
from detrain.python.codec.functions import hold_cells
from detrain.python.codec.graph_files import unreadable
from detrain.python.codec.objects import decode_derived
from detrain.python.codec.recipes import is_reduced, is_same, recipe_of
from detrain.python.codec.state_rules import is_wrapper
from detrain.python.codec.table import kind_named
from detrain.python.inspect.enums import is_enum
from detrain.python.inspect.names import METHODS, STATIC, stream_base, value_base
from detrain.python.inspect.object_graph import ABSENT, FORMAT, Encoded, Graph, Item, Node, classes_in, deep_calls, shown
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

    note_told = objects.note_told
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
            return containers.encode_plain
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
        if reduction_of(cls) is not None:
            return strangers.encode_reduced
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


class Decoder(Decoding):
    """Puts a graph back. Objects that the process has are filled in place, so that all their holders see the values."""

    def decode(self, item: Item, current: object, path: str) -> object:
        """Return the value of an item. `current` is the live object at its place, or `ABSENT`."""
        if not isinstance(item, list):
            return current if is_same(current, item) else item  # pickle tells one text from two equal ones
        number = item[0]
        if number in self.made:
            return self.made[number]
        if self.is_inside:
            value = self.decode_node(number, self.nodes[number], current, path)
        else:
            self.is_inside = True
            try:
                with deep_calls():
                    value = self.decode_node(number, self.nodes[number], current, path)
            except RecursionError as error:
                raise unreadable(f"{shown(path)} is nested too deeply, or lies in itself") from error
            finally:
                self.is_inside = False
        if number in self.lost and shown(path) in self.missing:  # the order of a set
            self.missing.remove(shown(path))
            self.gone.append(shown(path))
        # A tuple inside itself is made where it is met again; and an object absent here may be there at another place.
        return value if value is ABSENT else self.made.setdefault(number, value)

    def decode_node(self, number: int, node: Node, current: Any, path: str) -> Any:
        return kind_named(node.kind).decode(self, number, node, current, path)

    def fill_set(self, target: set[Any], items: list[Item], how: Any, path: str) -> None:
        fill_set(self, target, items, how, path)

    def decode_derived(self, number: int, node: Node, current: Any, path: str) -> Any:
        return decode_derived(self, number, node, current, path)

    def are_alike(self, one: object, other: object) -> bool:
        encoded = [(each := Encoder(self.hooks, Baseline())).finish({"": each.encode(value, "")}) for value in (one, other)]
        digests = [{name: digest_array(array) for name, array in each.arrays.items()} for each in encoded]
        is_data = not any(each.not_captured for each in encoded)
        return is_data and encoded[0].graph == encoded[1].graph and digests[0] == digests[1]

    def hold_cells(self, cells: Mapping[str, types.CellType]) -> None:
        """Take live variables for those of the first run (`functions.hold_cells`), before anything is decoded."""
        hold_cells(self, cells)

    def replay_generators(self) -> None:
        """Bring the program's generators to where they were, before other state is set: they read the same values."""
        for node in self.nodes:
            if node.kind == "generator":
                found = self.baseline.at(node.there)
                if found is ABSENT or not self.hooks.replay(found, node.data[1]):
                    self.miss(node.there, "the generator does not yield again what it did")
