"""Python state -> graph. The families that describe objects (`containers`, `arrays`, `functions`, …) get an `Encoding`,
and ask it for the items of other objects.
"""

from __future__ import annotations

import collections
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from types import CellType, MappingProxyType
from typing import Any, Final

import numpy as np

from detrain.base.digest import Array
from detrain.base.losses import HARMLESS, OF_OUTPUT
from detrain.python.codec.baseline import Baseline
from detrain.python.codec.state_rules import DataRules
from detrain.python.inspect.hooks import Hooks
from detrain.python.inspect.library_globals import look_through, name_in_library
from detrain.python.inspect.names import (
    class_name,
    container_base,
    is_findable,
    is_library_class,
    is_made_open,
    is_own_class,
    module_of,
    named_fields,
    slots_of,
    type_name,
)
from detrain.python.inspect.object_graph import (
    INT64,
    MAX_DEPTH,
    WITH_VARIABLES,
    Item,
    MemorySpan,
    Node,
    SharedTensor,
    deep_calls,
    is_item,
    is_plain,
    shown,
)
from detrain.python.inspect.output_only import is_output_only, only_reads
from detrain.python.inspect.ownership import answers, lists, of_last_use

_EMPTY: Final = (dict, list, tuple, collections.OrderedDict)
Rule = Callable[[Any, int, Any, str], Node]
"""Describes an object as a node. Takes the encoder, the object's number, the object and its path."""


class Known:
    """The facts of a class about all its objects. They are read once a walk, as a class may change between walks."""

    __slots__ = ("base", "gone", "is_own", "is_tuple", "name", "of_library", "slots")

    def __init__(self, cls: type, name: str | None) -> None:
        self.name = name
        """None: the name depends on the place where the class was made."""
        self.is_tuple = hasattr(cls, "_fields") and issubclass(cls, tuple)
        self.is_own = is_own_class(cls)
        self.of_library = "" if self.is_own or not is_library_class(cls) else module_of(cls).partition(".")[0]
        self.gone, self.slots, self.base = of_last_use(cls), slots_of(cls), container_base(cls)


