"""The closed codec of Python state: object graph -> data, and back into the live objects, in place.

No pickle: only the kinds listed here go in, and reading runs no code from the file (classes are looked up among modules
that the program has already imported; none is imported by name). Shared references and cycles are kept. What does not fit
(models, threads, open files, generators) stays as the process has it; when the loop made such an object itself, so that
a resumed process would not have it, it is named in `Encoded.not_captured`.

The graph is a list of nodes `[kind, ...]`; an item is a scalar (None, bool, int of 64 bits, float, str, bytes) or a
reference, a list of one node number.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import decimal
import enum
import fractions
import pathlib
import random
import sys
import types
import uuid
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import numpy as np

from detrain.runtime.digest import Array, digest_array
from detrain.runtime.frames import is_user_file

Item = Any
"""A scalar, or `[number of a node]`."""

_LARGE_BYTES: Final = 1 << 16
"""Arrays above this size that are as they were when the loop was entered are kept by digest, not by value."""

_INT64: Final = range(-(1 << 63), 1 << 63)
_STATIC: Final = (
    type,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.ModuleType,
    types.MethodType,
    staticmethod,
    property,
)
_PLAIN_CLASSES: Final = {
    "argparse:Namespace": argparse.Namespace,
    "types:SimpleNamespace": types.SimpleNamespace,
}
_TEXT_KINDS: Final[dict[type, Callable[[str], object]]] = {
    datetime.datetime: datetime.datetime.fromisoformat,
    datetime.date: datetime.date.fromisoformat,
    datetime.time: datetime.time.fromisoformat,
    decimal.Decimal: decimal.Decimal,
    fractions.Fraction: fractions.Fraction,
    uuid.UUID: uuid.UUID,
    pathlib.PosixPath: pathlib.Path,
    pathlib.PurePosixPath: pathlib.PurePosixPath,
}
_TEXT_BY_NAME: Final = {cls.__name__: (cls, read) for cls, read in _TEXT_KINDS.items()}
_BIT_GENERATORS: Final = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")


@dataclass(frozen=True, slots=True)
class Hooks:
    """What the codec asks of frameworks. `tensor` returns a constant tensor's array, `make_tensor` is its inverse."""

    tensor: Callable[[object], Array | None]
    make_tensor: Callable[[Array], object]
    variable: Callable[[object], list[Item] | None]
    """Describes a variable, whose value a framework captures; None for anything else."""
    find_variable: Callable[[list[Item]], object | None]
    """Returns the variable with a description, made anew if need be, or None."""


@dataclass(slots=True)
class Baseline:
    """What was there when the loop was entered: large arrays by digest, and the objects that are not data."""

    arrays: dict[str, object] = field(default_factory=dict)
    paths: dict[str, str] = field(default_factory=dict)
    """Digest of each array by its path."""
    _opaque: dict[int, weakref.ref[Any] | type] = field(default_factory=dict)

    def add(self, value: object) -> None:
        """Note an object that is not data, without keeping it alive."""
        try:
            self._opaque[id(value)] = weakref.ref(value)
        except TypeError:
            self._opaque[id(value)] = type(value)

    def has(self, value: object) -> bool:
        """Return whether an object was there."""
        known = self._opaque.get(id(value))
        return known() is value if isinstance(known, weakref.ref) else known is type(value)


@dataclass(frozen=True, slots=True)
class Encoded:
    """A graph as bytes, the arrays it refers to, and what could not be captured (`path (type)`)."""

    graph: bytes
    arrays: dict[str, Array]
    not_captured: list[str]


def is_user_class(cls: type) -> bool:
    """Return whether a class is the program's own through all of its bases."""
    for base in cls.__mro__:
        if base is object or base.__module__ in ("typing", "abc", "_collections_abc", "collections.abc"):
            continue
        module = sys.modules.get(base.__module__)
        if not is_user_file(getattr(module, "__file__", None) or ""):
            return False
    return True


