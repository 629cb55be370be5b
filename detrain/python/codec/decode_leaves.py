"""Graph -> Python state, the leaves: arrays, random generators, numbers, dates and the like."""

from __future__ import annotations

import enum
import random
import struct
from typing import Any, Final

import numpy as np

from detrain.base.array_memory import axes_of, memory_of, owner_of
from detrain.base.digest import Array, digest_array
from detrain.base.dtypes import named_dtype
from detrain.python.codec.decode_tensors import array_in_memory
from detrain.python.codec.decoding import Decoding
from detrain.python.codec.state_rules import member_attributes
from detrain.python.inspect.graph import Item, Node
from detrain.python.inspect.names import find_enum, find_type
from detrain.python.inspect.object_graph import ABSENT, BIT_GENERATORS, NANS, shown

_DOUBLE: Final = struct.Struct("<d")


def decode_array(decoding: Decoding, number: int, node: Node, current: Any, path: str) -> Any:
    """Return the array or tensor of a node: the live one where it can be filled or is the same, else a new one."""
    kind = node.kind
    if kind == "same":
        return _decode_same(decoding, node, current, path)
    if kind == "view":
        return _decode_view(decoding, node, current, path)
    if kind == "objects":
        return _decode_objects(decoding, number, node, current, path)
    axes, is_writeable, *more = node.data
    form = more[0] if more else None
    array = decoding.array(node)
    if axes is not None:
        array = array.transpose(np.argsort(axes))
    if node.there:
        now = current if isinstance(current, np.ndarray) else decoding.hooks.tensor(current)
        if now is not None and digest_array(now) != digest_array(array):
            decoding.others.append(f"{shown(path)}: the array is not the one that the first run had (digest {digest_array(array)})")
    if kind == "tensor":
        return current if _is_live(decoding, current, array, form) else decoding.hooks.make_tensor(array, form)
    is_alike = type(current) is np.ndarray and (current.shape, current.dtype) == (array.shape, array.dtype)
    is_alike = is_alike and current.flags.writeable == is_writeable and axes_of(current) == axes
    if is_alike and not is_writeable and digest_array(current) == digest_array(array):
        return current
    # What is a view here and was none would write into an owner that has a state of its own.
    is_free = is_alike and is_writeable and owner_of(current) is current and not decoding.lies_in_tensor(current)
    if is_free and decoding.claim(current, np.ndarray):
        current[...] = array
        return current
    made = np.array(array, copy=True, order="K")
    made.flags.writeable = is_writeable
    return made


def _decode_same(decoding: Decoding, node: Node, current: Any, path: str) -> Any:
    digest, kind, *form = node.data
    found = decoding.sources[digest]
    if form and found:
        return _decode_same_form(decoding, found, form[0], current)
    if kind == "tensor" and found:  # the live one, which has its attributes
        return next((tensor for tensor in found if tensor is current), found[0])
    if not found and isinstance(current, np.ndarray) and digest_array(current) == digest:
        return current
    if not found:
        decoding.miss(path, f"the large array is not the one that the first run had (digest {digest})")
        return current
    chosen = next((array for array in found if array is current), found[0])
    if id(chosen) in decoding.claimed:
        chosen = next((array for array in found if id(array) not in decoding.claimed), ABSENT)
    if chosen is ABSENT:  # two equal arrays of the first run are one here
        return np.array(found[0], copy=True)
    decoding.claimed[id(chosen)] = chosen
    return chosen


def _decode_same_form(decoding: Decoding, found: list[Any], form: list[Item], current: Any) -> Any:
    """Return the live tensor of a value and a form, or another of them: two of the first run do not become one, as a
    computation may take the memory of each.
    """
    alike = [tensor for tensor in found if decoding.hooks.tensor_form(tensor) == form]
    alike.sort(key=lambda tensor: tensor is not current)
    chosen = next((tensor for tensor in alike if id(tensor) not in decoding.claimed), None)
    if chosen is None:
        values = [value for tensor in found if (value := decoding.hooks.tensor(tensor)) is not None]
        return decoding.hooks.make_tensor(values[0], form) if values else ABSENT
    decoding.claimed[id(chosen)] = chosen
    return chosen


