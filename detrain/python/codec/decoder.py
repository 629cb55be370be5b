"""Graph -> Python state: puts values back into live objects, in place, so that all who hold them see it."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

from detrain.base.digest import digest_array
from detrain.python.codec.baseline import Baseline
from detrain.python.codec.containers import fill_set
from detrain.python.codec.decoding import Decoding
from detrain.python.codec.encoder import Encoder
from detrain.python.codec.functions import hold_cells
from detrain.python.codec.graph_files import unreadable
from detrain.python.codec.objects import decode_derived
from detrain.python.codec.recipes import is_same
from detrain.python.codec.table import kind_named
from detrain.python.inspect.object_graph import ABSENT, Item, Node, deep_calls, shown


class Decoder(Decoding):
    """Puts a graph back. Objects that the process has are filled in place, so that others who hold them see it."""

    def decode(self, item: Item, current: object, path: str) -> object:
        """Return the value of an item. `current` is the live object at its place, or `ABSENT`."""
        if not isinstance(item, list):
            return current if is_same(current, item) else item  # who pickles tells one text from two that are equal
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
        # A tuple inside itself is made where it is met again; and what is absent here may be there at another place.
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
        """Take live variables for those of the first run (`decode_functions.hold_cells`).
        Before anything is decoded."""
        hold_cells(self, cells)

    def replay_generators(self) -> None:
        """Bring the generators of the program to where they were, before anything else is set:
        what they read is as it was."""
        for node in self.nodes:
            if node.kind == "generator":
                found = self.baseline.at(node.there)
                if found is ABSENT or not self.hooks.replay(found, node.data[1]):
                    self.miss(node.there, "the generator does not yield again what it did")