class Encoder:
    """Turns live objects into nodes. One encoder makes one graph; call `encode` for each root, then `finish`."""

    def __init__(self, hooks: Hooks, baseline: Baseline, *, is_baseline: bool = False) -> None:
        self._hooks = hooks
        self._baseline = baseline
        self._collects = is_baseline
        self._nodes: list[list[Item] | None] = []
        self._numbers: dict[int, int] = {}
        self._alive: list[object] = []
        self._arrays: dict[str, Array] = {}
        self._lost: list[str] = []

    def finish(self, roots: Mapping[str, Item]) -> Encoded:
        """Return the graph with its named roots."""
        graph = b"" if self._collects else msgspec.msgpack.encode({"nodes": self._nodes, "roots": dict(roots)})
        return Encoded(graph, self._arrays, self._lost)

    def encode(self, value: object, path: str) -> Item:
        """Return the item for a value. `path` is how the program would write it, for messages."""
        kind = type(value)
        if value is None or kind in (bool, float, bytes):
            return value
        if kind is int:
            return value if value in _INT64 else self._node(value, ["int", str(value)])
        if kind is str:
            assert isinstance(value, str)
            return value if _is_utf8(value) else self._node(value, ["str", value.encode("utf-8", "surrogatepass")])
        number = self._numbers.get(id(value))
        if number is not None:
            return [number]
        number = len(self._nodes)
        self._numbers[id(value)] = number
        self._nodes.append(None)
        self._alive.append(value)
        try:
            self._nodes[number] = self._encode_object(value, path)
        except RecursionError:
            self._lost.append(f"{path} ({_type_name(value)}: nested too deeply)")
            self._nodes[number] = ["opaque", _type_name(value)]
        return [number]

    def _node(self, value: object, node: list[Item]) -> Item:
        self._nodes.append(node)
        self._alive.append(value)
        return [len(self._nodes) - 1]

    def _encode_object(self, value: Any, path: str) -> list[Item]:
        cls = type(value)
        if cls in (list, tuple, set, frozenset, collections.deque):
            items = [self.encode(item, f"{path}[{index}]") for index, item in enumerate(value)]
            return [cls.__name__, items, value.maxlen] if cls is collections.deque else [cls.__name__, items]
        if cls in (dict, collections.OrderedDict, collections.Counter, collections.defaultdict):
            pairs = [[self.encode(k, f"{path} key"), self.encode(v, f"{path}[{k!r:.40}]")] for k, v in value.items()]
            factory = self.encode(value.default_factory, path) if cls is collections.defaultdict else None
            return [cls.__name__, pairs, factory]
        if cls is np.ndarray and not value.dtype.hasobject:
            return self._encode_array("ndarray", value, value, path)
        if isinstance(value, np.generic) and not value.dtype.hasobject:
            return ["npscalar", self._store(np.asarray(value))]
        if cls is complex:
            return ["complex", value.real, value.imag]
        if cls in (bytearray,):
            return ["bytearray", bytes(value)]
        if cls in (range, slice):
            return [cls.__name__, *(self.encode(part, path) for part in (value.start, value.stop, value.step))]
        if cls in _TEXT_KINDS:
            return ["text", cls.__name__, value.isoformat() if hasattr(value, "isoformat") else str(value)]
        if cls is datetime.timedelta:
            return ["timedelta", value.days, value.seconds, value.microseconds]
        if cls is np.dtype:
            return ["dtype", value.str]
        if isinstance(value, enum.Enum):
            return ["enum", _class_name(cls), value.name]
        return self._encode_special(value, path)

    def _encode_special(self, value: Any, path: str) -> list[Item]:
        cls = type(value)
        if cls is random.Random:
            _version, words, gauss = value.getstate()
            return ["random", self._store(np.array(words, np.uint32)), gauss]
        if cls in (np.random.RandomState, np.random.Generator):
            bits = value._bit_generator if cls is np.random.RandomState else value.bit_generator
            gauss = list(value.get_state()[3:]) if cls is np.random.RandomState and type(bits).__name__ == "MT19937" else None
            return [cls.__name__, self.encode(bits, path), gauss and [int(gauss[0]), float(gauss[1])]]
        if isinstance(value, np.random.BitGenerator) and cls.__name__ in _BIT_GENERATORS:
            return ["bits", cls.__name__, self.encode(value.state, path)]
        if isinstance(value, types.CellType):
            return ["cell", self.encode(value.cell_contents, path)] if _has_contents(value) else ["opaque", "cell"]
        if isinstance(value, types.FunctionType) and is_user_file(value.__code__.co_filename):
            return self._encode_function(value, path)
        if isinstance(value, type) and is_user_class(value):
            return self._encode_class(value, path)
        if isinstance(value, _STATIC):
            return ["static", _static_name(value)]
        variable = self._hooks.variable(value)
        if variable is not None:
            return ["variable", variable]
        tensor = self._hooks.tensor(value)
        if tensor is not None:
            return self._encode_array("tensor", value, tensor, path)
        if isinstance(value, tuple) and hasattr(cls, "_fields") and is_user_class_or_tuple(cls):
            return [
                "namedtuple",
                _class_name(cls),
                [self.encode(v, f"{path}.{n}") for n, v in zip(cls._fields, value, strict=True)],
            ]
        if is_user_class(cls) or _class_name(cls) in _PLAIN_CLASSES:
            attributes = [[name, self.encode(item, f"{path}.{name}")] for name, item in _attributes(value).items()]
            return ["object", _class_name(cls), attributes]
        return self._encode_opaque(value, path)

    def _encode_opaque(self, value: object, path: str) -> list[Item]:
        if self._collects:
            self._baseline.add(value)
        elif not self._baseline.has(value):
            self._lost.append(f"{path} ({_type_name(value)})")
        return ["opaque", _type_name(value)]

    def _encode_function(self, value: Any, path: str) -> list[Item]:
        """A function stays as it is; what its closure holds is state."""
        cells = value.__closure__ or ()
        names = value.__code__.co_freevars
        return [
            "function",
            _static_name(value),
            [self.encode(c, f"{path}.<{n}>") for n, c in zip(names, cells, strict=True)],
        ]

    def _encode_class(self, value: type, path: str) -> list[Item]:
        """A class stays as it is; plain data among its attributes is state."""
        data = {
            name: item
            for name, item in vars(value).items()
            if not (name.startswith("__") and name.endswith("__")) and type(item) in (bool, int, float, str, list, dict, set)
        }
        return [
            "class",
            _class_name(value),
            [[name, self.encode(item, f"{path}.{name}")] for name, item in data.items()],
        ]

    def _encode_array(self, kind: str, value: object, array: Array, path: str) -> list[Item]:
        """Encode an array; one that the loop has not changed is marked, so that a resumed run finds out if its data differ."""
        digest = digest_array(array)
        if self._collects:
            self._baseline.arrays[digest] = value
            self._baseline.paths[path] = digest
            return []
        if array.nbytes > _LARGE_BYTES and digest in self._baseline.arrays:
            return ["same", digest]
        if self._baseline.paths.get(path) == digest:
            return [kind, self._store(array), True]
        return [kind, self._store(array)]

    def _store(self, array: Array) -> str:
        if self._collects:
            return ""
        name = f"{len(self._arrays):05d}"
        self._arrays[name] = np.array(array, copy=True)
        return name


