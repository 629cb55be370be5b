"""Python state -> graph: walks live objects, and describes each by data alone. What does not fit is named, never guessed."""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import fractions
import functools
import pathlib
import random
import types
import uuid
import zoneinfo
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec
import numpy as np

from detrain.runtime.baseline import Baseline
from detrain.runtime.derived import is_of_framework, stored_names
from detrain.runtime.digest import Array, digest_array
from detrain.runtime.dtypes import dtype_name
from detrain.runtime.frames import is_user_file
from detrain.runtime.graph import (
    BIT_GENERATORS,
    CONTAINERS,
    LARGE_BYTES,
    LIVE_LARGE_BYTES,
    MAX_DEPTH,
    NANS,
    Encoded,
    Hooks,
    Item,
    deep_calls,
    key_path,
    shown,
)
from detrain.runtime.library_state import is_data_object
from detrain.runtime.naming import (
    STATIC,
    class_name,
    container_base,
    find_method,
    is_findable,
    is_own_class,
    is_user_class,
    own_attributes,
    slots_of,
    static_name,
    type_name,
)
from detrain.runtime.positions import is_open_for_writing, position
from detrain.runtime.set_order import frozen_recipe, set_recipe
from detrain.runtime.stdlib_state import parts

_INT64: Final = range(-(1 << 63), 1 << 63)
_TEXTS: Final[dict[type, Callable[[Any], str]]] = {
    datetime.date: datetime.date.isoformat,
    decimal.Decimal: str,
    uuid.UUID: str,
    pathlib.PosixPath: str,
    pathlib.PurePosixPath: str,
    pathlib.PureWindowsPath: str,
}
_VALUE_TYPES: Final = (int, float, complex, str, bytes, bool, range, fractions.Fraction, np.generic, *_TEXTS)
"""Kinds whose hash is that of their value, in every process of the same hash seed."""


_STATE_TYPES: Final = (
    *(bool, int, float, complex, str, bytes, bytearray, range, slice, enum.Enum, fractions.Fraction),
    *(np.ndarray, np.generic),
    *(datetime.date, datetime.time, datetime.timedelta, random.Random, np.random.RandomState, np.random.Generator, *_TEXTS),
)
_DEEP_STATE: Final = 8
"""Containers of data are not nested deeper than this in an object of a library."""


