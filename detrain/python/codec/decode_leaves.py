"""Graph -> Python state, the leaves: arrays, random generators, numbers, dates and the like, and what their decoding shares."""

from __future__ import annotations

import datetime
import decimal
import enum
import fractions
import pathlib
import random
import struct
import uuid
import zoneinfo
from collections.abc import Callable, Mapping
from types import CellType
from typing import Any, Final

import msgspec
import numpy as np

from detrain.base.array_memory import axes_of, memory_of, owner_of
from detrain.base.digest import Array, digest_array
from detrain.base.dtypes import named_dtype
from detrain.python.codec.baseline import Baseline
from detrain.python.codec.state_rules import member_attributes
from detrain.python.inspect.names import class_name, find_class, find_enum, find_type, is_own_class
from detrain.python.inspect.object_graph import ABSENT, BIT_GENERATORS, NANS, Hooks, Item, shown

_DOUBLE: Final = struct.Struct("<d")
_TEXTS: Final[dict[str, Callable[[str], object]]] = {
    "date": datetime.date.fromisoformat,
    "Decimal": decimal.Decimal,
    "UUID": uuid.UUID,
    "PosixPath": pathlib.Path,
    "PurePosixPath": pathlib.PurePosixPath,
    "PureWindowsPath": pathlib.PureWindowsPath,
}


