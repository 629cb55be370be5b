"""Digests (xxh3-128) of values, by which batches, tensors and Python values are compared.

A digest covers dtype, shape and every bit, so NaN payloads and negative zeros count. Objects without data that
detrain can read (models, open files) count only by the name of their type.
"""

from __future__ import annotations

import dataclasses
import functools
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import xxhash

from detrain.base.byte_digests import header
from detrain.base.dtypes import dtype_name
from detrain.base.plain_types import ARRAYS, IN_ORDER, SCALARS

Array = npt.NDArray[Any]
ToArray = Callable[[object], Array | None]
"""Returns the value of a tensor or variable, and None for anything else."""

_DOUBLE: Final = struct.Struct("<d")
_MAX_DEPTH: Final = 8
_X87_MANTISSA: Final = 63
_X87_BYTES: Final = 10
"""Of the 12 or 16 bytes of a long double, x86 processors write so many."""
_PLAIN: Final = "?bBhHiIlLqQefdFD"
"""The characters of NumPy's dtypes of numbers whose elements have no gaps."""
_NO_ARRAYS: Final = frozenset({*SCALARS, tuple, list})


def digest_array(array: Array) -> str:
    """Return the digest of an array's dtype, shape and raw bytes (C order)."""
    state = xxhash.xxh3_128()
    _feed_array(state, array)
    return str(state.hexdigest())