class Decoder:
    """Puts a graph back. Objects that the process has are filled in place, so that others who hold them see it."""

    def __init__(self, graph: bytes, arrays: Mapping[str, Array], hooks: Hooks, baseline: Baseline) -> None:
        content = msgspec.msgpack.decode(graph)
        self._nodes: list[list[Item]] = content["nodes"]
        self.roots: dict[str, Item] = content["roots"]
        self._arrays = arrays
        self._hooks = hooks
        self._baseline = baseline
        self._made: dict[int, object] = {}
        self._claimed: set[int] = set()
        self.missing: list[str] = []
        """Digests of large arrays that the first run had and this process does not have, and other losses."""

    def decode(self, item: Item, current: object, path: str) -> object:
        """Return the value of an item. `current` is the live object at its place, or `ABSENT`."""
        if not isinstance(item, list):
            return item
        number = item[0]
        if number not in self._made:
            self._made[number] = self._decode_node(number, self._nodes[number], current, path)
        return self._made[number]

    def _claim(self, current: object, cls: type) -> bool:
        """Return whether the live object may be filled: of the right type, and not yet taken for another node."""
        if type(current) is not cls or id(current) in self._claimed:
            return False
        self._claimed.add(id(current))
        return True

    def _decode_node(self, number: int, node: list[Item], current: Any, path: str) -> Any:
        kind = node[0]
        if kind in ("static", "opaque"):
            return self._keep(node, current)
        if kind in _CONTAINERS:
            return self._decode_container(number, node, current, path)
        if kind == "object":
            return self._decode_user_object(number, node, current, path)
        if kind in ("function", "class", "cell"):
            return self._decode_static_with_state(node, current, path)
        if kind == "variable":
            found = self._hooks.find_variable(node[1])
            if found is None:
                self.missing.append(f"{path}: the variable {node[1][1]!r} is not there")
            return current if found is None else found
        if kind in ("ndarray", "tensor", "same", "npscalar"):
            return self._decode_array(node, current, path)
        if kind in ("random", "RandomState", "Generator", "bits"):
            return self._decode_rng(node, current, path)
        return self._decode_value(node, path)

    def _keep(self, node: list[Item], current: object) -> object:
        if current is ABSENT and node[0] == "static":
            return _find_static(node[1])
        return current

    def _decode_container(self, number: int, node: list[Item], current: Any, path: str) -> Any:
        kind = node[0]
        cls = _CONTAINERS[kind]
        if kind in ("tuple", "frozenset"):
            old = list(current) if kind == "tuple" and type(current) is tuple else []
            return cls(self._items(node[1], old, path))
        if kind in ("list", "deque", "set"):
            claimed = self._claim(current, cls) and not (kind == "deque" and current.maxlen != node[2])
            target: Any = current if claimed else (collections.deque(maxlen=node[2]) if kind == "deque" else cls())
            self._made[number] = target
            items = self._items(node[1], list(current) if claimed and kind != "set" else [], path)
            if kind == "list":
                target[:] = items
            else:
                target.clear()
                for value in items:
                    target.add(value) if kind == "set" else target.append(value)
            return target
        claimed = self._claim(current, cls)
        target = current if claimed else cls()
        self._made[number] = target
        old_values = dict(target)
        pairs = []
        for key_item, value_item in node[1]:
            key = self.decode(key_item, ABSENT, path)
            pairs.append((key, self._required(value_item, old_values.get(key, ABSENT), f"{path}[{key!r:.40}]")))
        target.clear()
        dict.update(target, pairs) if cls is not collections.OrderedDict else target.update(pairs)
        if kind == "defaultdict":
            target.default_factory = self.decode(node[2], target.default_factory if claimed else ABSENT, path)
        return target

    def _items(self, items: Iterable[Item], old: list[object], path: str) -> list[object]:
        return [
            self._required(item, old[index] if index < len(old) else ABSENT, f"{path}[{index}]") for index, item in enumerate(items)
        ]

    def _required(self, item: Item, current: object, path: str) -> object:
        """Like `decode`, for a place that cannot stay empty."""
        value = self.decode(item, current, path)
        if value is ABSENT:
            self.missing.append(path)
            return None
        return value

    def _decode_user_object(self, number: int, node: list[Item], current: Any, path: str) -> Any:
        cls = _find_class(node[1])
        if cls is None:
            self.missing.append(f"{path}: class {node[1]!r} is not there")
            return current
        target = current if self._claim(current, cls) else cls.__new__(cls)
        self._made[number] = target
        old = _attributes(target)
        new = {name: self.decode(item, old.get(name, ABSENT), f"{path}.{name}") for name, item in node[2]}
        for name in old.keys() - new.keys():
            object.__delattr__(target, name)
        for name, value in new.items():
            if value is ABSENT:
                self.missing.append(f"{path}.{name}")
            elif old.get(name, ABSENT) is not value:
                object.__setattr__(target, name, value)
        return target

    def _decode_static_with_state(self, node: list[Item], current: Any, path: str) -> Any:
        kind = node[0]
        if kind == "cell":
            old = current.cell_contents if isinstance(current, types.CellType) and _has_contents(current) else ABSENT
            value = self.decode(node[1], old, path)
            if isinstance(current, types.CellType) and value is not ABSENT:
                current.cell_contents = value
            return current
        if current is ABSENT:
            current = _find_class(node[1]) if kind == "class" else _find_static(node[1])
        if kind == "class" and isinstance(current, type):
            for name, item in node[2]:
                setattr(current, name, self.decode(item, vars(current).get(name, ABSENT), f"{path}.{name}"))
        elif isinstance(current, types.FunctionType) and len(current.__closure__ or ()) == len(node[2]):
            for cell, item in zip(current.__closure__ or (), node[2], strict=True):
                self.decode(item, cell, path)
        return current

    def _decode_array(self, node: list[Item], current: Any, path: str) -> Any:
        kind = node[0]
        if kind == "same":
            found = self._baseline.arrays.get(node[1])
            if found is None:
                self.missing.append(f"{path}: the large array is not the one that the first run had (digest {node[1]})")
                return current
            return found
        array = self._arrays[node[1]]
        if node[2:] == [True]:
            now = current if isinstance(current, np.ndarray) else self._hooks.tensor(current)
            if now is not None and digest_array(now) != digest_array(array):
                self.missing.append(f"{path}: the array is not the one that the first run had (digest {digest_array(array)})")
        if kind == "npscalar":
            return array[()]
        if kind == "tensor":
            return self._hooks.make_tensor(array)
        same_form = isinstance(current, np.ndarray) and current.shape == array.shape and current.dtype == array.dtype
        if same_form and current.flags.writeable and self._claim(current, np.ndarray):
            current[...] = array
            return current
        return np.array(array, copy=True)

    def _decode_rng(self, node: list[Item], current: Any, path: str) -> Any:
        kind = node[0]
        if kind == "random":
            target = current if self._claim(current, random.Random) else random.Random()
            target.setstate((3, tuple(self._arrays[node[1]].tolist()), node[2]))
            return target
        if kind == "bits":
            kind_of_bits = getattr(np.random, node[1] if node[1] in _BIT_GENERATORS else "PCG64")
            bits = current if self._claim(current, kind_of_bits) else kind_of_bits()
            bits.state = self.decode(node[2], ABSENT, path)
            return bits
        cls: Any = np.random.RandomState if kind == "RandomState" else np.random.Generator
        if self._claim(current, cls):
            inner = current._bit_generator if kind == "RandomState" else current.bit_generator
            bits = self.decode(node[1], inner, path)
            target = current if bits is inner else cls(bits)
        else:
            target = cls(self.decode(node[1], ABSENT, path))
        if node[2] is not None:
            state = target.get_state()
            target.set_state((state[0], state[1], state[2], node[2][0], node[2][1]))
        return target

    def _decode_value(self, node: list[Item], path: str) -> Any:
        kind, *rest = node
        if kind == "int":
            return int(rest[0])
        if kind == "str":
            return rest[0].decode("utf-8", "surrogatepass")
        if kind == "complex":
            return complex(rest[0], rest[1])
        if kind == "bytearray":
            return bytearray(rest[0])
        if kind in ("range", "slice"):
            parts: list[Any] = [self.decode(part, ABSENT, path) for part in rest]
            return range(*parts) if kind == "range" else slice(*parts)
        if kind == "text":
            return _TEXT_BY_NAME[rest[0]][1](rest[1])
        if kind == "timedelta":
            return datetime.timedelta(rest[0], rest[1], rest[2])
        if kind == "dtype":
            return np.dtype(rest[0])
        if kind == "enum":
            cls: Any = _find_class(rest[0])
            return cls[rest[1]]
        if kind == "namedtuple":
            cls = _find_class(rest[0])
            return cls(*self._items(rest[1], [], path))
        raise ValueError(f"unknown kind of node {kind!r}")


