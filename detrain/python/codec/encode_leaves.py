"""Python state -> graph, the leaves: arrays, random generators, numbers, dates and the like, and what their encoding
shares.
"""

from __future__ import annotations

import enum
import random
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import CellType, GeneratorType, MappingProxyType
from typing import Any, Final

import numpy as np

from detrain.base.array_memory import address_of, axes_of, bounds_of, memory_of, owner_of
from detrain.base.digest import Array, digest_array
from detrain.base.dtypes import dtype_name
from detrain.python.codec.baseline import Baseline
from detrain.python.codec.kinds import describe
from detrain.python.codec.state_rules import Kinds, member_attributes
from detrain.python.inspect.fingerprint import Unreadable
from detrain.python.inspect.graph import Item, Node
from detrain.python.inspect.names import (
    class_name,
    container_base,
    is_findable,
    is_library_class,
    is_made_open,
    is_own_class,
    module_of,
    slots_of,
    type_name,
)
from detrain.python.inspect.object_graph import (
    BIT_GENERATORS,
    HARMLESS,
    LARGE_BYTES,
    NANS,
    OF_OUTPUT,
    STREAMS,
    WITH_VARIABLES,
    Hooks,
    SharedTensor,
    Span,
    is_plain,
    shown,
)
from detrain.python.inspect.output_only import is_output_only
from detrain.python.inspect.ownership import of_last_use
from detrain.python.inspect.progress import is_iterator_of_library, is_open_for_writing, place_of, position, stands_still, takes_in
from detrain.python.process import filled_queues

_WEAK: Final = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet)
UNSEEN: Final = "loading the same batches must move it to where it is, and nothing tells where that is"


Rule = Callable[[Any, int, Any, str], Node]
"""How an object is described: of the encoder, the object's number, itself and its path."""


class Known:
    """What a class says of all its objects. It is asked once a walk, for a class may change between two."""

    __slots__ = ("base", "gone", "is_own", "is_tuple", "name", "of_library", "slots")

    def __init__(self, cls: type, name: str | None) -> None:
        self.name = name
        """None where it depends on where the class was made."""
        self.is_tuple = hasattr(cls, "_fields") and issubclass(cls, tuple)
        self.is_own = is_own_class(cls)
        self.of_library = "" if self.is_own or not is_library_class(cls) else module_of(cls).partition(".")[0]
        self.gone, self.slots, self.base = of_last_use(cls), slots_of(cls), container_base(cls)