class Leaves:
    """State of a decoder, and the decoding of what holds no other objects."""

    def __init__(self, graph: bytes, arrays: Mapping[str, Array], hooks: Hooks, baseline: Baseline) -> None:
        content = msgspec.msgpack.decode(graph)
        self._nodes: list[list[Item]] = content["nodes"]
        self.roots: dict[str, Item] = content["roots"]
        self._arrays = arrays
        self._hooks = hooks
        self._baseline = baseline
        self._made: dict[int, object] = {}
        self._claimed: dict[int, object] = {}
        self._cells: dict[int, CellType] = {}
        """Variables that functions share, by number: live ones, and those made for what the loop had made."""
        self._is_inside = False
        plain = [node[1] if node[0] == "annotated" else node for node in self._nodes]
        self._sources = {node[1]: self._find_arrays(node[1]) for node in plain if node[0] == "same"}
        self._reserved = {id(array) for found in self._sources.values() for array in found}
        """Large arrays that are wanted as they are: filling one in place would lose it."""
        self.missing: list[str] = []
        """Digests of large arrays that the first run had and this process does not have, and other losses."""
        self.astray: list[str] = []
        """What is not where it was, though a resumed run has loaded the same batches: bodies have moved it, which were skipped."""
        self.astray_and_read: list[str] = []
        """What of it is an object of a library that the program reads."""

    def decode(self, item: Item, current: object, path: str) -> object:
        """Return the value of an item. `current` is the live object at its place, or `ABSENT`."""
        raise NotImplementedError

    def _attributes(self, pairs: list[Item], old: Mapping[str, object], path: str) -> dict[str, object]:
        """Decode attributes; one that is absent stays as it is, and is named."""
        raise NotImplementedError

    def _claim(self, current: object, cls: type) -> bool:
        """Return whether the live object may be filled: of the right type, and not yet taken for another node."""
        if type(current) is not cls or id(current) in self._claimed or id(current) in self._reserved:
            return False
        self._claimed[id(current)] = current
        return True

    def _miss(self, path: str, what: str = "") -> None:
        self.missing.append(shown(path) + (f": {what}" if what else ""))

    def _items(self, items: list[Item], old: list[object], path: str) -> list[object]:
        if list not in set(map(type, items)):
            return list(items)
        return [
            self._required(item, old[index] if index < len(old) else ABSENT, f"{path}[{index}]") for index, item in enumerate(items)
        ]

    def _required(self, item: Item, current: object, path: str) -> object:
        """Like `decode`, for a place that cannot stay empty."""
        value = self.decode(item, current, path)
        if value is ABSENT:
            self._miss(path)
            return None
        return value

    # Arrays.

    def _find_arrays(self, digest: str) -> list[Any]:
        """Return the live arrays with a digest; they may have changed since the loop was entered."""
        found = self._baseline.arrays.get(digest, [])
        return [array for array in found if not isinstance(array, np.ndarray) or digest_array(array) == digest]

    def _decode_same(self, node: list[Item], current: Any, path: str) -> Any:
        _kind, digest, form = node
        found = self._sources[digest]
        if form == "tensor" and found:  # the live one, which has its attributes
            return next((tensor for tensor in found if tensor is current), found[0])
        if not found and isinstance(current, np.ndarray) and digest_array(current) == digest:
            return current
        if not found:
            self._miss(path, f"the large array is not the one that the first run had (digest {digest})")
            return current
        chosen = next((array for array in found if array is current), found[0])
        if id(chosen) in self._claimed:
            chosen = next((array for array in found if id(array) not in self._claimed), ABSENT)
        if chosen is ABSENT:  # two equal arrays of the first run are one here
            return np.array(found[0], copy=True)
        self._claimed[id(chosen)] = chosen
        return chosen

    def _decode_array(self, number: int, node: list[Item], current: Any, path: str) -> Any:
        kind = node[0]
        if kind == "same":
            return self._decode_same(node, current, path)
        if kind == "view":
            return self._decode_view(node, current, path)
        if kind == "objects":
            return self._decode_objects(number, node, current, path)
        _kind, name, axes, is_unchanged, is_writeable = node
        array = self._arrays[name]
        if axes is not None:
            array = array.transpose(np.argsort(axes))
        if is_unchanged:
            now = current if isinstance(current, np.ndarray) else self._hooks.tensor(current)
            if now is not None and digest_array(now) != digest_array(array):
                self._miss(path, f"the array is not the one that the first run had (digest {digest_array(array)})")
        if kind == "tensor":
            return current if self._is_live(current, array) else self._hooks.make_tensor(array)
        is_alike = type(current) is np.ndarray and (current.shape, current.dtype) == (array.shape, array.dtype)
        is_alike = is_alike and current.flags.writeable == is_writeable and axes_of(current) == axes
        if is_alike and not is_writeable and digest_array(current) == digest_array(array):
            return current
        # What is a view here and was none would write into an owner that has a state of its own.
        if is_alike and is_writeable and owner_of(current) is current and self._claim(current, np.ndarray):
            current[...] = array
            return current
        made = np.array(array, copy=True, order="K")
        made.flags.writeable = is_writeable
        return made

    def _is_live(self, current: Any, array: Array) -> bool:
        """Return whether the live tensor has an array's value; what has been set on it is gone then, as on a new one."""
        now = self._hooks.tensor(current)
        if now is None or (now.shape, now.dtype) != (array.shape, array.dtype) or digest_array(now) != digest_array(array):
            return False
        if not self._claim(current, type(current)):
            return False
        getattr(current, "__dict__", {}).clear()
        return True

    def _decode_view(self, node: list[Item], current: Any, path: str) -> Any:
        _kind, owner_item, offset, shape, strides, name, is_writeable = node
        is_live = type(current) is np.ndarray
        owner = self.decode(owner_item, owner_of(current) if is_live else ABSENT, f"{path}.base")
        flat = memory_of(owner) if isinstance(owner, np.ndarray) else None
        if flat is None:
            return ABSENT
        if flat.dtype != object:
            made: Array = np.ndarray(tuple(shape), named_dtype(name), flat.view(np.uint8), offset, tuple(strides))
        elif any(number % flat.itemsize for number in (offset, *strides)):
            raise ValueError(
                f"{shown(path)} is a view from {offset} by {strides}; expected multiples of {flat.itemsize}, whole objects"
            )
        else:
            made = np.ndarray(tuple(shape), flat.dtype, flat, offset, tuple(strides))
        made.flags.writeable = is_writeable and made.flags.writeable
        if is_live and owner_of(current) is owner and _place(current) == _place(made):
            return current
        return made

    def _decode_objects(self, number: int, node: list[Item], current: Any, path: str) -> Any:
        _kind, shape, items = node
        is_live = isinstance(current, np.ndarray) and current.dtype == object and list(current.shape) == shape
        is_live = is_live and owner_of(current) is current and current.flags.writeable and self._claim(current, np.ndarray)
        target: Any = current if is_live else np.empty(shape, object)
        self._made[number] = target
        values = self._items(items, target.reshape(-1).tolist() if is_live else [], path)
        for place, value in zip(np.ndindex(*shape), values, strict=True):
            target[place] = value
        return target

    # Random generators.

    def _decode_rng(self, node: list[Item], current: Any, path: str) -> Any:
        kind = node[0]
        if kind == "random":
            twister = current if self._claim(current, random.Random) else random.Random()
            self._set_stream(node, twister, path)
            return twister
        if kind == "bits":
            return self._decode_bits(node, current, path)
        if kind == "seeds":
            return self._decode_seeds(node, current, path)
        cls: Any = np.random.RandomState if kind == "RandomState" else np.random.Generator
        is_live = self._claim(current, cls)
        inner = _bits_of(current) if is_live else ABSENT
        bits = self.decode(node[1], inner, f"{path}.bit_generator")
        target = current if is_live and bits is inner else cls(bits)
        self._set_gauss(node, target)
        return target

    def _set_stream(self, node: list[Item], stream: Any, path: str) -> None:
        """Bring a generator to its place, past the methods of a class that derives from a generator's."""
        if node[0] == "random":
            random.Random.setstate(stream, (3, tuple(self._arrays[node[1]].tolist()), node[2]))
        elif self.decode(node[1], _bits_of(stream), f"{path}.bit_generator") is not _bits_of(stream):
            self._miss(path, "it draws from another bit generator")
        else:
            self._set_gauss(node, stream)

    def _set_gauss(self, node: list[Item], stream: Any) -> None:
        if node[0] == "RandomState":
            state = np.random.RandomState.get_state(stream, legacy=False)
            np.random.RandomState.set_state(stream, {**state, "has_gauss": node[2][0], "gauss": node[2][1]})

    def _decode_bits(self, node: list[Item], current: Any, path: str) -> Any:
        _kind, name, state_item, seeds_item = node
        cls = getattr(np.random, name if name in BIT_GENERATORS else "PCG64")
        is_live = self._claim(current, cls)
        seeds: Any = self.decode(seeds_item, getattr(current, "seed_seq", ABSENT) if is_live else ABSENT, f"{path}.seed_seq")
        bits = current if is_live else cls(seeds if isinstance(seeds, np.random.SeedSequence) else None)
        state = self.decode(state_item, ABSENT, path)
        if isinstance(seeds, np.random.SeedSequence) and bits.seed_seq is not seeds:
            bits.__setstate__((state, seeds))  # there is no other way to give a live generator other seeds
        bits.state = state
        return bits

    def _decode_seeds(self, node: list[Item], current: Any, path: str) -> Any:
        entropy, spawn_key, pool_size, spawned = (self.decode(item, ABSENT, path) for item in node[1:])
        made = np.random.SeedSequence(entropy, spawn_key=spawn_key, pool_size=pool_size, n_children_spawned=spawned)  # type: ignore[arg-type]
        if self._claim(current, np.random.SeedSequence) and current.n_children_spawned <= made.n_children_spawned:
            one, other = ({**seeds.state, "n_children_spawned": 0} for seeds in (current, made))
            if repr(one) == repr(other):
                current.spawn(made.n_children_spawned - current.n_children_spawned)
                return current
        return made

    # Values.

    def _decode_value(self, node: list[Item], current: Any, path: str) -> Any:
        kind, *rest = node
        if kind == "int":
            return int(rest[0], 16)
        if kind == "str":
            return rest[0].decode("utf-8", "surrogatepass")
        if kind == "nan":
            is_same = type(current) is float and _DOUBLE.pack(current) == _DOUBLE.pack(rest[0])
            return NANS.get(rest[1], current if is_same else rest[0])
        if kind == "bytearray":
            target = current if self._claim(current, bytearray) else bytearray()
            target[:] = rest[0]
            return target
        if kind == "npscalar":
            return self._arrays[rest[0]][()]
        if kind == "enum":
            return self._decode_enum(rest, current, path)
        if kind == "namedtuple":
            cls: Any = self._class(rest[0], current)
            values = self._items(rest[1], list(current) if type(current) is cls else [], path)
            if cls is None or not issubclass(cls, tuple):
                self._miss(path, f"class {rest[0]!r} is not there")
                return current
            return tuple.__new__(cls, values)
        if kind in ("datetime", "time"):
            zone: Any = self.decode(rest[2], getattr(current, "tzinfo", None) or ABSENT, f"{path}.tzinfo")
            if zone is ABSENT:
                return ABSENT
            naive = (datetime.datetime if kind == "datetime" else datetime.time).fromisoformat(rest[0])
            return naive.replace(fold=rest[1], tzinfo=zone)
        if kind == "texts":
            texts = np.empty(len(rest[1]), object)
            texts[:] = rest[1]
            return self._hooks.make_tensor(texts.reshape(rest[0]))
        if kind == "dtype":
            return named_dtype(rest[0])
        if kind == "type":
            return find_type(rest[0]) or ABSENT
        if kind == "zoneinfo":
            return zoneinfo.ZoneInfo(rest[0])
        if kind == "complex":
            return complex(rest[0], rest[1])
        if kind == "timedelta":
            return datetime.timedelta(*rest)
        makers: dict[str, Callable[..., object]] = {
            "range": range,
            "slice": slice,
            "fraction": fractions.Fraction,
            "timezone": datetime.timezone,
            "npstr": np.str_,
            "npbytes": np.bytes_,
            "text": lambda name, text: _TEXTS[name](text),
        }
        if kind not in makers:
            raise ValueError(f"unknown kind of node {kind!r}")
        parts: list[Any] = [self.decode(part, ABSENT, path) for part in rest]
        return makers[kind](*parts)

    def _decode_enum(self, rest: list[Item], current: Any, path: str) -> Any:
        cls = find_enum(rest[0].partition(" @ ")[0], current) or self._class(rest[0], ABSENT)
        if cls is not None and issubclass(cls, enum.Flag) and rest[2] is not None:
            return self._with_attributes(cls(self.decode(rest[2], ABSENT, path)), rest, path)
        member = cls.__members__.get(rest[1]) if cls is not None else None
        if member is None:
            self._miss(path, f"there is no {rest[1]!r} in the enumeration {rest[0]!r}")
            return current
        return self._with_attributes(member, rest, path)

    def _with_attributes(self, member: enum.Enum, rest: list[Item], path: str) -> enum.Enum:
        if len(rest) > 3 and rest[3]:  # an earlier version did not write what the program has set on it
            own = member_attributes(member)
            for name, value in self._attributes(rest[3], own, path).items():
                if own.get(name, ABSENT) is not value:
                    setattr(member, name, value)
        return member

    def _class(self, described: str, current: object) -> Any:
        """Return the class of the program with a name, the one at its address if it has one, or None."""
        name, _, address = described.partition(" @ ")
        found = self._baseline.at(address)
        if isinstance(found, type) and class_name(found) == name and is_own_class(found):
            return found
        return find_class(name, current)


def _bits_of(stream: Any) -> Any:
    return stream._bit_generator if isinstance(stream, np.random.RandomState) else stream.bit_generator


def _place(array: Array) -> tuple[object, ...]:
    return array.__array_interface__["data"], array.shape, array.strides, array.dtype