class _InTensors:
    """Keeps the memory of tensors for an array, which then has no other array beneath it: as one that `numpy()`
    returns. It is written alike when its tensor is gone.
    """

    def __init__(self, array: Array) -> None:
        self._array = array
        self.__array_interface__ = array.__array_interface__


def _decode_view(decoding: Decoding, node: Node, current: Any, path: str) -> Any:
    (offset, shape, strides, name, is_writeable), (owner_item,) = node.data, node.items
    is_live = type(current) is np.ndarray
    is_of_tensors = decoding.nodes[owner_item[0]].kind == "memory"
    if is_of_tensors:
        owner: Any = array_in_memory(decoding, owner_item[0], path)
    else:
        owner = decoding.decode(owner_item, owner_of(current) if is_live else ABSENT, f"{path}.base")
    flat = memory_of(owner) if isinstance(owner, np.ndarray) else None
    if flat is None:
        return ABSENT
    if flat.dtype != object:
        made: Array = np.ndarray(tuple(shape), named_dtype(name), flat.view(np.uint8), offset, tuple(strides))
        if is_of_tensors and made.dtype.isnative and made.dtype.isbuiltin == 1:
            alone = np.asarray(_InTensors(made))
            made = alone if alone.strides == made.strides else made  # NumPy sets that of an axis of length one anew
    elif any(number % flat.itemsize for number in (offset, *strides)):
        raise ValueError(
            f"{shown(path)} is a view from {offset} by {strides}; expected multiples of {flat.itemsize}, whole objects"
        )
    else:
        made = np.ndarray(tuple(shape), flat.dtype, flat, offset, tuple(strides))
    if not is_writeable:
        made.flags.writeable = False
    is_at = is_live and (owner_of(current) is owner or is_of_tensors)
    if is_at and _place(current) == _place(made) and decoding.claim(current, np.ndarray):  # two views stay two
        return current
    return made


def _decode_objects(decoding: Decoding, number: int, node: Node, current: Any, path: str) -> Any:
    shape, items = node.data, node.items
    is_live = isinstance(current, np.ndarray) and current.dtype == object and list(current.shape) == shape
    is_live = is_live and owner_of(current) is current and current.flags.writeable and decoding.claim(current, np.ndarray)
    target: Any = current if is_live else np.empty(shape, object)
    decoding.made[number] = target
    values = decoding.items(items, target.reshape(-1).tolist() if is_live else [], path)
    for place, value in zip(np.ndindex(*shape), values, strict=True):
        target[place] = value
    return target


def _is_live(decoding: Decoding, current: Any, array: Array, form: list[Item] | None) -> bool:
    """Return whether the live tensor has an array's value; what has been set on it is gone then, as on a new one."""
    now = decoding.hooks.tensor(current)
    if now is None or (now.shape, now.dtype) != (array.shape, array.dtype) or digest_array(now) != digest_array(array):
        return False
    if decoding.hooks.tensor_form(current) != form or not decoding.claim(current, type(current)):
        return False
    getattr(current, "__dict__", {}).clear()
    return True


def decode_rng(decoding: Decoding, node: Node, current: Any, path: str) -> Any:
    """Return a random generator at the place where it was, the live one if there is one."""
    kind = node.kind
    if kind == "random":
        twister = current if decoding.claim(current, random.Random) else random.Random()
        set_stream(decoding, node, twister, path)
        return twister
    if kind == "bits":
        return _decode_bits(decoding, node, current, path)
    if kind == "seeds":
        return _decode_seeds(decoding, node, current, path)
    cls: Any = np.random.RandomState if kind == "RandomState" else np.random.Generator
    is_live = decoding.claim(current, cls)
    inner = _bits_of(current) if is_live else ABSENT
    bits = decoding.decode(node.items[0], inner, f"{path}.bit_generator")
    target = current if is_live and bits is inner else cls(bits)
    _set_gauss(decoding, node, target)
    return target


def set_stream(decoding: Decoding, node: Node, stream: Any, path: str) -> None:
    """Bring a generator to its place, past the methods of a class that derives from a generator's."""
    if node.kind == "random":
        random.Random.setstate(stream, (3, tuple(decoding.array(node).tolist()), node.data))
    elif decoding.decode(node.items[0], _bits_of(stream), f"{path}.bit_generator") is not _bits_of(stream):
        decoding.miss(path, "it draws from another bit generator")
    else:
        _set_gauss(decoding, node, stream)