class Encoder:
    """Turns live objects into nodes. One encoder makes one graph; call `encode` for each root, then `finish`."""

    def __init__(
        self,
        hooks: Hooks,
        baseline: Baseline,
        *,
        is_baseline: bool = False,
        are_loads_replayed: bool = False,
        is_live: bool = False,
    ) -> None:
        self._hooks = hooks
        self._baseline = baseline
        self._collects = is_baseline
        self._are_loads_replayed = are_loads_replayed
        """What loads move on is where it was when a resumed process has loaded as often."""
        self._is_live = is_live
        """The graph stays in this process: it leads to the very objects, and holds only what can change in them."""
        self._opaque: list[tuple[object, str]] = []
        self._nodes: list[list[Item] | None] = []
        self._numbers: dict[int, int] = {}
        self._alive: list[object] = []
        self._arrays: dict[str, Array] = {}
        self._lost: list[str] = []
        self._lost_numbers: dict[int, str] = {}
        self._classes: dict[str, Item] = {}
        """Classes of the program whose objects were met, as roots: nothing else may lead to their attributes any more."""
        self._far_views: list[tuple[int, Array, str]] = []
        self._is_unordered = False
        """Inside a set whose order is that of addresses, so that paths do not lead to the same in another process."""
        self._depth = 0

    def finish(self, roots: Mapping[str, Item]) -> Encoded:
        """Return the graph with its named roots."""
        for number, view, path in self._far_views:
            is_near = id(owner_of(view)) in self._numbers
            self._nodes[number] = self._encode_view(view, path) if is_near else self._encode_array("ndarray", view, view, path)
        roots = {**roots, **self._classes}
        graph = b"" if self._collects else msgspec.msgpack.encode({"nodes": self._nodes, "roots": dict(roots)})
        live = (tuple(self._alive), tuple(self._opaque)) if self._is_live else ((), ())
        return Encoded(graph, self._arrays, self._lost, *live)

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
            try:
                value.encode()
            except UnicodeEncodeError:
                return self._node(value, ["str", value.encode("utf-8", "surrogatepass")])
            return value
        number = self._numbers.get(id(value))
        if number is not None:
            if number in self._lost_numbers:
                self._lose(number, path, self._lost_numbers[number])
            return [number]
        number = len(self._nodes)
        self._numbers[id(value)] = number
        self._nodes.append(None)
        self._alive.append(value)
        if self._depth:
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

    def _lose(self, number: int, path: str, why: str) -> list[Item]:
        """Name what is not captured, at each place that holds it."""
        if not self._collects:
            self._lost.append(f"{shown(path)} ({why})")
            self._lost_numbers[number] = why
        return ["opaque", why.partition(":")[0], None]

    def _node(self, value: object, node: list[Item]) -> Item:
        self._nodes.append(node)
        self._alive.append(value)
        return [len(self._nodes) - 1]

    def _encode_object(self, number: int, value: Any, path: str) -> list[Item]:
        cls = type(value)
        if cls in (set, frozenset):
            return self._encode_set(number, value, path)
        if cls.__name__ in CONTAINERS and CONTAINERS[cls.__name__] is cls:
            return self._encode_container(cls, value, path)
        if cls is np.ndarray:
            return self._encode_ndarray(number, value, path)
        kinds = np.generic | np.dtype | np.random.SeedSequence | np.random.BitGenerator | random.Random
        if issubclass(cls, kinds) or cls in (np.random.RandomState, np.random.Generator):
            return self._encode_numpy(value, path) or self._encode_opaque(number, value, path)
        return self._encode_scalar(value, path) or self._encode_special(number, value, path)

    def _encode_all(self, values: Iterable[object], path: str) -> list[Item]:
        return [self.encode(item, f"{path}[{index}]") for index, item in enumerate(values)]

    def _encode_pairs(self, values: Mapping[Any, object], path: str) -> list[Item]:
        """Encode attributes; names are items too, since a name need not be valid UTF-8."""
        return [[self.encode(name, path), self.encode(item, f"{path}.{name}")] for name, item in list(values.items())]

    def _encode_container(self, cls: Any, value: Any, path: str) -> list[Item]:
        """Encode what a container holds; read past the methods of a class that derives from it."""
        if issubclass(cls, dict):
            entries = list((cls if cls is collections.OrderedDict else dict).items(value))
            pairs = [[self.encode(k, f"{path} key"), self.encode(v, key_path(path, k))] for k, v in entries]
            factory = self.encode(value.default_factory, f"{path}.default_factory") if cls is collections.defaultdict else None
            return [cls.__name__, pairs, factory]
        items = self._encode_all(list(cls.__iter__(value)), path)
        return [cls.__name__, items, value.maxlen] if cls is collections.deque else [cls.__name__, items]

    def _encode_set(self, number: int, value: Any, path: str) -> list[Item]:
        """Encode a set with what its order takes; one that no process can order alike is named, unless it is as it was."""
        base = set if isinstance(value, set) else frozenset
        name, content = base.__name__, list(base.__iter__(value))
        has_order = len(content) < 2 or all(map(_has_value_hash, content))
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
        if self._is_live:
            return [name, items, how if is_exact else "kept"]
        if is_exact or not self._baseline.has_set(value, content):
            if not is_exact:
                why = "its order cannot be made again" if has_order else "its order is that of addresses"
                self._lose(number, path, f"{name}: {why}")
            return [name, items, how]
        return [name, items, "kept"]

    def _encode_scalar(self, value: Any, path: str) -> list[Item] | None:
        """Encode what has no parts that others could hold."""
        cls = type(value)
        if cls is float:  # not a number: as a key it is found by its identity alone
            return ["nan", value, next((name for name, known in NANS.items() if known is value), None)]
        if cls is complex:
            return ["complex", value.real, value.imag]
        if cls is bytearray:
            return ["bytearray", bytes(value)]
        if cls in (range, slice):
            return [cls.__name__, *[self.encode(part, path) for part in (value.start, value.stop, value.step)]]
        if cls in _TEXTS:
            return ["text", cls.__name__, self.encode(_TEXTS[cls](value), path)]
        if cls is fractions.Fraction:
            return ["fraction", self.encode(value.numerator, path), self.encode(value.denominator, path)]
        if cls in (datetime.datetime, datetime.time):
            naive = value.replace(tzinfo=None).isoformat()
            return [cls.__name__, naive, value.fold, self.encode(value.tzinfo, f"{path}.tzinfo")]
        if cls is datetime.timedelta:
            return ["timedelta", value.days, value.seconds, value.microseconds]
        if cls is datetime.timezone:
            offset, *name = value.__getinitargs__()
            return ["timezone", self.encode(offset, path), *name]
        if cls is zoneinfo.ZoneInfo and value.key is not None:
            return ["zoneinfo", value.key]
        if issubclass(cls, enum.Enum):
            bits = self.encode(value.value, path) if issubclass(cls, enum.Flag) else None
            return ["enum", class_name(cls), value.name, bits]
        return None

    def _encode_numpy(self, value: Any, path: str) -> list[Item] | None:
        """Encode NumPy's scalars, dtypes and generators, and Python's generator."""
        cls = type(value)
        if cls in (np.str_, np.bytes_):  # as an array it would lose its trailing zeros
            return ["npstr" if cls is np.str_ else "npbytes", self.encode(str(value) if cls is np.str_ else bytes(value), path)]
        if issubclass(cls, np.generic):
            array = np.asarray(value)
            return ["npscalar", self._store(array)] if dtype_name(array.dtype) is not None and array.itemsize else None
        if issubclass(cls, np.dtype):
            name = dtype_name(value)
            return None if name is None else ["dtype", name]
        if cls is random.Random:
            _version, words, gauss = value.getstate()
            return ["random", self._store(np.array(words, np.uint32)), gauss]
        if cls is np.random.RandomState:
            state = value.get_state(legacy=False)
            bits = self._encode_bits(value._bit_generator, path, has_seeds=state["bit_generator"] != "MT19937")
            return ["RandomState", bits, [state["has_gauss"], state["gauss"]]]
        if cls is np.random.Generator:
            return ["Generator", self.encode(value.bit_generator, f"{path}.bit_generator"), None]
        if cls is np.random.SeedSequence:
            parts = (value.entropy, value.spawn_key, value.pool_size, value.n_children_spawned)
            return ["seeds", *[self.encode(part, path) for part in parts]]
        if cls.__name__ in BIT_GENERATORS and cls is getattr(np.random, cls.__name__):
            return self._describe_bits(value, path, has_seeds=True)
        return None

    def _encode_bits(self, bits: Any, path: str, *, has_seeds: bool) -> Item:
        known = self._numbers.get(id(bits))
        if known is not None:
            return [known]
        item = self._node(bits, [])
        self._numbers[id(bits)] = item[0]
        self._nodes[item[0]] = self._describe_bits(bits, path, has_seeds=has_seeds)
        return item

    def _describe_bits(self, bits: Any, path: str, *, has_seeds: bool) -> list[Item]:
        """Describe a bit generator. The seeds of a legacy one are from the system, and nothing can be spawned from it."""
        seeds = getattr(bits, "seed_seq", None) if has_seeds else None
        return ["bits", type(bits).__name__, self.encode(bits.state, path), self.encode(seeds, f"{path}.seed_seq")]

    def _encode_special(self, number: int, value: Any, path: str) -> list[Item]:
        cls = type(value)
        if cls is types.CellType:
            return ["cell", self.encode(value.cell_contents, path)] if has_contents(value) else ["cell"]
        if cls is types.FunctionType and is_user_file(value.__code__.co_filename):
            return self._encode_function(number, value, path)
        if issubclass(cls, type) and is_own_class(value):
            return self._encode_class(number, value, path)
        if cls in (types.MethodType, types.BuiltinMethodType) and not isinstance(value.__self__, type | types.ModuleType | None):
            owner = self.encode(value.__self__, f"{path}.__self__")
            is_named = cls is not types.MethodType or find_method(value.__self__, value.__name__) == value
            return ["method", value.__name__, owner, None if is_named else self.encode(value.__func__, f"{path}.__func__")]
        if issubclass(cls, STATIC):
            return self._encode_static(number, value, path)
        if cls is functools.partial and not vars(value):
            names = ("func", "args", "keywords")
            return ["partial", *[self.encode(getattr(value, name), f"{path}.{name}") for name in names]]
        described = parts(value)
        if described is not None and not (self._is_live and isinstance(value, Iterator)):
            return ["made", described[0], self._encode_all(described[1], path)]
        variable = self._hooks.variable(value)
        if variable is not None:
            return ["variable", variable]
        tensor = None if self._is_live else self._hooks.tensor(value)
        if tensor is not None:
            return self._encode_array("tensor", value, tensor, path)
        if self._is_live and self._hooks.is_constant(value):
            return ["constant"]
        if is_user_class(cls):
            return self._encode_user_object(number, value, path)
        if self._hooks.is_container(value) and not self._is_of_library(value) and self._is_walkable(value):
            return ["held", type_name(value), self.encode(plain(value), path)]
        if is_own_class(cls) or self._is_holder(value) or self._is_marked(value):
            return self._encode_derived(number, value, path)
        return self._encode_opaque(number, value, path)

    def _note_classes(self, cls: type) -> None:
        """Encode what the classes of an object hold besides methods."""
        for base in cls.__mro__:
            key = f"class|{class_name(base)}"
            if key not in self._classes and is_own_class(base) and is_findable(base) and class_attributes(base):
                self._classes[key] = None
                self._classes[key] = self.encode(base, base.__qualname__)

    def _encode_user_object(self, number: int, value: Any, path: str) -> list[Item]:
        cls = type(value)
        self._note_classes(cls)
        if hasattr(cls, "_fields") and issubclass(cls, tuple):
            return ["namedtuple", class_name(cls), self._encode_all(tuple.__iter__(value), path)]
        own = own_attributes(value)
        attributes = None if own is value else self._encode_pairs(own or {}, path)
        slots = {name: item for name, slot in slots_of(cls).items() if (item := read_slot(slot, value)) is not None}
        base = container_base(cls)
        if base is set:
            content: list[Item] | None = self._encode_set(number, value, path)
        else:
            content = None if base is None else self._encode_container(base, value, path)
        return ["object", class_name(cls), attributes, self._encode_pairs({n: i[0] for n, i in slots.items()}, path), content]

    def _encode_derived(self, number: int, value: Any, path: str) -> list[Item]:
        """An object of a class that derives from a library's stays as it is; what the program's methods store there is state."""
        node = self._encode_opaque(number, value, path)
        self._note_classes(type(value))
        if not self._collects and not self._is_live and not self._baseline.has(value):
            return node
        own = own_attributes(value) or {}
        names = own.keys() if self._is_holder(value) else stored_names(type(value)) | self._hooks.stored_outside
        state = {}
        for name, item in list(own.items()):
            if name in names and not self._is_of_library(item):
                if self._is_walkable(item):
                    state[name] = item
                elif not self._collects and is_own_class(type(value)):
                    self._lost.append(f"{shown(f'{path}.{name}')} ({type_name(item)})")
        keys = [list(map(str, own))] if self._is_live else []
        return ["derived", *node[1:3], self._encode_pairs(state, path), *keys]

    def _is_walkable(self, value: Any, depth: int = 0) -> bool:
        """Return whether an attribute can be described: data, and among it what stays as it is."""
        if self._is_state(value) or self._collects or self._is_live or isinstance(value, (*STATIC, functools.partial)):
            return True
        if type(value) in CONTAINERS.values() or self._hooks.is_container(value):
            values = [*value.keys(), *value.values()] if isinstance(value, dict) else list(value)
            return depth < _DEEP_STATE and all(self._is_walkable(item, depth + 1) for item in values)
        return self._hooks.variable(value) is not None or self._baseline.has(value)

    def _is_of_library(self, value: Any, depth: int = 0) -> bool:
        """Return whether an attribute is the library's through and through: layers, variables, losses, and containers of these."""
        cls = type(value)
        if cls in CONTAINERS.values() or self._hooks.is_container(value):
            values = list(value.values() if isinstance(value, dict) else value)
            return bool(values) and depth < _DEEP_STATE and all(self._is_of_library(item, depth + 1) for item in values)
        if isinstance(value, types.FunctionType):
            return not is_user_file(value.__code__.co_filename)
        is_framework = is_of_framework(cls) and not self._is_holder(value) and not self._is_marked(value)
        return self._hooks.variable(value) is not None or (is_framework and not self._is_tensor(value))

    def _is_holder(self, value: object) -> bool:
        """Return whether all attributes of a library's object that are data are state."""
        return self._hooks.is_holder(value) or is_data_object(value, is_plain_state)

    def _is_marked(self, value: object) -> bool:
        """Return whether the program has put attributes on an object of a framework: `model.counter = 0`."""
        return is_of_framework(type(value)) and not self._hooks.stored_outside.isdisjoint(own_attributes(value) or ())

    def _is_state(self, value: Any, depth: int = 0) -> bool:
        """Return whether an attribute of a library's object is data, and no part of what the library builds there."""
        cls = type(value)
        if is_open_for_writing(value) or parts(value) is not None:
            return True
        if value is None or issubclass(cls, _STATE_TYPES):
            return cls is not np.ndarray or dtype_name(value.dtype) is not None
        if cls in CONTAINERS.values() or self._hooks.is_container(value):
            values = [*value.keys(), *value.values()] if isinstance(value, dict) else list(value)
            return depth < _DEEP_STATE and all(self._is_state(item, depth + 1) for item in values)
        if is_user_class(cls):
            return True
        if is_own_class(cls) or self._is_holder(value):
            return self._collects or self._baseline.has(value)
        return self._hooks.variable(value) is None and self._is_tensor(value)

    def _is_tensor(self, value: object) -> bool:
        return self._hooks.is_constant(value) if self._is_live else self._hooks.tensor(value) is not None

    def _encode_opaque(self, number: int, value: object, path: str) -> list[Item]:
        """What is not data stays as it is, under the address that it had when the loop was entered."""
        if self._collects:
            self._baseline.add(value, "" if self._is_unordered else path)
            self._baseline.add_position(value, position(value))
            self._hooks.follow(value)
        elif self._is_live:
            if is_open_for_writing(value):
                return self._encode_open_file(number, value, path)
            self._opaque.append((value, path))
        elif (pulled := self._hooks.pulled(value)) is not None and self._baseline.address(value):
            return ["generator", type_name(value), self._baseline.address(value), pulled]
        elif not self._baseline.has(value):
            return self._lose(number, path, type_name(value))
        elif is_open_for_writing(value) and not self._hooks.is_known_file(value):
            self._lose(number, path, f"{type_name(value)}: open for writing")
        elif not self._are_loads_replayed and not self._hooks.is_loader(value) and not self._baseline.is_at(value, position(value)):
            self._lose(number, path, f"{type_name(value)}: it has moved on")
        return ["opaque", type_name(value), self._baseline.address(value)]

    def _encode_open_file(self, number: int, value: object, path: str) -> list[Item]:
        """A file that is known is set back by whoever knows it."""
        if not self._hooks.is_known_file(value):
            return self._lose(number, path, f"{type_name(value)}: open for writing")
        return ["opaque", type_name(value), None]

    def _encode_static(self, number: int, value: Any, path: str) -> list[Item]:
        return ["static", static_name(value), self._address(number, value, path)]

    def _address(self, number: int, value: object, path: str) -> str | None:
        """Return the address of a function or class whose name does not lead to it; name it if it has none."""
        if is_findable(value) or self._is_live:
            return None
        if self._collects:
            self._baseline.add(value, "" if self._is_unordered else path)
        elif not self._baseline.has(value):
            self._lose(number, path, type_name(value))
        return self._baseline.address(value)

    def _encode_function(self, number: int, value: Any, path: str) -> list[Item]:
        """A function stays as it is; what its closure, its defaults and its attributes hold is state."""
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        return [
            "function",
            static_name(value),
            self._address(number, value, path),
            [self.encode(cell, f"{path}.<{name}>") for name, cell in cells],
            self.encode(value.__defaults__, f"{path}.__defaults__"),
            self.encode(value.__kwdefaults__, f"{path}.__kwdefaults__"),
            self._encode_pairs(vars(value), path),
        ]

    def _encode_class(self, number: int, value: type, path: str) -> list[Item]:
        """A class stays as it is; its attributes that are not methods are state."""
        attributes = class_attributes(value)
        if not is_user_class(value):  # it derives from a library's: what is no data is the library's
            attributes = {name: item for name, item in attributes.items() if self._is_state(item)}
        return ["class", class_name(value), self._address(number, value, path), self._encode_pairs(attributes, path)]

    def _encode_ndarray(self, number: int, value: Array, path: str) -> list[Item]:
        owner = owner_of(value)
        is_view = owner is not value and value.nbytes > 0 and memory_of(owner) is not None
        if value.dtype == object and owner.dtype == object and owner.ndim:
            if is_view:
                return self._encode_view(value, path)
            return ["objects", list(value.shape), self._encode_all(value.reshape(-1).tolist(), path)]
        if dtype_name(value.dtype) is None:
            return self._encode_opaque(number, value, path)
        if not is_view or dtype_name(owner.dtype) is None:
            return self._encode_array("ndarray", value, value, path)
        if id(owner) in self._numbers or owner.nbytes <= max(16 * value.nbytes, LARGE_BYTES):
            return self._encode_view(value, path)
        if self._collects:
            return self._encode_array("ndarray", value, value, path)
        self._far_views.append((number, value, path))  # a large owner is captured only if the program holds it elsewhere
        return []

    def _encode_view(self, value: Array, path: str) -> list[Item]:
        owner = owner_of(value)
        offset = _address_of(value) - _address_of(owner)
        form = [offset, list(value.shape), list(value.strides), dtype_name(value.dtype)]
        return ["view", self.encode(owner, f"{path}.base"), *form, value.flags.writeable]

    def _encode_array(self, kind: str, value: object, array: Array, path: str) -> list[Item]:
        """Encode an array; one that the loop has not changed is marked, so that a resumed run finds out if its data differ."""
        if self._is_live:
            known = self._baseline.paths.get(path)
            if known is not None and array.nbytes > LIVE_LARGE_BYTES:
                return ["large", known]
            axes = axes_of(array)
            return [kind, self._store(array if axes is None else array.transpose(axes)), axes, False, array.flags.writeable]
        digest = digest_array(array)
        if self._collects:
            self._baseline.arrays.setdefault(digest, []).append(value)
            if not self._is_unordered:
                self._baseline.paths[path] = digest
            return []
        there = self._baseline.arrays.get(digest, ())
        if array.nbytes > LARGE_BYTES and (any(known is value for known in there) or (there and kind == "tensor")):
            return ["same", digest, kind]
        axes = axes_of(array)
        stored = array if axes is None else array.transpose(axes)
        return [kind, self._store(stored), axes, self._baseline.paths.get(path) == digest, array.flags.writeable]

    def _store(self, array: Array) -> str:
        if self._collects:
            return ""
        name = f"{len(self._arrays):05d}"
        self._arrays[name] = np.array(array, copy=True, order="C")
        return name


