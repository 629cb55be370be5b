"""A graph that is being put back: the objects made of its nodes, the live objects that are taken, the losses.

The families of kinds (`containers`, `arrays`, `functions`, …) get a `Decoding`, and ask it for the values of other
nodes.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import CellType
from typing import Any

import numpy as np

from detrain.base.array_memory import bounds_of, writing
from detrain.base.digest import Array, digest_array
from detrain.base.plain_types import SCALARS, is_iterator
from detrain.python.codec.baseline import Baseline
from detrain.python.inspect.hooks import Hooks
from detrain.python.inspect.names import (
    STATIC,
    class_name,
    find_class,
    find_static,
    is_namespace,
    is_open,
    is_own_class,
    named_tuple_by,
    static_name,
    type_name,
)
from detrain.python.inspect.object_graph import ABSENT, Graph, Item, Node, shown
from detrain.python.inspect.output_only import is_output_only
from detrain.python.inspect.ownership import find_data_class
from detrain.python.inspect.progress import place_of
from detrain.python.process import filled_queues
from detrain.store.snapshot import LargeArrays


class Decoding(ABC):
    """A graph that is being put back. `Decoder` has `decode`; `claimed` has the live objects that have been taken."""

    finds_by_place = False
    """True if the live tensor at a place is the node's. Else only a tensor at the node's address is: unknown objects
    may hold the memory of another tensor."""

    def __init__(self, graph: Graph, arrays: Mapping[str, Array], hooks: Hooks, baseline: Baseline) -> None:
        self.nodes = graph.nodes
        self.roots = graph.roots
        self.lost = frozenset(graph.lost)
        """Numbers of the nodes that the first run named as lost."""
        self.spare = frozenset(graph.spare)
        """Numbers of the nodes that a resumed run need not have."""
        self.arrays = arrays
        self.hooks = hooks
        self.baseline = baseline
        self.made: dict[int, object] = {}
        self.claimed: dict[int, object] = {}
        self.cells: dict[int, CellType] = {}
        """Variables that functions share, by number: live ones, and new ones for functions that the loop had made."""
        self.memories: dict[int, object] = {}
        """Memories of tensors that have been put back, by number."""
        self.filled: dict[int, object] = {}
        """Live memories that are taken, by their identity."""
        self.is_inside = False
        self.sources = {node.data[0]: self._find_arrays(node.data[0]) for node in self.nodes if node.kind == "same"}
        self.reserved = {id(array) for found in self.sources.values() for array in found}
        """Identities of large arrays that are wanted as they are (filling one in place would lose it), and of the
        tensors at nodes' addresses."""
        self.live_memories = self._reserve_tensors()
        """The live memories of tensors that were there when the loop was entered, by number."""
        self._spans: list[tuple[int, int]] | None = None
        self.open: set[int] = set()
        """Numbers of the nodes whose objects are being filled."""
        self.later: list[Callable[[], None]] = []
        """Calls to make when all other objects are there."""
        self.missing: list[str] = []
        """Places whose values could not be put back, such as large arrays that this process does not have, in words."""
        self.others: list[str] = []
        """Arrays that code before the loop made with other values than in the first run, where the loop did not change
        them. They are put back."""
        self.gone: list[str] = []
        """Places that are empty here because the first run named their objects as lost."""
        self.astray: list[str] = []
        """Objects that are not where they were, though a resumed run has loaded the same batches: the bodies that moved
        them were skipped."""

    @abstractmethod
    def decode(self, item: Item, current: object, path: str) -> object:
        """Return the value of an item. `current` is the live object at its place, or `ABSENT`."""

    def finish(self) -> list[str]:
        """Make the calls left for the end, once all roots are decoded; return the places that were not put back."""
        while self.later:
            self.later.pop(0)()
        return self.missing

    def claim(self, current: object, cls: type) -> bool:
        """Take the live object to fill it; return whether that may be: its type is right, and no other node has it."""
        if type(current) is not cls or id(current) in self.claimed or id(current) in self.reserved:
            return False
        self.claimed[id(current)] = current
        return True

    def tuple_of(self, cls: type, values: list[object], current: object) -> tuple[object, ...]:
        """Return a tuple of a class: the live one, if it has these very values and no other node has it."""
        old = list(tuple.__iter__(current)) if isinstance(current, tuple) and type(current) is cls else []
        if isinstance(current, tuple) and len(old) == len(values) and all(map(_are_same, old, values)) and self.claim(current, cls):
            return current
        return tuple.__new__(cls, values)

    def miss(self, path: str, what: str = "") -> None:
        """Name a place whose value could not be put back."""
        if what or not (self.missing and self.missing[-1].startswith(f"{shown(path)}: ")):  # the reason has been given
            self.missing.append(shown(path) + (f": {what}" if what else ""))

    def miss_item(self, item: Item, path: str) -> None:
        """Name an item whose value is absent."""
        if isinstance(item, list) and item[0] in self.lost:
            self.gone.append(shown(path))
        elif not isinstance(item, list) or item[0] not in self.spare:
            self.miss(path)

    def items(self, items: list[Item], old: list[object], path: str) -> list[object]:
        """Decode the items of a sequence; `old`: the items of the live one."""
        if list not in set(map(type, items)):
            return list(items)
        return [
            self.required(item, old[index] if index < len(old) else ABSENT, f"{path}[{index}]") for index, item in enumerate(items)
        ]

    def required(self, item: Item, current: object, path: str) -> object:
        """Like `decode`, for a place that cannot stay empty."""
        value = self.decode(item, current, path)
        if value is ABSENT:
            self.miss_item(item, path)
            return None
        return value

    def _find_arrays(self, digest: str) -> list[Any]:
        """Return the live arrays with a digest; they may have changed since the loop was entered."""
        found = [array for known in self.baseline.arrays.get(digest, []) if (array := known()) is not None]
        return [array for array in found if not isinstance(array, np.ndarray) or digest_array(array) == digest]

    def _reserve_tensors(self) -> dict[int, Any]:
        for node in self.nodes:
            if node.kind == "shared" and (live := self.baseline.at(node.there)) is not ABSENT:
                self.reserved.add(id(live))
        memories = {number: self.baseline.at(node.there) for number, node in enumerate(self.nodes) if node.kind == "memory"}
        return {number: memory for number, memory in memories.items() if memory is not ABSENT}

    def array(self, node: Node) -> Array:
        """Return the array that a node's first item names."""
        ((name,), *_) = node.items
        return self.arrays[name]

    def content(self, node: Node) -> tuple[int, Callable[[Array], None]]:
        """Return the size in bytes of the array that a node's first item names, and a function that writes it into
        memory [byte] uint8."""
        ((name,), *_) = node.items
        arrays = self.arrays
        if isinstance(arrays, LargeArrays):
            return arrays.size_bytes(name), lambda memory: arrays.read_into(name, memory)
        return writing(arrays[name])

    def lies_in_tensor(self, array: Array) -> bool:
        """Return whether an array lies in the memory of a tensor that has a node: writing there changes the tensor."""
        if self._spans is None:
            tensors = {node.items[0][0]: self.hooks.tensors_of(node.data[0]) for node in self.nodes if node.kind == "shared"}
            self._spans = [tensors[number].span(memory) for number, memory in self.live_memories.items()]
        start, end = bounds_of(array)
        return any(place < end and start < place + size for place, size in self._spans)

    def class_named(self, described: str, current: object) -> Any:
        """Return the program's class with a name: the one at its address, if it has an address; or None."""
        name, _, address = described.partition(" @ ")
        found = self.baseline.at(address)
        if isinstance(found, type) and class_name(found) == name and (is_own_class(found) or is_open(found)):
            return found
        plain = name.partition("(")[0]
        known = find_class(plain, current) or find_data_class(plain, current)
        return known if plain == name else named_tuple_by(name, known)

    def attributes(self, pairs: list[Item], old: Mapping[str, object], path: str) -> dict[str, object]:
        """Decode attributes; one that is absent stays as it is, and is named.

        An existing name stays the same object, and a new one is interned, as `setattr` does: pickle tells one text from
        two equal ones.
        """
        new: dict[str, object] = {}
        names = {name: name for name in old if type(name) is str}
        for name_item, item in pairs:
            name: Any = self.decode(name_item, ABSENT, path)
            if type(name) is str:
                name = names.get(name) or sys.intern(name)
            value = self.decode(item, old.get(name, ABSENT), f"{path}.{name}")
            if value is ABSENT:
                self.miss_item(item, f"{path}.{name}")
                value = old.get(name, ABSENT)
            if value is not ABSENT:
                new[name] = value
        return new

    def fill_attributes(self, own: dict[str, object], pairs: list[Item], path: str) -> None:
        """Give an object's `__dict__` the attributes that it had, in their order."""
        new = self.attributes(pairs, dict(own), path)
        if list(own) != list(new) or any(own[name] is not value for name, value in new.items()):
            own.clear()
            own.update(new)

    def keep(self, name: str, address: Any, current: object, *place: Any) -> object:
        """Return the object that stays as the process has it: the one of its class at its address, or at its place."""
        found = self.baseline.at(address)
        if found is not ABSENT and name != type_name(found):
            found = ABSENT
        if found is ABSENT and type_name(current) == name:
            found = current
        if place and found is not ABSENT and not self._is_at(found, place[0]):
            if is_iterator(found):  # its next value would be another one
                self.miss(address, f"{name} is not where the first run had it, though the same batches were loaded again")
            elif not is_output_only(found):
                self.astray.append(f"{address} ({name})")
        return found

    def keep_static(self, name: str, address: Any, current: object) -> object:
        """Return the function, class or module that stays as the process has it: at its address, by its name, or at its
        place."""
        found = self.baseline.at(address)
        if found is ABSENT or name != static_name(found):
            found = find_static(name)
        is_static = issubclass(type(current), STATIC) or is_namespace(current)
        return current if found is ABSENT and is_static and static_name(current) == name else found

    def _is_at(self, found: object, place: Any) -> bool:
        if filled_queues.is_place(place):
            return filled_queues.comes_to(found, place, self.hooks.tensor)
        return bool(place_of(found, self.hooks.is_loader) == place)

    @abstractmethod
    def fill_set(self, target: set[Any], items: list[Item], how: Any, path: str) -> None:
        """Give a live set the elements that it had, in the order that `how` says."""

    @abstractmethod
    def decode_node(self, number: int, node: Node, current: Any, path: str) -> Any:
        """Return the object of a node, by the rule of its kind."""

    @abstractmethod
    def decode_derived(self, number: int, node: Node, current: Any, path: str) -> Any:
        """Set the program's attributes on an object that stays as the process has it."""

    @abstractmethod
    def are_alike(self, one: object, other: object) -> bool:
        """Return whether two values are data, and equal bit for bit."""


def _are_same(one: object, other: object) -> bool:
    """Return whether two values are one object, or plain ones that are equal bit for bit."""
    if one is other or type(one) is not type(other) or type(one) not in SCALARS:
        return one is other
    return np.array(one).tobytes() == np.array(other).tobytes() if isinstance(one, float | complex) else one == other
