"""Python state -> graph: walks live objects, and describes each by data alone. What does not fit is named,
never guessed."""

from __future__ import annotations

import array
import collections
import functools
import logging
import random
import types
import weakref
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, Final

import msgspec
import numpy as np

from detrain.base.array_memory import address_of, bounds_of, memory_of, owner_of
from detrain.base.digest import Array
from detrain.base.dtypes import dtype_name
from detrain.base.set_order import frozen_recipe, set_recipe
from detrain.python.codec.encode_functions import Functions
from detrain.python.codec.state_rules import (
    class_attributes,
    class_methods,
    functions_in,
    has_contents,
    has_value_hash,
    is_wrapper,
    plain,
    read_slot,
)
from detrain.python.codec.stdlib_objects import parts
from detrain.python.inspect.function_source import holds_state
from detrain.python.inspect.gone_over import is_gone_over
from detrain.python.inspect.names import (
    STATIC,
    class_name,
    computes,
    container_base,
    find_method,
    is_bound,
    is_findable,
    is_own_class,
    is_user_class,
    own_attributes,
    slots_of,
    static_name,
    stream_base,
    type_name,
)
from detrain.python.inspect.object_graph import (
    ABSENT,
    CONTAINERS,
    HARMLESS,
    MAX_DEPTH,
    Encoded,
    Item,
    Span,
    classes_in,
    deep_calls,
    key_path,
)
from detrain.python.inspect.output_only import is_output_only
from detrain.python.inspect.ownership import find_data_class, lists, makes_plainly, new_object, of_last_use
from detrain.python.inspect.pandas_tables import is_large, is_table, moment_parts, table_parts
from detrain.python.inspect.progress import place_of, position
from detrain.python.inspect.reductions import key, numbers_and_texts, streams_kept, tells, told
from detrain.python.process.reducers import Reduction, reduction_of

_EMPTY: Final = (dict, list, tuple, collections.OrderedDict)
_INT64: Final = range(-(1 << 63), 1 << 63)
_BY_KEYS: Final = ("dict", "OrderedDict", "defaultdict")
_ADDRESSES: Final = range(1 << 32, 1 << 48, 8)
"""Where a process of 64 bits may have its objects."""


def _rank(span: Span) -> int:
    """Of a memory and an array that lie in one place, the memory is the outer one."""
    return 0 if span.array is None else 1


def _is_made_by_name(cls: type) -> bool:
    """Return whether a new object of a library's class can be made, and is whole then."""
    return makes_plainly(cls) and not of_last_use(cls) and find_data_class(class_name(cls), None) is cls