def plain(value: Any) -> object:
    """Return a plain list, dict or set of what a framework's one holds."""
    return next(base(value) for base in (dict, list, set) if isinstance(value, base))


def is_plain_state(value: object) -> bool:
    """Return whether a value is data of a kind that needs no framework."""
    cls = type(value)
    if issubclass(cls, np.ndarray):
        return cls is np.ndarray and dtype_name(value.dtype) is not None  # type: ignore[attr-defined]
    return issubclass(cls, _STATE_TYPES) or is_user_class(cls)


def has_contents(cell: types.CellType) -> bool:
    """Return whether a closure's variable is bound."""
    try:
        cell.cell_contents  # noqa: B018 - reading it is the test
    except ValueError:
        return False
    return True


def class_attributes(cls: type) -> dict[str, object]:
    """Return the attributes of a class that are state: no methods, descriptors or what Python itself puts there."""
    if issubclass(cls, enum.Enum) or hasattr(cls, "_fields"):
        return {}
    static = (*STATIC, functools.cached_property, types.MemberDescriptorType, types.GetSetDescriptorType)
    return {
        name: item
        for name, item in list(vars(cls).items())
        if not (name.startswith("__") and name.endswith("__")) and name != "_abc_impl" and not issubclass(type(item), static)
    }


def axes_of(array: Array) -> list[int] | None:
    """Return the axes from the slowest to the fastest in memory, or None if that is their order: sums depend on it."""
    if array.flags.c_contiguous or array.ndim < 2:
        return None
    axes = sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))
    return None if axes == list(range(array.ndim)) else axes


