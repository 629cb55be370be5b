"""Digests (xxh3-128) of values: what a batch, a tensor or a source file is compared by.

A digest covers dtype, shape and every bit, so NaN payloads and negative zeros count. Objects that hold no data that detrain
can read (models, open files) count by their type's name alone.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

Array = npt.NDArray[Any]


def digest_bytes(data: bytes | bytearray | memoryview) -> str:
    """Return the xxh3-128 of the bytes as 32 hex digits."""
    return str(xxhash.xxh3_128_hexdigest(data))


def digest_array(array: Array) -> str:
    """Return the digest of dtype, shape and raw bytes (C order) of an array."""
    state = xxhash.xxh3_128()
    _feed_array(state, array)
    return str(state.hexdigest())


def digest_value(value: object, to_array: Callable[[object], Array | None]) -> str:
    """Return the digest of a nested value. `to_array` turns a framework's tensor into an array, or returns None."""
    state = xxhash.xxh3_128()
    _feed(state, value, to_array, depth=0)
    return str(state.hexdigest())


def digest_source(source: bytes) -> str:
    """Return the digest of what Python sees of a source file: its syntax tree, so that comments and blank lines do not count."""
    try:
        return digest_bytes(ast.dump(ast.parse(source)).encode())
    except (SyntaxError, ValueError):
        return digest_bytes(source)


def raw_bytes(array: Array) -> Any:
    """Return the bytes of an array in C order, without a copy where it is contiguous."""
    flat = np.ascontiguousarray(array)
    return flat.view(np.uint8).reshape(-1) if flat.ndim else flat.tobytes()


def _feed_array(state: Any, array: Array) -> None:
    state.update(f"array {array.dtype.str} {array.shape}".encode())
    if array.dtype.hasobject:
        state.update(repr(array.tolist()).encode())
    else:
        state.update(raw_bytes(array))


def _feed(state: Any, value: object, to_array: Callable[[object], Array | None], depth: int) -> None:
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        text = value.hex() if isinstance(value, float) else repr(value)
        state.update(f"{type(value).__name__} {text};".encode("utf-8", "surrogatepass"))
        return
    if isinstance(value, np.ndarray | np.generic):
        _feed_array(state, np.asarray(value))
        return
    if depth < 8 and isinstance(value, list | tuple):
        state.update(f"{type(value).__name__} {len(value)};".encode())
        for item in value:
            _feed(state, item, to_array, depth + 1)
        return
    if depth < 8 and isinstance(value, Mapping):
        state.update(f"dict {len(value)};".encode())
        for key, item in value.items():
            _feed(state, key, to_array, depth + 1)
            _feed(state, item, to_array, depth + 1)
        return
    array = to_array(value)
    if array is not None:
        _feed_array(state, array)
    else:
        state.update(f"opaque {type(value).__module__}.{type(value).__qualname__};".encode())
