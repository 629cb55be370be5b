"""A comparison of two object graphs without the codec: types, every bit, order, and which places hold the same
object.
"""

from __future__ import annotations

import collections
import functools
import random
import struct
import types
from collections.abc import Iterator
from typing import Any

import numpy as np

_PLAIN = (type(None), bool, int, str, bytes, range)


def difference(one: object, other: object) -> str | None:
    """Return the first difference between two graphs, or None."""
    return next(_Comparison().run(one, other), None)


class _Comparison:
    def __init__(self) -> None:
        self._partners: tuple[dict[int, object], dict[int, object]] = ({}, {})
        self._alive: list[object] = []
        self._arrays: list[tuple[str, Any, Any]] = []

    def run(self, one: object, other: object) -> Iterator[str]:
        yield from self._compare(one, other, "value")
        for index, (path, a, b) in enumerate(self._arrays):
            for earlier, c, d in self._arrays[:index]:
                if _distance(a, c) != _distance(b, d):
                    yield f"{path} and {earlier}: {_distance(a, c)} bytes apart against {_distance(b, d)}"

    def _compare(self, one: Any, other: Any, path: str) -> Iterator[str]:
        if type(one) is not type(other):
            yield f"{path}: {type(one)} against {type(other)}"
        elif isinstance(one, float) and type(one) is float:
            if struct.pack("<d", one) != struct.pack("<d", other):
                yield f"{path}: {one!r} against {other!r}"
        elif type(one) in _PLAIN:
            if one != other:
                yield f"{path}: {one!r:.80} against {other!r:.80}"
        elif not self._is_known(one, other):
            yield f"{path}: one object here, two there"
        elif id(one) not in self._partners[0]:
            for table, key, partner in zip(self._partners, (one, other), (other, one), strict=True):
                if not _is_value(one):
                    table[id(key)] = partner
            self._alive += [one, other]
            for name, a, b in _parts(one, other):
                yield from self._compare(a, b, f"{path}{name}")
            if isinstance(one, np.ndarray) and one.nbytes:
                self._arrays.append((path, one, other))

    def _is_known(self, one: object, other: object) -> bool:
        known, back = (table.get(id(key), key) for table, key in zip(self._partners, (one, other), strict=True))
        is_new = id(one) not in self._partners[0] and id(other) not in self._partners[1]
        return is_new or (known is other and back is one)


def _is_value(value: object) -> bool:
    """Return True if only `is` can distinguish two objects of this value."""
    name = type(value).__name__
    return (
        isinstance(value, complex | np.generic | np.dtype | slice)
        or (type(value) is tuple and not value)
        or name in ("method", "builtin_function_or_method")
    )


def _distance(one: Any, other: Any) -> int | None:
    """Return the distance in bytes between the starts of two arrays, or None if they have no memory in common."""
    if not np.may_share_memory(one, other):
        return None
    start, end = (array.__array_interface__["data"][0] for array in (one, other))
    return int(end - start)


def _parts(one: Any, other: Any) -> Iterator[tuple[str, object, object]]:
    """Yield (name, part of one, part of the other) for all parts to compare."""
    parts, others = _describe(one), _describe(other)
    yield ".parts", str(list(parts)), str(list(others))
    for name, value in parts.items():
        yield name, value, others[name]