def _set_gauss(decoding: Decoding, node: Node, stream: Any) -> None:
    if node.kind == "RandomState":
        state = np.random.RandomState.get_state(stream, legacy=False)
        np.random.RandomState.set_state(stream, {**state, "has_gauss": node.data[0], "gauss": node.data[1]})


def _decode_bits(decoding: Decoding, node: Node, current: Any, path: str) -> Any:
    name, (state_item, seeds_item) = node.data, node.items
    cls = getattr(np.random, name if name in BIT_GENERATORS else "PCG64")
    is_live = decoding.claim(current, cls)
    seeds: Any = decoding.decode(seeds_item, getattr(current, "seed_seq", ABSENT) if is_live else ABSENT, f"{path}.seed_seq")
    bits = current if is_live else cls(seeds if isinstance(seeds, np.random.SeedSequence) else None)
    state = decoding.decode(state_item, ABSENT, path)
    if isinstance(seeds, np.random.SeedSequence) and bits.seed_seq is not seeds:
        bits.__setstate__((state, seeds))  # there is no other way to give a live generator other seeds
    bits.state = state
    return bits


def _decode_seeds(decoding: Decoding, node: Node, current: Any, path: str) -> Any:
    entropy, spawn_key, pool_size, spawned = (decoding.decode(item, ABSENT, path) for item in node.items)
    made = np.random.SeedSequence(entropy, spawn_key=spawn_key, pool_size=pool_size, n_children_spawned=spawned)  # type: ignore[arg-type]
    if decoding.claim(current, np.random.SeedSequence) and current.n_children_spawned <= made.n_children_spawned:
        one, other = ({**seeds.state, "n_children_spawned": 0} for seeds in (current, made))
        if repr(one) == repr(other):
            current.spawn(made.n_children_spawned - current.n_children_spawned)
            return current
    return made


def decode_value(decoding: Decoding, node: Node, current: Any, path: str) -> Any:
    """Return a value without parts that others could hold: a number, a date, an enumeration's member and the like."""
    kind, data = node.kind, node.data
    if kind == "int":
        return int(data, 16)
    if kind == "str":
        return data.decode("utf-8", "surrogatepass")
    if kind == "nan":
        is_live = type(current) is float and _DOUBLE.pack(current) == _DOUBLE.pack(data[0])
        return NANS.get(data[1], current if is_live else data[0])
    if kind == "npscalar":  # of format 3
        return decoding.array(node)[()]
    if kind == "enum":
        return _decode_enum(decoding, node, current, path)
    if kind == "namedtuple":
        cls: Any = decoding.class_named(data, current)
        values = decoding.items(node.items, list(current) if type(current) is cls else [], path)
        if cls is None or not issubclass(cls, tuple):
            decoding.miss(path, f"class {data!r} is not there")
            return current
        return tuple.__new__(cls, values)
    if kind == "texts":
        texts = np.empty(len(data[1]), object)
        texts[:] = data[1]
        return decoding.hooks.make_tensor(texts.reshape(data[0]))
    if kind == "type":
        return find_type(data) or ABSENT
    raise ValueError(f"unknown kind of node {kind!r}")


def _decode_enum(decoding: Decoding, node: Node, current: Any, path: str) -> Any:
    (described, name), (bits,) = node.data, node.items
    cls = find_enum(described.partition(" @ ")[0], current) or decoding.class_named(described, ABSENT)
    if cls is not None and issubclass(cls, enum.Flag) and bits is not None:
        member = cls(decoding.decode(bits, ABSENT, path))
    else:
        member = cls.__members__.get(name) if cls is not None else None
    if member is None:
        decoding.miss(path, f"there is no {name!r} in the enumeration {described!r}")
        return current
    own = member_attributes(member)
    for attribute, value in decoding.attributes(node.named, own, path).items() if node.named else ():
        if own.get(attribute, ABSENT) is not value:
            setattr(member, attribute, value)
    return member


def _bits_of(stream: Any) -> Any:
    return stream._bit_generator if isinstance(stream, np.random.RandomState) else stream.bit_generator


def _place(array: Array) -> tuple[object, ...]:
    return array.__array_interface__["data"], array.shape, array.strides, array.dtype