class Encoder(Functions):
    """Turns live objects into nodes. One encoder makes one graph; call `encode` for each root, then `finish`."""

    def finish(self, roots: Mapping[str, Item]) -> Encoded:
        """Return the graph with its named roots."""
        for number, view, path in self._far_views:
            is_near = id(owner_of(view)) in self._numbers
            self._nodes[number] = self._encode_view(view, path) if is_near else self._encode_array("ndarray", view, view, path)
        self.note_told()
        if self._memories and not self._collects:
            self._join_memories()
            self._clear_unseen()
        for number, holder, keys, path in self._addresses:
            self._mark_addresses(number, holder, keys & self._numbers.keys(), path)
        cells = {
            f"cells|{place}": [self._numbers[id(cell)]] for place, cell in (self._cells or {}).items() if id(cell) in self._numbers
        }
        roots = {**roots, **self._classes, **cells}
        lost = {"lost": sorted(self._lost_numbers), "spare": sorted(self._spare)}
        graph = b"" if self._collects else msgspec.msgpack.encode({"nodes": self._nodes, "roots": dict(roots), **lost})
        return Encoded(graph, self._arrays, self._lost, self._moved, self._unknown)

    def classes(self) -> set[str]:
        """Return the names of the classes whose objects are in the graph, and of classes that it holds."""
        return classes_in(node for node in self._nodes if node is not None)

    def note_told(self) -> None:
        """Look at what the classes of libraries say themselves that their objects hold. What of it is not in the graph,
        and was not like that when the loop was entered, is named."""
        with streams_kept() if self._told else nullcontext():
            self._ask()

    def _ask(self) -> None:
        for number, value, path in self._told:
            missed = self._not_below(number, self._said(value))
            if missed and not self._baseline.has(value) and makes_plainly(type(value)):
                missed -= self._said(new_object(type(value)))  # a version, say
            if self._collects:
                self._baseline.add_told(value, missed)
            elif missed != self._baseline.told(value):
                self._lose(number, path, f"{type_name(value)}: its class says of it what nothing shows")

    def _said(self, value: object) -> set[object]:
        said = told(value)
        return set() if said is None else numbers_and_texts(said, lambda item: id(item) in self._numbers)

    def _not_below(self, number: int, wanted: set[object]) -> set[object]:
        """Return those of some numbers and texts that are not in a node, nor in what it leads to."""
        seen, below = {number}, collections.deque([number])
        while wanted and below:
            left: list[Any] = [self._nodes[below.popleft()]]
            while left:
                item = left.pop()
                if type(item) is not list:
                    wanted.discard(key(item))
                elif len(item) == 1 and type(item[0]) is int and item[0] < len(self._nodes):
                    below += {item[0]} - seen
                    seen.add(item[0])
                else:
                    left += item
        return wanted

    def _mark_addresses(self, number: int, holder: str, keys: set[Any], path: str) -> None:
        """Describe the keys of a dictionary that are addresses of objects by these; name a set that has such."""
        node: Any = self._nodes[number]
        assert node is not None
        if keys and (holder not in _BY_KEYS or node[0] != holder):
            self._nodes[number] = self._lose(number, path, f"{holder}: it has addresses (`id`), others in each process")
            return
        for pair in node[1] if keys else ():
            if type(pair[0]) is int and pair[0] in keys:
                self._nodes.append(["address", [self._numbers[pair[0]]]])
                pair[0] = [len(self._nodes) - 1]

    def _join_memories(self) -> None:
        """Describe arrays and memories of tensors that lie in one another as such: what is written into one is written
        into the other.
        """
        spans = sorted(
            (each for each in self._spans if each.end > each.start), key=lambda each: (each.start, -each.end, _rank(each))
        )
        outer = Span(0, 0, 0, "")
        inner: dict[int, list[Item]] = {}
        for span in spans:
            if span.start >= outer.end:
                outer = span
            elif span.end > outer.end or span.is_foreign or outer.is_foreign:
                if not (self._stays(span) and self._stays(outer)):
                    self._lose(span.number, span.path, f"memory: a part of it is also that of {outer.path}")
                outer = max(outer, span, key=lambda each: each.end)
            elif outer.array is not None and memory_of(outer.array) is None:
                self._lose(span.number, span.path, f"memory: it lies in that of {outer.path}, which has gaps")
            elif span.array is not None and outer.array is not None:
                continue  # of NumPy's alone: a view of what is too large to be written for its sake
            elif span.array is not None:
                assert outer.memory is not None
                self._widen(outer.number, outer.memory, span.start - outer.start, span.end - outer.start)
                form = [address_of(span.array) - outer.start, list(span.array.shape), list(span.array.strides)]
                inner[span.number] = ["view", [outer.number], *form, dtype_name(span.array.dtype), span.array.flags.writeable]
            else:
                before: Any = self._nodes[span.number]
                at, size = span.start - outer.start, span.end - span.start
                if outer.memory is not None:
                    self._widen(outer.number, outer.memory, at + before[3][0], at + before[3][1])
                inner[span.number] = ["memory", None, "", *before[3:5], [outer.number], at, size]
        for number, node in inner.items():  # at the end: names of arrays are their number
            self._drop(number, node)

    def _stays(self, span: Span) -> bool:
        """Return whether a memory is as it was when the loop was entered: it stays then as the process has it."""
        node: Any = self._nodes[span.number]
        kept = None if span.memory is None else self._as_it_was(span.memory, *node[3])
        if kept is not None:
            self._drop(span.number, kept)
        return kept is not None

    def _clear_unseen(self) -> None:
        """Set the bytes of memories that no tensor looks at to zero: they are not state, and others in each process."""
        for number in self._memories.values():
            _kind, name, _digest, (start, stop), *_rest = self._nodes[number]  # type: ignore[misc]
            if name is not None and (start > 0 or stop < self._arrays[name].nbytes):
                seen = np.zeros_like(self._arrays[name])
                seen[start:stop] = self._arrays[name][start:stop]
                self._arrays[name] = seen

    def _drop(self, number: int, node: list[Item]) -> None:
        """Put another node in the place of one that has its content to itself."""
        before = self._nodes[number]
        if before is not None and before[0] in ("memory", "ndarray") and before[1] is not None:
            del self._arrays[before[1]]
        self._nodes[number] = node

    def encode_loader(self, value: object, path: str) -> Item:
        """Return the item for what a batch loop goes over, after all else: what is lost of it is loaded again,
        and so no loss."""
        lost, self._lost = self._lost, []
        self._is_loader = True
        item = self.encode(value, path)
        self._is_loader = False
        self._moved += self._lost
        self._lost = lost
        return item

    def encode(self, value: object, path: str) -> Item:
        """Return the item for a value. `path` is how the program would write it, for messages."""
        kind = type(value)
        if value is None or kind in (bool, bytes) or (kind is float and value == value):  # noqa: PLR0124 - not a NaN
            return value
        if kind is int:
            assert isinstance(value, int)
            return value if value in _INT64 else self._node(value, ["int", hex(value)])
        if kind is str:
            assert isinstance(value, str)
            if value.isascii():
                return value
            try:
                value.encode()
            except UnicodeEncodeError:
                return self._node(value, ["str", value.encode("utf-8", "surrogatepass")])
            return value
        number = self._numbers.get(id(value))
        if number is not None:
            if not self._outputs and number in self._spare and not is_output_only(value):
                self._spare.discard(number)
            if number in self._lost_numbers:
                self._lose(number, path, self._lost_numbers[number])
            return [number]
        number = len(self._nodes)
        self._numbers[id(value)] = number
        self._nodes.append(None)
        self._alive.append(value)
        if kind in _EMPTY and not value and self._depth < MAX_DEPTH and not getattr(value, "__dict__", None):
            # Many, and nothing in them to walk.
            self._nodes[number] = [kind.__name__, [], *([None] if issubclass(kind, dict) else [])]
        elif self._depth:
            self._nodes[number] = self._encode_below(number, value, path)
        else:
            with deep_calls():
                self._nodes[number] = self._encode_below(number, value, path)
        return [number]

    def _encode_below(self, number: int, value: object, path: str) -> list[Item]:
        if self._depth >= MAX_DEPTH:
            return self._lose(number, path, f"{type_name(value)}: nested too deeply")
        self._depth += 1
        try:
            return self._encode_object(number, value, path)
        finally:
            self._depth -= 1

    def _encode_object(self, number: int, value: Any, path: str) -> list[Item]:
        cls = type(value)
        if cls in weakref.ProxyTypes and (described := parts(value)) is not None:  # all else is that of what it stands for
            return ["made", "weakref.proxy", self._encode_all(described[1], path)]
        if cls in (bytearray, array.array) and not self._collects:
            self._spans.append(Span(*bounds_of(np.frombuffer(value, np.uint8)), number, path, is_foreign=True))
        if cls in (set, frozenset):
            return self._encode_set(number, value, path)
        if cls.__name__ in CONTAINERS and CONTAINERS[cls.__name__] is cls:
            return self._encode_container(number, cls, value, path)
        if cls is np.ndarray:
            return self._encode_ndarray(number, value, path)
        kinds = np.generic | np.dtype | np.random.SeedSequence | np.random.BitGenerator | random.Random
        if stream_base(cls) is not None:
            return self._encode_derived(number, value, path)
        if issubclass(cls, kinds) or cls in (np.random.RandomState, np.random.Generator):
            return self._encode_numpy(value, path) or self._encode_opaque(number, value, path)
        return self._encode_scalar(value, path) or self._encode_special(number, value, path)

    def _encode_attributes(self, owner: object, values: Mapping[Any, object], path: str) -> list[Item]:
        """Encode the attributes of an object. What is lost of one that only shows or records is harmless, too.

        So is what is lost of what it only lists, unless something else leads there.
        """
        is_output, listed = is_output_only(owner), lists(type(owner))
        self._outputs += is_output
        pairs = self._encode_pairs({name: item for name, item in values.items() if name not in listed}, path)
        self._outputs += 1
        pairs += self._encode_pairs({name: item for name, item in values.items() if name in listed}, path)
        self._outputs -= is_output + 1
        return pairs

    def _encode_pairs(self, values: Mapping[Any, object], path: str) -> list[Item]:
        """Encode attributes; names are items too, since a name need not be valid UTF-8."""
        return [[self.encode(name, path), self.encode(item, f"{path}.{name}")] for name, item in list(values.items())]

    def _encode_container(self, number: int, cls: Any, value: Any, path: str) -> list[Item]:
        """Encode what a container holds; read past the methods of a class that derives from it."""
        if issubclass(cls, dict):
            entries = list((cls if cls is collections.OrderedDict else dict).items(value))
            self._note_addresses(number, cls, [key for key, _ in entries], path)
            pairs = [[self.encode(k, f"{path} key"), self.encode(v, key_path(path, k))] for k, v in entries]
            factory = self.encode(value.default_factory, f"{path}.default_factory") if cls is collections.defaultdict else None
            # PyTorch's `state_dict` sets attributes on one.
            own = vars(value) if cls is collections.OrderedDict and type(value) is cls else None
            return [cls.__name__, pairs, factory, *([self._encode_pairs(own, path)] if own else [])]
        items = self._encode_all(list(cls.__iter__(value)), path)
        return [cls.__name__, items, value.maxlen] if cls is collections.deque else [cls.__name__, items]

    def _note_addresses(self, number: int, cls: type, keys: list[object], path: str) -> None:
        """Note keys that may be addresses of objects: whether one is, shows when all objects are known."""
        found = set() if self._collects else {key for key in keys if type(key) is int and key in _ADDRESSES}
        if found:
            self._addresses.append((number, cls.__name__, found, path))

    def _encode_set(self, number: int, value: Any, path: str) -> list[Item]:
        """Encode a set with what its order takes; one that no process can order alike is named,
        unless it is as it was."""
        base = set if isinstance(value, set) else frozenset
        name, content = base.__name__, list(base.__iter__(value))
        self._note_addresses(number, base, content, path)
        has_order = len(content) < 2 or all(map(has_value_hash, content))
        before, self._is_unordered = self._is_unordered, self._is_unordered or not has_order
        items = self._encode_all(content, path)
        self._is_unordered = before
        if self._collects:
            self._baseline.add_set(value, content)
            return [name, items, None]
        how: Item = None if name == "set" else "list"
        is_exact = False
        if has_order:
            how, is_exact = set_recipe(value) if name == "set" else frozen_recipe(value)
        is_kept = not is_exact and self._baseline.has_set(value, content)
        if not has_order and is_gone_over(path, self._hooks.files()):
            self._lose(number, path, f"{name}: its order is that of addresses, and the program goes over it")
        elif not is_exact and not is_kept:
            # Addresses are others in each process: it matters to nobody who only asks what is in it.
            why = "its order cannot be made again" if has_order else f"its order is that of addresses{HARMLESS}"
            self._lose(number, path, f"{name}: {why}")
        return [name, items, "kept" if is_kept else how]

    def _encode_special(self, number: int, value: Any, path: str) -> list[Item]:
        cls = type(value)
        if cls is types.CellType:
            return ["cell", self.encode(value.cell_contents, path)] if has_contents(value) else ["cell"]
        if (reduction := reduction_of(cls)) is not None:
            return self._encode_reduced(number, value, reduction, path)
        if computes(value):
            return ["static", static_name(value), None]
        if cls is types.FunctionType and (described := self._hooks.parts(value)) is not None:
            return ["made", described[0], self._encode_all(described[1], path)]
        if cls is types.FunctionType and (holds_state(value) or self._baseline.is_other(value)):
            return self._encode_function(number, value, path)
        if issubclass(cls, type) and is_own_class(value):
            return self._encode_class(number, value, path)
        if is_wrapper(value):
            return ["wrapped", cls.__name__, self._encode_all(functions_in(value), path)]
        if is_bound(value):
            owner = self.encode(value.__self__, f"{path}.__self__")
            is_named = cls is not types.MethodType or find_method(value.__self__, value.__name__) == value
            return ["method", value.__name__, owner, None if is_named else self.encode(value.__func__, f"{path}.__func__")]
        if issubclass(cls, STATIC):
            return self._encode_static(number, value, path)
        if issubclass(cls, functools.partial):
            names = ("func", "args", "keywords")
            node: list[Item] = ["partial", *[self.encode(getattr(value, name), f"{path}.{name}") for name in names]]
            return self._annotated([*node, *([] if cls is functools.partial else [class_name(cls)])], value, path)
        if is_table(value):
            return self._encode_table(number, value, path)
        described = parts(value) or moment_parts(value)
        if described is not None:
            self._note_weak(value, path)
            return ["made", described[0], self._encode_all(described[1], path)]
        shared = self._hooks.shared(value)
        if shared is not None:
            return self._encode_shared(value, shared, path)
        variable = self._hooks.variable(value)
        if variable is not None:
            if self._collects:
                self._baseline.add(value)
            return ["variable", variable, self._hooks.is_of_loop(value)]
        tensor = self._hooks.tensor(value)
        if tensor is not None:
            return self._encode_tensor(value, tensor, path)
        if is_user_class(cls):
            return self._encode_user_object(number, value, path)
        is_marked = self._hooks.holds_variables(value) and self._kinds.is_marked(value)
        described = None if is_marked else self._hooks.parts(value)
        if described is not None:
            return ["made", described[0], self._encode_all(described[1], path)]
        is_kept = self._kinds.is_of_library(value) and not self._kinds.is_choice(value)
        if self._hooks.is_container(value) and not is_kept and self._kinds.is_walkable(value):
            return ["held", type_name(value), self._encode_held(number, value, path)]
        if isinstance(value, logging.Filterer):
            self._note_handlers(value, path)
        if self._kinds.is_data(value):
            return self._encode_data(number, value, path)
        if is_own_class(cls) or self._hooks.is_holder(value) or self._kinds.is_marked(value):
            return self._encode_derived(number, value, path)
        return self._encode_opaque(number, value, path)

    def _encode_tensor(self, value: Any, array: Array, path: str) -> list[Item]:
        return self._annotated(self._encode_array("tensor", value, array, path), value, path)

    def _annotated(self, node: list[Item], value: Any, path: str) -> list[Item]:
        """Return a node with the attributes that someone has set on a tensor or a partial call."""
        attributes = getattr(value, "__dict__", None)
        return ["annotated", node, self._encode_pairs(attributes, path)] if attributes else node

    def _encode_held(self, number: int, value: Any, path: str) -> Item:
        """Encode what a framework's list, dict, set or tuple holds; the order of a set is its own,
        not that of a copy."""
        if isinstance(value, set):
            return self._node(plain(value), self._encode_set(number, value, path))
        return self.encode(plain(value), path)

    def _encode_reduced(self, number: int, value: Any, reduction: Reduction, path: str) -> list[Item]:
        """An object that a package's reducer saves: it stays, or is made anew, and is given its data."""
        if self._collects:
            self._baseline.add(value, "" if self._is_unordered else path)
            return []
        address = self._address_of(value)
        is_new = not self._baseline.has(value)
        if address is None and not self._finds_again and not (is_new and reduction.makes):
            return self._lose(number, path, f"{type_name(value)}: the loop has made it, and its reducer makes none")
        return ["reduced", type_name(value), address, self.encode(reduction.save(value), f"{path}.data")]

    def _encode_table(self, number: int, value: Any, path: str) -> list[Item]:
        """A table is described by what it holds; a large one that is as it was stays as it is."""
        is_kept = self._collects or (is_large(value) and self._baseline.is_at(value, position(value)))
        described = None if is_kept else table_parts(value)
        if described is not None:
            return ["made", described[0], self._encode_all(described[1], path)]
        node = self._encode_opaque(number, value, path)
        place = None if self._collects or self._lost_numbers.get(number) else place_of(value)
        return [*node, place] if place is not None and len(node) == 3 else node

    def _note_classes(self, cls: type) -> None:
        """Encode what the classes of an object hold besides methods."""
        for base in cls.__mro__:
            if base not in self._noted and is_own_class(base):
                self._noted.add(base)
                if self._baseline.methods(base) or class_attributes(base) or class_methods(base):
                    # made in a function, perhaps more than once
                    turn = "" if is_findable(base) else f" #{len(self._noted)}"
                    self._classes[f"class|{class_name(base)}{turn}"] = self.encode(base, base.__qualname__)

    def _note_handlers(self, value: Any, path: str) -> None:
        """Encode what a logger or a handler, which stays as it is, leads to:
        its handlers and filters may be of the program."""
        for kind in ("handlers", "filters"):
            for index, held in enumerate(getattr(value, kind, ())):
                place = f"{path}.{kind}[{index}]"
                if isinstance(held, logging.Filterer | logging.Filter):
                    self._classes[f"class|{place}"] = self.encode(held, place)

    def _encode_user_object(self, number: int, value: Any, path: str) -> list[Item]:
        cls = type(value)
        self._note_classes(cls)
        if hasattr(cls, "_fields") and issubclass(cls, tuple):
            return ["namedtuple", self._name_of(cls, path), self._encode_all(tuple.__iter__(value), path)]
        own, gone = own_attributes(value), of_last_use(cls)
        lasting = {name: item for name, item in (own or {}).items() if name not in gone} if gone else own or {}
        attributes = None if own is value else self._encode_attributes(value, lasting, path)
        slots = {name: item for name, slot in slots_of(cls).items() if (item := read_slot(slot, value)) is not None}
        base = container_base(cls)
        if base is set:
            content: list[Item] | None = self._encode_set(number, value, path)
        else:
            content = None if base is None else self._encode_container(number, base, value, path)
        named = self._encode_pairs({n: i[0] for n, i in slots.items()}, path)
        return ["object", self._name_of(cls, path), attributes, named, content]

    def _encode_data(self, number: int, value: Any, path: str) -> list[Item]:
        """An object of a library that is data is captured as those of the program are, but found by its address: others
        of the library may hold it, too."""
        cls, address = type(value), self._address_of(value)
        if self._collects:
            self._encode_opaque(number, value, path, is_captured=True)
        elif self._kinds.is_large(value) and address is not None and self._baseline.is_at(value, position(value)):
            return ["opaque", type_name(value), address]
        elif address is None and not self._finds_again and not _is_made_by_name(cls):
            return self._lose(number, path, f"{type_name(value)}: the loop has made it")
        self._note_asked(number, value, path)
        node = self._encode_user_object(number, value, path)
        return [*node, address] if node[0] == "object" else node

    def _note_asked(self, number: int, value: object, path: str) -> None:
        if tells(type(value)) and not self._finds_again:
            self._told.append((number, value, path))

    def _encode_derived(self, number: int, value: Any, path: str) -> list[Item]:
        """An object of a class that derives from a library's stays as it is;
        what the program's methods store there is state."""
        stream = stream_base(type(value))
        node = self._encode_opaque(number, value, path, is_captured=stream is not None)
        self._note_classes(type(value))
        if (not self._collects and not self._baseline.has(value)) or node[0] == "loader":
            return node
        self._note_asked(number, value, path)
        stored = self._kinds.attributes(value)
        if self._collects:
            self._baseline.add_names(value, stored)
        gone = dict.fromkeys(sorted(self._baseline.names(value) - (own_attributes(value) or {}).keys()), ABSENT)
        state = self._state(value, stored, path, is_own=is_own_class(type(value))) | gone
        pairs = self._encode_attributes(value, state, path)
        place = None if stream is None else self._encode_stream(stream, value, path)
        return ["derived", *node[1:3], pairs, place, *node[3:]]