def _describe(value: Any) -> dict[str, Any]:
    cls = type(value)
    if isinstance(value, np.ndarray | np.generic):
        return _describe_array(np.asarray(value))
    if isinstance(
        value, random.Random | np.random.SeedSequence | np.random.BitGenerator | np.random.RandomState | np.random.Generator
    ):
        return _describe_random(value)
    if isinstance(value, types.FunctionType):
        parts = (value.__closure__ or None, value.__defaults__, value.__kwdefaults__, vars(value).copy())
        return {
            ".code": (value.__code__.co_qualname, value.__code__.co_code, value.__code__.co_firstlineno),
            **dict(zip((".closure", ".defaults", ".kwdefaults", ".attributes"), parts, strict=True)),
        }
    if isinstance(value, types.CellType):
        return {".contents": _contents(value)}
    if isinstance(value, functools.partial):
        return {".func": value.func, ".args": value.args, ".keywords": dict(value.keywords)}
    if isinstance(value, types.MethodType):
        return {".self": value.__self__, ".func": value.__func__}
    if isinstance(value, types.BuiltinMethodType) and not isinstance(value.__self__, types.ModuleType | type):
        return {".self": value.__self__, ".name": value.__name__}
    if isinstance(value, type | types.ModuleType | types.BuiltinFunctionType):
        return {".identity": id(value)}
    if cls.__module__.partition(".")[0] in ("pandas", "scipy"):
        return {}  # the sample's own `see` compares these
    if cls is complex:
        return {".real": value.real, ".imag": value.imag}
    if cls is slice:
        return {".start": value.start, ".stop": value.stop, ".step": value.step}
    if cls.__module__.partition(".")[0] in ("datetime", "decimal", "fractions", "pathlib", "uuid", "zoneinfo"):
        return {".repr": repr(value), ".fold": getattr(value, "fold", None)}
    if hasattr(cls, "__members__"):
        return {".identity": id(value), ".repr": repr(value)}
    return _describe_content(value) | _describe_attributes(value)


def _describe_array(array: Any) -> dict[str, Any]:
    if array.dtype == object:
        return {".shape": array.shape, ".items": array.reshape(-1).tolist() if array.ndim else []}
    if array.dtype.char in "gG":  # its values have padding, which may hold anything
        return {".dtype": str(array.dtype), ".shape": array.shape, ".items": repr(array.tolist())}
    axes = tuple(np.argsort([-abs(step) for step in array.strides], kind="stable")) if min(array.shape, default=1) > 1 else ()
    return {".dtype": str(array.dtype), ".shape": array.shape, ".bytes": array.tobytes(), ".axes": str(axes)}


def _describe_random(value: Any) -> dict[str, Any]:
    if isinstance(value, random.Random):
        return {".state": random.Random.getstate(value)}
    if isinstance(value, np.random.SeedSequence):
        return {".state": str(value.state)}
    if isinstance(value, np.random.Generator):
        return {".bits": value.bit_generator}
    if isinstance(value, np.random.RandomState):
        state = value.get_state(legacy=False)
        return {".bits": state["bit_generator"], ".gauss": state["gauss"], ".state": str(state["state"])}
    return {".state": str(value.state), ".seeds": value.seed_seq}


def _describe_content(value: Any) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if isinstance(value, dict):
        items = list(collections.OrderedDict.items(value) if isinstance(value, collections.OrderedDict) else dict.items(value))
        content = {f"[{index}]{part}": item for index, pair in enumerate(items) for part, item in zip("kv", pair, strict=True)}
    for base in (list, tuple, set, frozenset, collections.deque, bytearray):
        if isinstance(value, base):
            content = {f"[{index}]": item for index, item in enumerate(base.__iter__(value))}
    if isinstance(value, collections.defaultdict):
        content[".factory"] = value.default_factory
    if isinstance(value, collections.deque):
        content[".maxlen"] = value.maxlen
    return content


def _describe_attributes(value: Any) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    for cls in type(value).__mro__:
        names = vars(cls).get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            mangled = f"_{cls.__name__.lstrip('_')}{name}" if name.startswith("__") and not name.endswith("__") else name
            slot = vars(cls).get(mangled)
            if isinstance(slot, types.MemberDescriptorType):
                try:
                    attributes[f".{cls.__name__}.{mangled}"] = slot.__get__(value)
                except AttributeError:
                    attributes[f".{cls.__name__}.{mangled}"] = "unset"
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return attributes
    return attributes | ({".own": "self"} if own is value else {f".{name}": item for name, item in own.items()})


def _contents(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        return "unbound"