def owner_of(array: Array) -> Array:
    """Return the array whose memory an array is a view of, or itself."""
    while type(array.base) is np.ndarray:
        array = array.base
    return array


def _is_nan(value: object) -> bool:
    """Return whether a value is not a number: then it is found by its identity alone, and its hash is its address."""
    return bool(value != value)  # noqa: PLR0124


def memory_of(array: Array) -> Array | None:
    """Return the memory of an array that has no gaps as one axis, or None."""
    axes = axes_of(array)
    flat = (array if axes is None else array.transpose(axes)).reshape(-1)
    return flat if flat.flags.c_contiguous and _address_of(flat) == _address_of(array) else None


def _address_of(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def read_slot(slot: Any, value: object) -> tuple[object] | None:
    """Return what is in a slot, past the hooks of the class, or None if it is not set."""
    try:
        return (slot.__get__(value),)
    except AttributeError:
        return None


def _has_value_hash(value: object) -> bool:
    """Return whether a hash is that of a value, in every process of the same hash seed, not of an address."""
    cls = type(value)
    if cls in (tuple, frozenset) or (issubclass(cls, tuple) and cls.__hash__ is tuple.__hash__):
        return all(map(_has_value_hash, value))  # type: ignore[call-overload]
    if value is None:  # a constant from 3.12 on
        return bool(hash(None) == 0xFCA86420)
    if issubclass(cls, (*_VALUE_TYPES, enum.Enum, datetime.time, datetime.timedelta)):
        return cls.__hash__ is not object.__hash__ and not _is_nan(value)
    return cls.__hash__ is not object.__hash__ and is_user_class(cls)
