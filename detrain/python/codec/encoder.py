"""Python state -> graph: walks live objects, and describes each by data alone. What does not fit is named,
never guessed."""

from __future__ import annotations

import array
import collections
import enum
import functools
import itertools
import logging
import random
import types
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from typing import Any, Final

import numpy as np

from detrain.base.array_memory import address_of, bounds_of, memory_of, owner_of
from detrain.base.digest import Array
from detrain.base.dtypes import dtype_name
from detrain.base.set_order import frozen_recipe, set_recipe
from detrain.python.codec.encode_functions import Functions
from detrain.python.codec.encode_leaves import Known, Rule
from detrain.python.codec.kinds import kind_of
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
from detrain.python.inspect.function_source import holds_state
from detrain.python.inspect.gone_over import is_gone_over
from detrain.python.inspect.graph import FORMAT, Graph, Item, Node, is_array, is_reference
from detrain.python.inspect.library_globals import look_through, name_in_library
from detrain.python.inspect.names import (
    METHODS,
    STATIC,
    class_name,
    computes,
    find_method,
    is_bound,
    is_findable,
    is_own_class,
    is_user_class,
    module_of,
    own_attributes,
    static_name,
    stream_base,
    type_name,
)
from detrain.python.inspect.object_graph import (
    ABSENT,
    CONTAINERS,
    HARMLESS,
    MAX_DEPTH,
    WITH_VARIABLES,
    Encoded,
    Span,
    classes_in,
    deep_calls,
    key_path,
)
from detrain.python.inspect.output_only import is_output_only
from detrain.python.inspect.ownership import find_data_class, lists, makes_plainly, new_object, of_last_use
from detrain.python.inspect.pandas_tables import is_large, is_table, table_parts
from detrain.python.inspect.progress import place_of, position
from detrain.python.inspect.reductions import key, numbers_and_texts, streams_kept, tells, told
from detrain.python.process.reducers import Reduction, reduction_of

_RANDOM: Final = (np.random.SeedSequence, np.random.BitGenerator, random.Random, np.random.RandomState, np.random.Generator)
_EMPTY: Final = (dict, list, tuple, collections.OrderedDict)
_INT64: Final = range(-(1 << 63), 1 << 63)
_ITEMS: Final = frozenset({types.NoneType, bool, bytes})
_BY_KEYS: Final = ("dict", "OrderedDict", "defaultdict")
_ADDRESSES: Final = range(1 << 32, 1 << 48, 8)
"""Where a process of 64 bits may have its objects."""


def _rank(span: Span) -> int:
    """Of a memory and an array that lie in one place, the memory is the outer one."""
    return 0 if span.array is None else 1


def _is_item(value: Any) -> bool:
    """Return whether a value is its own item: most are, and they need no path."""
    kind = type(value)
    if kind is str:
        return bool(value.isascii())
    return value in _INT64 if kind is int else value == value if kind is float else kind in _ITEMS  # noqa: PLR0124 - not a NaN


def _is_made_by_name(cls: type) -> bool:
    """Return whether a new object of a library's class can be made, and is whole then."""
    return makes_plainly(cls) and not of_last_use(cls) and find_data_class(class_name(cls), None) is cls