class Encoding(ABC):
    """A graph that is being made, and the one rule by which a value becomes an item: each object once, by its identity,
    described by the rule of its class. `Encoder` makes the graph of a file, `LiveEncoder` one that stays in the
    process; the families (`containers`, `arrays`, …) describe objects, and call these two where they differ.
    """

    finds_by_place = False
    """True if the graph is put back in this process, where its very objects are."""

    def __init__(
        self,
        hooks: Hooks,
        baseline: Baseline,
        *,
        is_baseline: bool = False,
        are_loads_replayed: bool = False,
        is_alone: bool = False,
        cells: Mapping[str, CellType] | None = MappingProxyType({}),
        drawn_from: object = None,
    ) -> None:
        self.hooks = hooks
        self.baseline = baseline
        self.collects = is_baseline
        self.rules = DataRules(hooks, baseline, collects=is_baseline)
        self.are_loads_replayed = are_loads_replayed
        """True if a resumed process repeats the loads, which brings the objects that loads move to where they were."""
        self.is_alone = is_alone
        """True if loads run no code of the program, so that only bodies can have moved an object."""
        self.drawn_from = drawn_from
        """The iterator of the loop whose loads are replayed."""
        self.is_drawn_from = False
        """True inside of that iterator."""
        self.cells = cells
        """The variables of calls in progress that functions share, by their places; None if they cannot be read."""
        self.moved: list[str] = []
        self.is_loader = False
        """True inside of the object that a batch loop goes over."""
        self.nodes: list[Node | None] = []
        self.numbers: dict[int, int] = {}
        self.alive: list[object] = []
        self.arrays: dict[str, Array] = {}
        self.lost: list[str] = []
        self.lost_numbers: dict[int, str] = {}
        self.spare: set[int] = set()
        """Numbers of objects that only show, record or read, and objects in such only: a resume does not need them."""
        self.more_roots: dict[str, Item] = {}
        """Classes of the program whose objects were met, as roots: perhaps no other path leads to their attributes."""
        self.noted: set[type] = set()
        self.by_class: dict[type, Rule] = {}
        """The rule for objects of each class that was met."""
        self.known: dict[type, Known] = {}
        self.addresses: list[tuple[int, str, set[Any], str]] = []
        self.far_views: list[tuple[int, Array, str]] = []
        self.memories: dict[int, int] = {}
        """Numbers of the memories that tensors share, by their identity."""
        self.made_parameters: list[object] = []
        """Parameters that the loop has made."""
        self.spans: list[MemorySpan] = []
        """The address ranges of these memories and of arrays: NumPy's and a framework's may share memory."""
        self.asked: list[tuple[int, object, str]] = []
        """Objects whose classes report the objects' state themselves."""
        self.is_unordered = False
        """True inside a set in the order of addresses: its paths lead to other objects in another process."""
        self.packages: list[str] = []
        """The packages of the library objects around the current object."""
        self.looked_through: set[str] = set()
        """Packages whose global objects have been listed."""
        self.unbound: set[str] = set()
        """Names that were not bound when the loop was entered."""
        self.outputs = 0
        """How many objects around the current one only show or record the program's actions."""
        self.drawn: tuple[set[int], dict[int, Any]] = set(), {}
        """What objects that only show reach, as far as it has been read, and as far as it has been gone through for
        state. Each part of a figure leads to all others, so that each is looked at once for all of them."""
        self.depth = 0

    def encode_loader(self, value: object, path: str) -> Item:
        """Return the item for the object that a batch loop goes over, after all others. Its losses count as moved: a
        resumed run loads them again."""
        lost, self.lost = self.lost, []
        self.is_loader = True
        item = self.encode(value, path)
        self.is_loader = False
        self.moved += self.lost
        self.lost = lost
        return item

    def encode(self, value: object, path: str) -> Item:
        """Return the item for a value. `path` is the program's expression for the value, for messages."""
        kind = type(value)
        if value is None or kind in (bool, bytes) or (kind is float and value == value):  # noqa: PLR0124 - not a NaN
            return value
        if kind is int:
            assert isinstance(value, int)
            return value if value in INT64 else self.add_node(value, Node("int", hex(value)))
        if kind is str:
            assert isinstance(value, str)
            if value.isascii():
                return value
            try:
                value.encode()
            except UnicodeEncodeError:
                return self.add_node(value, Node("str", value.encode("utf-8", "surrogatepass")))
            return value
        number = self.numbers.get(id(value))
        if number is not None:
            if not self.outputs and number in self.spare and not is_output_only(value):
                self.spare.discard(number)
            if number in self.lost_numbers:
                self.lose(number, path, self.lost_numbers[number])
            return [number]
        number = len(self.nodes)
        self.numbers[id(value)] = number
        self.nodes.append(None)
        self.alive.append(value)
        if kind in _EMPTY and not value and not self.packages and self.depth < MAX_DEPTH and not getattr(value, "__dict__", None):
            # There are many, with nothing in them to walk.
            self.nodes[number] = Node(kind.__name__)
        elif self.depth:
            self.nodes[number] = self._encode_below(number, value, path)
        else:
            with deep_calls():
                self.nodes[number] = self._encode_below(number, value, path)
        return [number]

    def _encode_below(self, number: int, value: object, path: str) -> Node:
        if self.depth >= MAX_DEPTH:
            return self.lose(number, path, f"{type_name(value)}: nested too deeply")
        self.depth += 1
        try:
            return self._encode_object(number, value, path)
        finally:
            self.depth -= 1

    def _encode_object(self, number: int, value: Any, path: str) -> Node:
        cls = type(value)
        rule = self.by_class.get(cls)
        if rule is None:
            rule = self.by_class[cls] = self.rule_of(value)
        return rule(self, number, value, path)

    def encode_attributes(self, owner: object, values: Mapping[Any, object], path: str) -> list[list[Item]]:
        """Encode the attributes of an object. Losses inside an object that only shows or records are harmless, too.

        So are losses inside objects that it only lists, unless another path leads there.
        """
        is_output, listed = is_output_only(owner), lists(type(owner))
        if not is_output and not listed:
            return self.encode_pairs(values, path)
        self.outputs += is_output
        pairs = self.encode_pairs({name: item for name, item in values.items() if name not in listed}, path)
        self.outputs += 1
        pairs += self.encode_pairs({name: item for name, item in values.items() if name in listed}, path)
        self.outputs -= is_output + 1
        return pairs

    def encode_pairs(self, values: Mapping[Any, object], path: str) -> list[list[Item]]:
        """Encode attributes; names are items too, since a name need not be valid UTF-8."""
        return [
            [
                name if is_item(name) else self.encode(name, path),
                item if is_item(item) else self.encode(item, f"{path}.{name}"),
            ]
            for name, item in list(values.items())
        ]

    def lose(self, number: int, path: str, why: str) -> Node:
        """Name an object that is not captured, at each place that holds it; return a node for it."""
        if not self.collects:
            self.name_loss(path, self.alive[number], why)
            self.lost_numbers[number] = why
        is_fatal = why.endswith(WITH_VARIABLES)  # not even an object of its class will do in its place
        return Node("opaque", [why if is_fatal else why.partition(":")[0]])

    def name_loss(self, path: str, value: object, why: str) -> None:
        """Name a value, or a part of one, that is not captured.

        The loss of an object that only shows is harmless if a resumed run has such an object, or if the program sees at
        its place that it has none. It is not if the loop has put the object into a list or under a new name, or if the
        program will still ask the object for the values that it was given.
        """
        is_there = self.baseline.has(value) or not (path.endswith("]") or path in self.unbound) or only_reads(value)
        asked = answers(type(value))
        is_asked = bool(asked) and not asked.isdisjoint(self.hooks.names_ahead())  # this goes over the program's code
        is_harmless = is_there and is_output_only(value) and not is_asked
        end = OF_OUTPUT if self.outputs else HARMLESS if is_harmless else ""
        self.lost.append(f"{shown(path)} ({why}{end})")

    def add_node(self, value: object, node: Node | None) -> Item:
        self.nodes.append(node)
        self.alive.append(value)
        return [len(self.nodes) - 1]

    def encode_all(self, values: Iterable[object], path: str) -> list[Item]:
        items = list(values)
        return items if is_plain(items) else [self.encode(item, f"{path}[{index}]") for index, item in enumerate(items)]

    def name_of(self, cls: type, path: str) -> str:
        """Return the name of an object's class; for a class made in a function, to which no name leads, with the
        class's address behind it; for a class of named tuples that the loop has made, with its fields.
        """
        if is_findable(cls):
            return class_name(cls)
        is_followed = is_own_class(cls) or is_made_open(cls)
        if self.collects and is_followed:
            self.baseline.add(cls, "" if self.is_unordered else f"{path}.__class__")
        address = self.baseline.address(cls) if is_followed else None
        if address is not None:
            return f"{class_name(cls)} @ {address}"
        fields = None if self.collects else named_fields(cls)
        if fields is not None:
            return f"{class_name(cls)}({','.join(fields)})"
        if is_followed and not self.collects and not is_own_class(cls):
            self.name_loss(path, cls, f"{class_name(cls)}: the loop has made its class")
        return class_name(cls)

    def store(self, array: Array) -> Item:
        """Keep a copy of an array; return the item that leads to it."""
        if self.collects:
            return [""]
        name = f"{len(self.arrays):05d}"
        self.arrays[name] = np.array(array, copy=True, order="C")
        return [name]

    def encode_parts(self, value: object, path: str) -> Node | None:
        """Encode an object that a framework describes by its parts; None for any other."""
        described = self.hooks.parts(value)
        return None if described is None else Node(described[0], None, self.encode_all(described[1], path))

    def state_of(self, owner: object, stored: Mapping[str, object], path: str, *, is_own: bool) -> dict[str, object]:
        """Return the stored attributes that can be described, or that no run can go on without. Others are named if
        `is_own`."""
        state = {}
        for name, item in stored.items():
            is_new = self.hooks.holds_variables(item) and self.hooks.is_of_loop(item)
            # A program's model may make anew, in each epoch, the objects that it makes and keeps.
            is_needed = is_new and not self.hooks.holds_variables(owner)
            if is_needed or self.rules.is_walkable(item) or self.hooks.parts(item) is not None:
                state[name] = item
            elif not self.collects and is_own:
                self.name_loss(f"{path}.{name}", item, type_name(item))
        return state

    def named_by_library(self, value: object, node: Node) -> Node:
        """Return a node, or one with the name under which a library holds the object: there is only one of it."""
        if self.collects or self.finds_by_place:
            return node
        for package in (module_of(type(value)).partition(".")[0], *self.packages[-1:]):
            if package not in self.looked_through:
                self.looked_through.add(package)
                look_through(package)
        held = name_in_library(value)
        return node if held is None else Node("library", held, [self.add_node(None, node)])

    @abstractmethod
    def rule_of(self, value: Any) -> Rule:
        """Return the rule that describes objects of a value's class, as far as the class decides it."""

    @abstractmethod
    def encode_opaque(self, number: int, value: object, path: str, *, is_captured: bool = False) -> Node:
        """Describe an object that stays as it is; name it if it has moved on and `is_captured` is not set."""

    @abstractmethod
    def encode_derived(self, number: int, value: Any, path: str) -> Node:
        """Describe an object whose class derives from a library's, by the attributes that the program stores there."""

    @abstractmethod
    def encode_set(self, number: int, value: Any, path: str) -> Node:
        """Describe a set, with the data that its order needs."""

    @abstractmethod
    def encode_array(self, kind: str, value: object, array: Array, path: str) -> Node:
        """Describe an array, or a tensor by its array: node `kind`."""

    @abstractmethod
    def encode_memory(self, shared: SharedTensor, path: str) -> Node:
        """Describe the memory of a tensor."""

    @abstractmethod
    def note_addresses(self, number: int, cls: type, keys: list[object], path: str) -> None:
        """Note keys that may be addresses of objects; `finish` knows all objects, and decides."""

    @abstractmethod
    def address_of(self, value: object) -> str | None:
        """Return the address that an object had when the loop was entered."""

    @abstractmethod
    def is_of_loop(self, value: object) -> bool:
        """Return whether the loop has made a function or class."""