class _Absent:
    """The type of `ABSENT`: there is no live object at this place."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = _Absent()

_CONTAINERS: Final[dict[str, Any]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "deque": collections.deque,
    "dict": dict,
    "OrderedDict": collections.OrderedDict,
    "Counter": collections.Counter,
    "defaultdict": collections.defaultdict,
}


def is_user_class_or_tuple(cls: type) -> bool:
    """Return whether a named tuple's class is the program's own."""
    return all(base in (tuple, object) or is_user_class_name(base) for base in cls.__mro__)


def is_user_class_name(cls: type) -> bool:
    """Return whether a class is defined in a user's module."""
    return is_user_file(getattr(sys.modules.get(cls.__module__), "__file__", None) or "")


def _attributes(value: object) -> dict[str, object]:
    """Return the instance attributes of an object, those in slots included."""
    found: dict[str, object] = {}
    for cls in reversed(type(value).__mro__):
        slots = vars(cls).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                found[name] = getattr(value, name)
    found.update(getattr(value, "__dict__", {}))
    return found


def _has_contents(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - reading it is the test
    except ValueError:
        return False
    return True


def _is_utf8(text: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in text) if not text.isascii() else True


def _type_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")


def _class_name(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _static_name(value: Any) -> str:
    if isinstance(value, types.ModuleType):
        return f"{value.__name__}:"
    return f"{getattr(value, '__module__', None) or ''}:{getattr(value, '__qualname__', '') or ''}"


def _find_static(name: str) -> object:
    """Return a function or class of a user's module that is already imported, or ABSENT."""
    module_name, _, qualified = name.partition(":")
    found: Any = sys.modules.get(module_name)
    is_user = is_user_file(getattr(found, "__file__", None) or "")
    if not (is_user or module_name == "builtins") or "<" in qualified:
        return ABSENT
    for part in filter(None, qualified.split(".")):
        found = getattr(found, part, ABSENT)
    # Of the builtins only types (the factory of a defaultdict): a file must not be able to bind `eval` to a name.
    return found if is_user or isinstance(found, type) else ABSENT


def _find_class(name: str) -> Any:
    if name in _PLAIN_CLASSES:
        return _PLAIN_CLASSES[name]
    found = _find_static(name)
    return found if isinstance(found, type) else None