def begin_array(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
    """Return a hash fed with dtype and shape. Fed the raw bytes (C order), too, it gives `digest_array`'s digest."""
    return xxhash.xxh3_128(_header(dtype, shape)[0])


def digest_value(value: object, to_array: ToArray) -> str:
    """Return the digest of a nested value. `to_array` turns a framework's tensor into an array, or returns None."""
    return str(_fed_with(value, to_array).hexdigest())


def raw_digest(value: object, to_array: ToArray) -> bytes:
    """Return the digest of a nested value as its 16 bytes."""
    return bytes(_fed_with(value, to_array).digest())


def _fed_with(value: object, to_array: ToArray) -> Any:
    """Return a hash that has been fed a value. Arrays in a tuple or list, the form of most batches, are fed right here:
    after a training step the processor's caches hold none of this code, and each further call costs microseconds.
    """
    state, kind = xxhash.xxh3_128(), type(value)
    if kind is not tuple and kind is not list:
        _feed(state, value, to_array, depth=0)
        return state
    state.update(_beginning(kind, len(value)))  # type: ignore[arg-type]
    for item in value:  # type: ignore[attr-defined]
        kind = type(item)
        array = item if kind is np.ndarray else None if kind in _NO_ARRAYS else to_array(item)
        if array is None:
            _feed(state, item, to_array, depth=1)
        else:
            _feed_array(state, array)
    return state


def size_bytes(value: object, to_array: ToArray) -> int:
    """Return the size in bytes of the arrays in a batch: a tensor, or a tuple of tensors."""
    if type(value) is tuple:
        return sum(size_bytes(item, to_array) for item in value)
    array = value if isinstance(value, np.ndarray) else to_array(value)
    return 0 if array is None else array.nbytes


def raw_bytes(array: Array) -> Any:
    """Return the bytes of an array in C order, without a copy if the array is contiguous and has no gaps: bytes of an
    element that belong to no value are zeros here. In memory they are what was there before.
    """
    if array.itemsize == 0 or array.size == 0:
        return b""
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    used = _used(array.dtype)
    return data if used is None else (data.reshape(-1, len(used)) * used).reshape(-1)


@functools.lru_cache(maxsize=256)
def _used(dtype: np.dtype[Any]) -> Array | None:
    """Return, for each byte of an element, 1 if it belongs to a value, else 0; None if all do."""
    used = np.zeros(dtype.itemsize, np.uint8)
    _mark(dtype, used)
    return None if used.all() else used


def _mark(dtype: np.dtype[Any], used: Array) -> None:
    if dtype.subdtype is not None:
        kind = dtype.subdtype[0]
        if used.size:
            _mark(kind, used[: kind.itemsize])
            used.reshape(-1, kind.itemsize)[:] = used[: kind.itemsize]
    elif dtype.names is not None:
        for name in dtype.names:
            kind, start = dtype.fields[name][:2]  # type: ignore[index]
            _mark(kind, used[start : start + kind.itemsize])
    elif dtype.char in "gG" and np.finfo(np.longdouble).nmant == _X87_MANTISSA:
        size = np.dtype(np.longdouble).itemsize
        used.reshape(-1, size)[:, slice(_X87_BYTES) if dtype.isnative else slice(-_X87_BYTES, None)] = 1
    else:
        used[:] = 1


def _feed_array(state: Any, array: Array) -> None:
    dtype = array.dtype
    beginning, is_plain = _header(dtype, array.shape)
    state.update(beginning)
    if is_plain and array.flags.c_contiguous:
        state.update(array)
    elif dtype.hasobject:
        _feed_all(state, array.reshape(-1).tolist(), lambda _: None, depth=0)
    else:
        state.update(raw_bytes(array))


@functools.lru_cache(maxsize=256)
def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> tuple[bytes, bool]:
    """Return the bytes fed before an array's own, and whether its memory can be fed as it is (plain numbers)."""
    return header(dtype_name(dtype) or dtype.str, shape), dtype.isbuiltin == 1 and dtype.char in _PLAIN


@functools.lru_cache(maxsize=256)
def _beginning(kind: type, length: int) -> bytes:
    return f"{kind.__name__} {length};".encode()


def _feed(state: Any, value: object, to_array: ToArray, depth: int) -> None:
    """Feed a value to a hash. The types of which batches are made come first: this runs for each batch."""
    kind = type(value)
    if (kind is tuple or kind is list) and depth < _MAX_DEPTH:
        state.update(_beginning(kind, len(value)))  # type: ignore[arg-type]
        _feed_all(state, value, to_array, depth + 1)  # type: ignore[arg-type]
    elif kind is np.ndarray:
        _feed_array(state, value)  # type: ignore[arg-type]
    elif kind in SCALARS:
        _feed_scalar(state, value)  # type: ignore[arg-type]
    elif (array := to_array(value)) is not None:
        _feed_array(state, array)
    else:
        _feed_other(state, value, to_array, depth)


def _feed_other(state: Any, value: object, to_array: ToArray, depth: int) -> None:
    if isinstance(value, bool | int | float | complex | str | bytes):
        _feed_scalar(state, value)
    elif isinstance(value, ARRAYS):
        _feed_array(state, np.asarray(value))
    elif depth < _MAX_DEPTH and isinstance(value, IN_ORDER):
        state.update(f"{type(value).__name__} {len(value)};".encode())
        _feed_all(state, value, to_array, depth + 1)
    elif depth < _MAX_DEPTH and isinstance(value, Mapping) and (pairs := _pairs(value)) is not None:
        state.update(f"dict {len(pairs)};".encode())
        for pair in pairs:
            _feed_all(state, pair, to_array, depth + 1)
    elif depth < _MAX_DEPTH and isinstance(value, set | frozenset):
        state.update(f"{type(value).__name__} {len(value)};".encode())
        for digest in sorted(digest_value(item, to_array) for item in value):
            state.update(digest.encode())
    elif depth < _MAX_DEPTH and dataclasses.is_dataclass(value) and not isinstance(value, type):
        state.update(f"{type(value).__qualname__};".encode())
        _feed_all(state, (getattr(value, each.name, None) for each in dataclasses.fields(value)), to_array, depth + 1)
    else:
        state.update(f"opaque {getattr(type(value), '__module__', '')}.{type(value).__qualname__};".encode())


def _pairs(value: Mapping[Any, Any]) -> list[tuple[Any, Any]] | None:
    """Return the items of a mapping, or None if it cannot give them (an HDF5 file that has been closed)."""
    try:
        return list(value.items())
    except Exception:
        return None


def _feed_all(state: Any, values: Iterable[object], to_array: ToArray, depth: int) -> None:
    for value in values:
        _feed(state, value, to_array, depth)


def _feed_scalar(state: Any, value: bool | int | float | complex | str | bytes | None) -> None:
    if isinstance(value, float):
        data = _DOUBLE.pack(value)
    elif isinstance(value, complex):
        data = _DOUBLE.pack(value.real) + _DOUBLE.pack(value.imag)
    elif isinstance(value, int) and not isinstance(value, bool):
        data = f"{int(value):x}".encode()  # decimal digits are limited to 4300
    elif isinstance(value, bytes):
        data = value
    else:
        data = str.encode(value if isinstance(value, str) else repr(value), "utf-8", "surrogatepass")
    state.update(f"{type(value).__name__} {len(data)} ".encode())
    state.update(data)