def _flat(data: Any) -> Iterator[object]:
    """Yield the scalars of nested lists."""
    if isinstance(data, list | tuple):
        for each in data:
            yield from _flat(each)
    else:
        yield data


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
        graph = Graph(FORMAT, self._nodes, dict(roots), sorted(self._lost_numbers), sorted(self._spare))  # type: ignore[arg-type]
        return Encoded(b"" if self._collects else graph.pack(), self._arrays, self._lost, self._moved, self._unknown)

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
            elif missed != self._baseline.told(value) and number not in self._lost_numbers:  # it is named already
                self._lose(number, path, f"{type_name(value)}: its class says of it what nothing shows")

    def _said(self, value: object) -> set[object]:
        said = told(value)
        return set() if said is None else numbers_and_texts(said, lambda item: id(item) in self._numbers)

    def _not_below(self, number: int, wanted: set[object]) -> set[object]:
        """Return those of some numbers and texts that are not in a node, nor in what it leads to."""
        seen, below = {number}, collections.deque([number])
        while wanted and below:
            node = self._nodes[below.popleft()]
            if node is None:
                continue
            wanted -= set(map(key, _flat(node.data)))
            for item in (*node.items, *itertools.chain(*node.named)):
                if not is_reference(item):
                    wanted.discard(key(item))
                elif item[0] not in seen:
                    below.append(item[0])
                    seen.add(item[0])
        return wanted

    def _mark_addresses(self, number: int, holder: str, keys: set[Any], path: str) -> None:
        """Describe the keys of a dictionary that are addresses of objects by these; name a set that has such."""
        node: Any = self._nodes[number]
        assert node is not None
        if keys and (holder not in _BY_KEYS or node.kind != holder):
            self._nodes[number] = self._lose(number, path, f"{holder}: it has addresses (`id`), others in each process")
            return
        for pair in node.named if keys else ():
            if type(pair[0]) is int and pair[0] in keys:
                pair[0] = self._node(None, Node("address", None, [[self._numbers[pair[0]]]]))

    def _join_memories(self) -> None:
        """Describe arrays and memories of tensors that lie in one another as such: what is written into one is written
        into the other.
        """
        spans = sorted(
            (each for each in self._spans if each.end > each.start), key=lambda each: (each.start, -each.end, _rank(each))
        )
        outer = Span(0, 0, 0, "")
        inner: dict[int, Node] = {}
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
                form += [dtype_name(span.array.dtype), span.array.flags.writeable]
                inner[span.number] = Node("view", form, [[outer.number]])
            else:
                before: Any = self._nodes[span.number]
                at, size = span.start - outer.start, span.end - span.start
                first, last = before.data[:2]
                if outer.memory is not None:
                    self._widen(outer.number, outer.memory, at + first, at + last)
                inner[span.number] = Node("memory", [first, last, "", at, size], [None, [outer.number]], there=before.there)
        for number, node in inner.items():  # at the end: names of arrays are their number
            self._drop(number, node)

    def _stays(self, span: Span) -> bool:
        """Return whether a memory is as it was when the loop was entered: it stays then as the process has it."""
        node: Any = self._nodes[span.number]
        kept = None if span.memory is None else self._as_it_was(span.memory, *node.data[:2])
        if kept is not None:
            self._drop(span.number, kept)
        return kept is not None

    def _clear_unseen(self) -> None:
        """Set the bytes of memories that no tensor looks at to zero: they are not state, and others in each process."""
        for number in self._memories.values():
            node: Any = self._nodes[number]
            if not is_array(node.items[0]):
                continue
            (start, stop), (name,) = node.data[:2], node.items[0]
            if start > 0 or stop < self._arrays[name].nbytes:
                seen = np.zeros_like(self._arrays[name])
                seen[start:stop] = self._arrays[name][start:stop]
                self._arrays[name] = seen

    def _drop(self, number: int, node: Node) -> None:
        """Put another node in the place of one that has its content to itself."""
        before = self._nodes[number]
        if before is not None and before.kind in ("memory", "ndarray") and is_array(before.items[0]):
            del self._arrays[before.items[0][0]]
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
            return value if value in _INT64 else self._node(value, Node("int", hex(value)))
        if kind is str:
            assert isinstance(value, str)
            if value.isascii():
                return value
            try:
                value.encode()
            except UnicodeEncodeError:
                return self._node(value, Node("str", value.encode("utf-8", "surrogatepass")))
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
        if (
            kind in _EMPTY
            and not value
            and not self._strangers
            and self._depth < MAX_DEPTH
            and not getattr(value, "__dict__", None)
        ):
            # Many, and nothing in them to walk.
            self._nodes[number] = Node(kind.__name__)
        elif self._depth:
            self._nodes[number] = self._encode_below(number, value, path)
        else:
            with deep_calls():
                self._nodes[number] = self._encode_below(number, value, path)
        return [number]

    def _encode_below(self, number: int, value: object, path: str) -> Node:
        if self._depth >= MAX_DEPTH:
            return self._lose(number, path, f"{type_name(value)}: nested too deeply")
        self._depth += 1
        try:
            return self._encode_object(number, value, path)
        finally:
            self._depth -= 1

    def _encode_object(self, number: int, value: Any, path: str) -> Node:
        cls = type(value)
        rule = self._rules.get(cls)
        if rule is None:
            rule = self._rules[cls] = self._rule_of(value)
        return rule(self, number, value, path)

    def _rule_of(self, value: Any) -> Rule:
        """Return how objects of a value's class are described, as far as the class decides that."""
        cls, how = type(value), type(self)  # bound methods would keep the encoder, and all that it holds
        if CONTAINERS.get(cls.__name__) is cls:
            return functools.partial(how._encode_plain, cls=cls)
        if cls is np.ndarray:
            return how._encode_ndarray
        if stream_base(cls) is not None:
            return how._encode_derived
        if issubclass(cls, _RANDOM):
            return how._encode_random
        if cls is float:
            return how._encode_nan
        if value is ABSENT:
            return lambda *_: Node("absent")
        if issubclass(cls, enum.Enum):
            return how._encode_enum
        if cls is types.CellType:
            return how._encode_cell
        if (reduction := reduction_of(cls)) is not None:
            return functools.partial(how._encode_reduced, reduction=reduction)
        if issubclass(cls, type):
            return how._encode_type
        if is_wrapper(value):
            return how._encode_wrapped
        if issubclass(cls, (*STATIC, *METHODS, np.ufunc, type(np.mean))):
            return how._encode_callable
        if issubclass(cls, functools.partial):
            return how._encode_partial
        if is_table(value):
            return how._encode_table
        return how._encode_stranger if kind_of(value) is None else how._encode_kind

    def _encode_attributes(self, owner: object, values: Mapping[Any, object], path: str) -> list[list[Item]]:
        """Encode the attributes of an object. What is lost of one that only shows or records is harmless, too.

        So is what is lost of what it only lists, unless something else leads there.
        """
        is_output, listed = is_output_only(owner), lists(type(owner))
        if not is_output and not listed:
            return self._encode_pairs(values, path)
        self._outputs += is_output
        pairs = self._encode_pairs({name: item for name, item in values.items() if name not in listed}, path)
        self._outputs += 1
        pairs += self._encode_pairs({name: item for name, item in values.items() if name in listed}, path)
        self._outputs -= is_output + 1
        return pairs

    def _encode_pairs(self, values: Mapping[Any, object], path: str) -> list[list[Item]]:
        """Encode attributes; names are items too, since a name need not be valid UTF-8."""
        return [
            [
                name if _is_item(name) else self.encode(name, path),
                item if _is_item(item) else self.encode(item, f"{path}.{name}"),
            ]
            for name, item in list(values.items())
        ]

    def _encode_plain(self, number: int, value: Any, path: str, *, cls: Any) -> Node:
        """Encode a container of Python's; one within an object of a library may be the library's own."""
        is_set = cls in (set, frozenset)
        node = self._encode_set(number, value, path) if is_set else self._encode_container(number, value, path, cls=cls)
        return self._named_by_library(value, node) if self._strangers and cls not in (tuple, frozenset) else node

    def _encode_container(self, number: int, value: Any, path: str, *, cls: Any) -> Node:
        """Encode what a container holds; read past the methods of a class that derives from it."""
        if issubclass(cls, dict):
            entries = list((cls if cls is collections.OrderedDict else dict).items(value))
            self._note_addresses(number, cls, [key for key, _ in entries], path)
            pairs = [
                [
                    key if _is_item(key) else self.encode(key, f"{path} key"),
                    item if _is_item(item) else self.encode(item, key_path(path, key)),
                ]
                for key, item in entries
            ]
            node = Node(cls.__name__, named=pairs)
            if cls is collections.defaultdict:
                node.items = [self.encode(value.default_factory, f"{path}.default_factory")]
            elif cls is collections.OrderedDict and type(value) is cls and (own := vars(value)):
                # PyTorch's `state_dict` sets attributes on one.
                node.items = [self._node(None, Node("dict", named=self._encode_pairs(own, path)))]
            return node
        items = self._encode_all(list(cls.__iter__(value)), path)
        return Node(cls.__name__, value.maxlen if cls is collections.deque else None, items)

    def _note_addresses(self, number: int, cls: type, keys: list[object], path: str) -> None:
        """Note keys that may be addresses of objects: whether one is, shows when all objects are known."""
        found = set() if self._collects else {key for key in keys if type(key) is int and key in _ADDRESSES}
        if found:
            self._addresses.append((number, cls.__name__, found, path))

    def _encode_set(self, number: int, value: Any, path: str) -> Node:
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
            return Node(name, None, items)
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
        return Node(name, "kept" if is_kept else how, items)

    def _encode_cell(self, _number: int, value: types.CellType, path: str) -> Node:
        return Node("cell", None, [self.encode(value.cell_contents, path)] if has_contents(value) else [])

    def _encode_type(self, number: int, value: Any, path: str) -> Node:
        return self._encode_class(number, value, path) if is_own_class(value) else self._encode_static(number, value, path)

    def _encode_wrapped(self, _number: int, value: Any, path: str) -> Node:
        return Node("wrapped", type(value).__name__, self._encode_all(functions_in(value), path))

    def _encode_callable(self, number: int, value: Any, path: str) -> Node:
        """Encode a function, a method or a module."""
        if computes(value):
            return Node("static", static_name(value))
        if type(value) is types.FunctionType:
            if (node := self._encode_parts(value, path)) is not None:
                return node
            if holds_state(value) or self._baseline.is_other(value):
                return self._encode_function(number, value, path)
        if is_bound(value):
            owner = self.encode(value.__self__, f"{path}.__self__")
            is_named = type(value) is not types.MethodType or find_method(value.__self__, value.__name__) == value
            function = None if is_named else self.encode(value.__func__, f"{path}.__func__")
            return Node("method", value.__name__, [owner, function])
        is_static = issubclass(type(value), STATIC)
        return self._encode_static(number, value, path) if is_static else self._encode_stranger(number, value, path)

    def _encode_partial(self, _number: int, value: Any, path: str) -> Node:
        cls = type(value)
        parts = [self.encode(getattr(value, name), f"{path}.{name}") for name in ("func", "args", "keywords")]
        return self._annotated(Node("partial", None if cls is functools.partial else class_name(cls), parts), value, path)

    def _encode_kind(self, number: int, value: Any, path: str) -> Node:
        """Encode what is made again from its parts, if this one can be."""
        if type(value) in (bytearray, array.array) and not self._collects:
            self._spans.append(Span(*bounds_of(np.frombuffer(value, np.uint8)), number, path, is_foreign=True))
        node = self._encode_described(value, path)
        if node is None:
            return self._encode_stranger(number, value, path)
        self._note_weak(value, path)
        return node

    def _encode_stranger(self, number: int, value: Any, path: str) -> Node:
        """Encode what its class alone does not tell: a framework's tensor or variable, an object of the program or of a
        library."""
        cls = type(value)
        shared = self._hooks.shared(value)
        if shared is not None:
            return self._encode_shared(value, shared, path)
        variable = self._hooks.variable(value)
        if variable is not None:
            if self._collects:
                self._baseline.add(value)
            return Node("variable", [variable, self._hooks.is_of_loop(value)])
        tensor = self._hooks.tensor(value)
        if tensor is not None:
            return self._encode_tensor(value, tensor, path)
        if is_user_class(cls):
            self._rules[cls] = type(self)._encode_user_object
            return self._encode_user_object(number, value, path)
        is_marked = self._hooks.holds_variables(value) and self._kinds.is_marked(value)
        if not is_marked and (node := self._encode_parts(value, path)) is not None:
            return node
        is_kept = self._kinds.is_of_library(value) and not self._kinds.is_choice(value)
        if self._hooks.is_container(value) and not is_kept and self._kinds.is_walkable(value):
            return Node("held", type_name(value), [self._encode_held(number, value, path)])
        if isinstance(value, logging.Filterer):
            self._note_handlers(value, path)
        if self._kinds.is_data(value):
            return self._encode_data(number, value, path)
        if is_own_class(cls) or self._hooks.is_holder(value) or self._kinds.is_marked(value):
            return self._encode_derived(number, value, path)
        return self._encode_opaque(number, value, path)

    def _encode_parts(self, value: object, path: str) -> Node | None:
        """Encode what a framework describes by its parts."""
        described = self._hooks.parts(value)
        return None if described is None else Node(described[0], None, self._encode_all(described[1], path))

    def _encode_tensor(self, value: Any, array: Array, path: str) -> Node:
        return self._annotated(self._encode_array("tensor", value, array, path), value, path)

    def _annotated(self, node: Node, value: Any, path: str) -> Node:
        """Return a node with the attributes that someone has set on a tensor or a partial call."""
        attributes = getattr(value, "__dict__", None)
        return Node("annotated", None, [self._node(None, node)], self._encode_pairs(attributes, path)) if attributes else node

    def _encode_held(self, number: int, value: Any, path: str) -> Item:
        """Encode what a framework's list, dict, set or tuple holds; the order of a set is its own,
        not that of a copy."""
        if isinstance(value, set):
            return self._node(plain(value), self._encode_set(number, value, path))
        return self.encode(plain(value), path)

    def _encode_reduced(self, number: int, value: Any, path: str, *, reduction: Reduction) -> Node:
        """An object that a package's reducer saves: it stays, or is made anew, and is given its data."""
        if self._collects:
            self._baseline.add(value, "" if self._is_unordered else path)
            return Node("reduced")
        address = self._address_of(value)
        is_new = not self._baseline.has(value)
        if address is None and not self._finds_again and not (is_new and reduction.makes):
            return self._lose(number, path, f"{type_name(value)}: the loop has made it, and its reducer makes none")
        return Node("reduced", type_name(value), [self.encode(reduction.save(value), f"{path}.data")], there=address)

    def _encode_table(self, number: int, value: Any, path: str) -> Node:
        """A table is described by what it holds; a large one that is as it was stays as it is."""
        is_kept = self._collects or (is_large(value) and self._baseline.is_at(value, position(value)))
        described = None if is_kept else table_parts(value)
        if described is not None:
            return Node(described[0], None, self._encode_all(described[1], path))
        node = self._encode_opaque(number, value, path)
        place = None if self._collects or self._lost_numbers.get(number) else place_of(value, self._hooks.is_loader)
        if place is not None and node.kind == "opaque" and len(node.data) == 1:
            node.data.append(place)
        return node

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

    def _encode_user_object(self, number: int, value: Any, path: str) -> Node:
        node = self._encode_open_object(number, value, path)
        is_mark = not node.items and not node.named and node.kind == "object" and not self._known[type(value)].is_own
        return self._named_by_library(value, node) if is_mark else node

    def _encode_open_object(self, number: int, value: Any, path: str) -> Node:
        cls = type(value)
        known = self._known.get(cls)
        if known is None:
            self._note_classes(cls)
            known = self._known[cls] = Known(cls, self._name_of(cls, path) if is_findable(cls) else None)
        name = known.name or self._name_of(cls, path)
        if known.is_tuple:
            return Node("namedtuple", name, self._encode_all(tuple.__iter__(value), path))
        if not known.of_library:
            return self._encode_parts_of_object(number, value, path, known, name)
        self._strangers.append(known.of_library)
        node = self._encode_parts_of_object(number, value, path, known, name)
        self._strangers.pop()
        return node

    def _named_by_library(self, value: object, node: Node) -> Node:
        """Return a node, or where a library holds the object under a name, one that says so: there is one of it."""
        if self._collects or self._finds_again:
            return node
        for package in (module_of(type(value)).partition(".")[0], *self._strangers[-1:]):
            if package not in self._looked_through:
                self._looked_through.add(package)
                look_through(package)
        held = name_in_library(value)
        return node if held is None else Node("library", held, [self._node(None, node)])

    def _encode_parts_of_object(self, number: int, value: Any, path: str, known: Known, name: str) -> Node:
        own, gone, base = own_attributes(value), known.gone, known.base
        lasting = {name: item for name, item in (own or {}).items() if name not in gone} if gone else own or {}
        attributes = [] if own is value else self._encode_attributes(value, lasting, path)
        if base is None:
            content = []
        elif base is set:
            content = [self._node(None, self._encode_set(number, value, path))]
        else:
            content = [self._node(None, self._encode_container(number, value, path, cls=base))]
        if not known.slots:
            return Node("object", [name, 0, own is value], content, attributes)
        slots = {each: item for each, slot in known.slots.items() if (item := read_slot(slot, value)) is not None}
        in_slots = self._encode_pairs({n: i[0] for n, i in slots.items()}, path)
        return Node("object", [name, len(in_slots), own is value], content, [*attributes, *in_slots])

    def _encode_data(self, number: int, value: Any, path: str) -> Node:
        """An object of a library that is data is captured as those of the program are, but found by its address: others
        of the library may hold it, too."""
        cls, address = type(value), self._address_of(value)
        if self._collects:
            self._encode_opaque(number, value, path, is_captured=True)
        elif self._kinds.is_large(value) and address is not None and self._baseline.is_at(value, position(value)):
            return Node("opaque", [type_name(value)], there=address)
        elif address is None and not self._finds_again and not _is_made_by_name(cls) and name_in_library(value) is None:
            why = WITH_VARIABLES if self._hooks.holds_variables(value) else "the loop has made it"
            return self._lose(number, path, f"{type_name(value)}: {why}")
        self._note_asked(number, value, path)
        node = self._encode_open_object(number, value, path)
        named = node if address is not None else self._named_by_library(value, node)
        if named is node:
            node.there = address or ""  # one that was nowhere is not the one at its place
        return named

    def _note_asked(self, number: int, value: object, path: str) -> None:
        if tells(type(value)) and not self._finds_again:
            self._told.append((number, value, path))

    def _encode_derived(self, number: int, value: Any, path: str) -> Node:
        """An object of a class that derives from a library's stays as it is;
        what the program's methods store there is state."""
        stream = stream_base(type(value))
        node = self._encode_opaque(number, value, path, is_captured=stream is not None)
        self._note_classes(type(value))
        if (not self._collects and not self._baseline.has(value)) or node.kind == "loader":
            return node
        if stream is None:  # whose whole state is in a node of its own
            self._note_asked(number, value, path)
        stored = self._kinds.attributes(value)
        if self._collects:
            self._baseline.add_names(value, stored)
        gone = dict.fromkeys(sorted(self._baseline.names(value) - (own_attributes(value) or {}).keys()), ABSENT)
        state = self._state(value, stored, path, is_own=is_own_class(type(value))) | gone
        pairs = self._encode_attributes(value, state, path)
        items = [] if stream is None else [self._node(None, self._encode_stream(stream, value, path))]
        return Node("derived", node.data, items, pairs, node.there)