class LeafEncoder(ABC):
    """State of an encoder, and the encoding of what holds no other objects."""

    _finds_again = False
    """Whether who puts the graph back has the very objects, whatever their addresses."""

    def __init__(
        self,
        hooks: Hooks,
        baseline: Baseline,
        *,
        is_baseline: bool = False,
        are_loads_replayed: bool = False,
        is_alone: bool = False,
        cells: Mapping[str, CellType] | None = MappingProxyType({}),
    ) -> None:
        self._hooks = hooks
        self._baseline = baseline
        self._collects = is_baseline
        self._kinds = Kinds(hooks, baseline, collects=is_baseline)
        self._are_loads_replayed = are_loads_replayed
        """What loads move on is where it was when a resumed process has loaded as often."""
        self._is_alone = is_alone
        """Loads run no code, so what has moved on, bodies have moved."""
        self._cells = cells
        """The variables of the calls that go on which functions share, by where they are; None if they cannot be
        read."""
        self._moved: list[str] = []
        self._unknown: list[str] = []
        self._is_loader = False
        """Inside of what a batch loop goes over."""
        self._nodes: list[Node | None] = []
        self._numbers: dict[int, int] = {}
        self._alive: list[object] = []
        self._arrays: dict[str, Array] = {}
        self._lost: list[str] = []
        self._lost_numbers: dict[int, str] = {}
        self._spare: set[int] = set()
        """Numbers of what shows, records or reads, or is held by such things alone: a resumed run need not have it."""
        self._classes: dict[str, Item] = {}
        """Classes of the program whose objects were met, as roots: nothing else may lead to their attributes any
        more."""
        self._noted: set[type] = set()
        self._rules: dict[type, Rule] = {}
        """How objects of each class that was met are described."""
        self._known: dict[type, Known] = {}
        self._addresses: list[tuple[int, str, set[Any], str]] = []
        self._far_views: list[tuple[int, Array, str]] = []
        self._memories: dict[int, int] = {}
        """Numbers of the memories that tensors share, by their identity."""
        self.made_parameters: list[object] = []
        """Parameters that the loop has made."""
        self._spans: list[Span] = []
        """Where these memories and arrays lie: of NumPy's and a framework's, several may look at one memory."""
        self._told: list[tuple[int, object, str]] = []
        """Objects whose classes say themselves what they hold."""
        self._is_unordered = False
        """Inside a set whose order is that of addresses, so that paths do not lead to the same in another process."""
        self._strangers: list[str] = []
        """The packages of the objects of libraries that this is inside of."""
        self._looked_through: set[str] = set()
        """Packages of which it is known what they hold now."""
        self._outputs = 0
        """Inside how many objects that only show or record what the program does."""
        self._depth = 0

    @abstractmethod
    def encode(self, value: object, path: str) -> Item:
        """Return the item for a value. `path` is how the program would write it, for messages."""

    @abstractmethod
    def _encode_pairs(self, values: Mapping[Any, object], path: str) -> list[list[Item]]:
        """Encode attributes; names are items too, since a name need not be valid UTF-8."""

    def _lose(self, number: int, path: str, why: str) -> Node:
        """Name what is not captured, at each place that holds it."""
        if not self._collects:
            self._name(path, self._alive[number], why)
            self._lost_numbers[number] = why
        is_fatal = why.endswith(WITH_VARIABLES)  # not even an object of its class will do in its place
        return Node("opaque", [why if is_fatal else why.partition(":")[0]])

    def _name(self, path: str, value: object, why: str) -> None:
        """Name what is not captured of a value."""
        end = OF_OUTPUT if self._outputs else HARMLESS if is_output_only(value) else ""
        self._lost.append(f"{shown(path)} ({why}{end})")

    def _node(self, value: object, node: Node | None) -> Item:
        self._nodes.append(node)
        self._alive.append(value)
        return [len(self._nodes) - 1]

    def _encode_all(self, values: Iterable[object], path: str) -> list[Item]:
        items = list(values)
        return items if is_plain(items) else [self.encode(item, f"{path}[{index}]") for index, item in enumerate(items)]

    def _encode_nan(self, _number: int, value: float, _path: str) -> Node:
        """Encode what is not a number: as a key it is found by its identity alone."""
        return Node("nan", [value, next((name for name, known in NANS.items() if known is value), None)])

    def _encode_enum(self, _number: int, value: enum.Enum, path: str) -> Node:
        cls = type(value)
        bits = self.encode(value.value, path) if issubclass(cls, enum.Flag) else None
        own = member_attributes(value) if is_own_class(cls) else {}
        return Node("enum", [self._name_of(cls, path), value.name], [bits], self._encode_pairs(own, path))

    def _encode_described(self, value: object, path: str) -> Node | None:
        """Encode what is made again from its parts."""
        described = describe(value)
        return None if described is None else Node(described[0], None, self._encode_all(described[1], path))

    def _name_of(self, cls: type, path: str) -> str:
        """Return the name of an object's class; behind it, where no name leads to a class made in a function, its
        address.
        """
        if is_findable(cls) or not (is_own_class(cls) or is_made_open(cls)):
            return class_name(cls)
        if self._collects:
            self._baseline.add(cls, "" if self._is_unordered else f"{path}.__class__")
        address = self._baseline.address(cls)
        if address is None and not self._collects and not is_own_class(cls):
            self._name(path, cls, f"{class_name(cls)}: the loop has made its class")
        return class_name(cls) if address is None else f"{class_name(cls)} @ {address}"

    def _encode_random(self, number: int, value: Any, path: str) -> Node:
        """Encode NumPy's generators, and Python's."""
        cls = type(value)
        if cls in STREAMS:
            return self._encode_stream(cls, value, path)
        if cls is np.random.SeedSequence:
            parts = (value.entropy, value.spawn_key, value.pool_size, value.n_children_spawned)
            return Node("seeds", None, [self.encode(part, path) for part in parts])
        if cls.__name__ in BIT_GENERATORS and cls is getattr(np.random, cls.__name__):
            return self._describe_bits(value, path, has_seeds=True)
        return self._encode_opaque(number, value, path)

    def _encode_stream(self, base: Any, value: Any, path: str) -> Node:
        """Encode the place of a generator; read past the methods of a class that derives from `base`."""
        if base is random.Random:
            _version, words, gauss = base.getstate(value)
            return Node("random", gauss, [self._store(np.array(words, np.uint32))])
        if base is np.random.RandomState:
            state = base.get_state(value, legacy=False)
            bits = self._encode_bits(value._bit_generator, path, has_seeds=state["bit_generator"] != "MT19937")
            return Node("RandomState", [state["has_gauss"], state["gauss"]], [bits])
        return Node("Generator", None, [self.encode(value.bit_generator, f"{path}.bit_generator")])

    def _encode_bits(self, bits: Any, path: str, *, has_seeds: bool) -> Item:
        known = self._numbers.get(id(bits))
        if known is not None:
            return [known]
        item = self._node(bits, None)
        self._numbers[id(bits)] = item[0]
        self._nodes[item[0]] = self._describe_bits(bits, path, has_seeds=has_seeds)
        return item

    def _describe_bits(self, bits: Any, path: str, *, has_seeds: bool) -> Node:
        """Describe a bit generator.

        The seeds of a legacy one are from the system, and nothing can be spawned from it.
        """
        seeds = getattr(bits, "seed_seq", None) if has_seeds else None
        return Node("bits", type(bits).__name__, [self.encode(bits.state, path), self.encode(seeds, f"{path}.seed_seq")])

    def _encode_opaque(self, number: int, value: object, path: str, *, is_captured: bool = False) -> Node:
        """What is not data stays as it is, under the address that it had when the loop was entered.

        What has moved on is named, unless all that it holds is captured beside.
        """
        if self._collects:
            self._baseline.add(value, "" if self._is_unordered else path)
            self._baseline.add_position(value, position(value))
            if not self._is_loader:
                self._hooks.follow(value)
        elif (pulled := self._hooks.pulled(value)) is not None and self._baseline.address(value):
            self._moved.append(f"{shown(path)} (generator)")
            return Node("generator", [type_name(value), pulled], there=self._baseline.address(value))
        elif not self._baseline.has(value):
            made = self._encode_new(value, path)
            if made is not None:
                return made
            why = f": {WITH_VARIABLES}" if self._hooks.holds_variables(value) else ""
            if (reason := self._hooks.no_position(value)) and not self._is_loader:
                why = f": {reason}"
            return self._lose(number, path, f"{type_name(value)}{why}")
        elif (loader := self._encode_offered(value, path)) is not None:
            return loader
        elif is_open_for_writing(value):
            if not self._hooks.is_known_file(value):
                self._lose(number, path, f"{type_name(value)}: open for writing")
        elif not is_captured and (place := self._note_moved(number, value, path)) is not None:
            return Node("opaque", [type_name(value), place], there=self._baseline.address(value))
        if self._outputs or is_output_only(value):
            self._spare.add(number)
        return Node("opaque", [type_name(value)], there=self._baseline.address(value))

    def _encode_new(self, value: object, path: str) -> Node | None:
        """Encode what the loop has made and a framework can make again, if all that it is made of is there."""
        described = self._hooks.parts_of_new(value)
        if described is None:
            return None
        lost = len(self._lost)
        items = [self.encode(part, f"{path}[{index}]") for index, part in enumerate(described[1])]
        if len(self._lost) > lost:
            del self._lost[lost:]
            return None
        return Node(described[0], None, items)

    def _encode_offered(self, value: object, path: str) -> Node | None:
        """Encode the position that an object of a library offers, if that is data."""
        offered = self._hooks.loader_state(value) if self._baseline.address(value) else None
        if offered is None:
            return None
        lost = len(self._lost)
        item = self.encode(offered[1], f"{path}.state")
        if len(self._lost) > lost:
            del self._lost[lost:]
            return None
        return Node("loader", [type_name(value), offered[0]], [item], there=self._baseline.address(value))

    def _note_moved(self, number: int, value: object, path: str) -> str | None:
        """Name what has moved on: as lost, or as what loading the same batches again brings
        back; return where that is.
        """
        if self._hooks.is_loader(value):
            reason = self._hooks.no_position(value)
            if reason and (self._is_loader or (self._are_loads_replayed and not self._is_alone)):
                self._moved.append(f"{shown(path)} ({reason})")
            elif reason:
                self._lose(number, path, f"{type_name(value)}: {reason}")
            return None
        if self._are_loads_replayed and (filled := filled_queues.place(value, self._hooks.tensor)) is not None:
            self._moved.append(f"{shown(path)} ({type_name(value)})")
            return filled
        now = position(value)
        if now is None and self._is_loader:
            self._moved.append(f"{shown(path)} ({type_name(value)})")
        elif now is None and self._are_loads_replayed and is_iterator_of_library(value):
            self._lose(number, path, f"{type_name(value)}: {UNSEEN}")
        elif now is None and not stands_still(value):
            self._unknown.append(f"{shown(path)} ({type_name(value)})")
        elif isinstance(now, Unreadable) and not self._is_loader:
            self._lose(number, path, f"{type_name(value)}: what an extension keeps in it cannot be read")
        elif not self._baseline.is_at(value, now) and not (isinstance(value, GeneratorType) and value.gi_running):
            is_by_body = self._is_alone and not isinstance(value, Iterator)
            is_by_body |= self._hooks.is_drawn_by_bodies(value)
            if self._are_loads_replayed and not takes_in(value) and not is_by_body:
                self._moved.append(f"{shown(path)} ({type_name(value)})")
                place = place_of(value, self._hooks.is_loader)
                if place is None:  # no resumed run can see whether loading has brought it there
                    self._lose(number, path, f"{type_name(value)}: {UNSEEN}")
                return place
            self._lose(number, path, f"{type_name(value)}: it has moved on")
        return None

    def _note_weak(self, value: object, path: str) -> None:
        """Name a collection that holds weakly and has changed: what a baseline holds lives longer than it would."""
        if type(value) not in _WEAK:
            return
        if self._collects:
            self._baseline.add_position(value, position(value))
        elif not self._baseline.is_at(value, position(value)):
            self._name(path, value, f"{type_name(value)}: when what it holds is let go of is not as without detrain")

    def _encode_ndarray(self, number: int, value: Array, path: str) -> Node:
        owner = owner_of(value)
        is_view = owner is not value and value.nbytes > 0 and memory_of(owner) is not None
        if value.dtype == object and owner.dtype == object and owner.ndim:
            if is_view:
                return self._encode_view(value, path)
            return Node("objects", list(value.shape), self._encode_all(value.reshape(-1).tolist(), path))
        if dtype_name(value.dtype) is None:
            return self._encode_opaque(number, value, path)
        if not is_view or dtype_name(owner.dtype) is None:
            if not self._collects:
                self._spans.append(Span(*bounds_of(value), number, path, value))
            return self._encode_array("ndarray", value, value, path)
        if id(owner) in self._numbers or owner.nbytes <= max(16 * value.nbytes, LARGE_BYTES):
            return self._encode_view(value, path)
        if self._collects:
            return self._encode_array("ndarray", value, value, path)
        # A large owner is captured only if the program holds it elsewhere.
        self._far_views.append((number, value, path))
        return Node("view")

    def _encode_view(self, value: Array, path: str) -> Node:
        owner = owner_of(value)
        offset = address_of(value) - address_of(owner)
        form = [offset, list(value.shape), list(value.strides), dtype_name(value.dtype), value.flags.writeable]
        return Node("view", form, [self.encode(owner, f"{path}.base")])

    def _encode_array(self, kind: str, value: object, array: Array, path: str) -> Node:
        """Encode an array; one that the loop has not changed is marked, so that a resumed run finds out if its data
        differ.
        """
        before, is_large = self._baseline.paths.get(path), array.nbytes > LARGE_BYTES
        digest = digest_array(array) if self._collects or before is not None or is_large else ""
        form = self._hooks.tensor_form(value) if kind == "tensor" else None
        if self._collects:
            self._baseline.add_array(digest, value, is_held=form is None)
            if not self._is_unordered:
                self._baseline.paths[path] = digest
            return Node(kind)
        there = self._baseline.arrays.get(digest, ()) if is_large else ()
        if any(known() is value for known in there) or (there and kind == "tensor"):
            return Node("same", [digest, kind, *([] if form is None else [form])])
        if array.dtype == object:
            return Node("texts", [list(array.shape), array.reshape(-1).tolist()])
        axes = axes_of(array)
        stored = array if axes is None else array.transpose(axes)
        data = [axes, array.flags.writeable, *([] if form is None else [form])]
        return Node(kind, data, [self._store(stored)], there=before is not None and before == digest)

    def _encode_shared(self, value: Any, shared: SharedTensor, path: str) -> Node:
        """Encode a tensor that is changed in place: its memory, which others may share, and how it looks at that."""
        if self._collects:
            self._baseline.add(value, "" if self._is_unordered else path)
        elif shared.is_parameter and not self._baseline.has(value):
            self.made_parameters.append(value)
        number = self._memories.get(id(shared.memory))
        if number is None:
            number = self._node(shared.memory, None)[0]
            self._memories[id(shared.memory)] = number
            self._nodes[number] = self._encode_memory(shared, path)
            if not self._collects:
                start, size = self._hooks.tensors_of(shared.owner).span(shared.memory)
                self._spans.append(Span(start, start + size, number, path, memory=shared))
        elif not self._collects:
            self._widen(number, shared, *shared.extent)
        if shared.loss and not self._collects:
            self._lost.append(f"{shown(path)} ({type_name(value)}: {shared.loss})")
        parts = [self.encode(part, f"{path}.grad") for part in shared.parts]
        own = self._encode_pairs(getattr(value, "__dict__", None) or {}, path)
        base = None if shared.base is None else self.encode(shared.base, f"{path}._base")
        return Node("shared", [shared.owner, shared.form], [[number], base, *parts], own, self._address_of(value))

    def _address_of(self, value: object) -> str | None:
        return self._baseline.address(value)

    def _encode_memory(self, shared: SharedTensor, path: str) -> Node:
        """Encode a memory; what was looked at of it when the loop was entered is only compared on resume, if that is
        large and as it was: by its address, for `x` may be a batch by now, and the data lie in a set.
        """
        tensors = self._hooks.tensors_of(shared.owner)
        start, stop = shared.extent
        if self._collects:
            self._baseline.add(shared.memory, "" if self._is_unordered else f"{path}.memory")
            if (address := self._address_of(shared.memory)) is not None:
                digest = digest_array(tensors.read(shared.memory, holds=False)[start:stop])
                self._baseline.memories[address] = digest, (start, stop)
            return Node("memory")
        kept = self._as_it_was(shared, start, stop, LARGE_BYTES)
        return kept or Node("memory", [start, stop, ""], [self._hold(shared), None], there=self._address_of(shared.memory))

    def _as_it_was(self, shared: SharedTensor, start: int, stop: int, more_than: int = 0) -> Node | None:
        """Return the node of a memory that is only compared on resume, if that is as it was from `start` to `stop`."""
        address = self._address_of(shared.memory)
        before, (first, last) = self._baseline.memories.get(address or "", ("", (0, 0)))
        if last - first <= more_than or start < first or last < stop:
            return None
        now = self._hooks.tensors_of(shared.owner).read(shared.memory, holds=False)[first:last]
        return Node("memory", [first, last, before], [None, None], there=address) if digest_array(now) == before else None

    def _hold(self, shared: SharedTensor) -> Item:
        name = f"{len(self._arrays):05d}"
        self._arrays[name] = self._hooks.tensors_of(shared.owner).read(shared.memory, holds=True)
        return [name]

    def _widen(self, number: int, shared: SharedTensor, start: int, stop: int) -> None:
        """Have what is looked at of a memory reach from `start` to `stop`, too."""
        node: Any = self._nodes[number]
        wide = [min(node.data[0], start), max(node.data[1], stop)]
        if wide != node.data[:2] and node.items[0] is None:  # a part of it is as it was
            node.items[0], node.data[2] = self._hold(shared), ""
        node.data[:2] = wide

    def _store(self, array: Array) -> Item:
        """Keep an array; return the item that leads there."""
        if self._collects:
            return [""]
        name = f"{len(self._arrays):05d}"
        self._arrays[name] = np.array(array, copy=True, order="C")
        return [name]
