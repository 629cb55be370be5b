"""Digests (xxh3-128) of bytes, by which files and sources are compared. The command needs only these, and no NumPy."""

from __future__ import annotations

import ast
from typing import Any, Final

import xxhash

from detrain.base.compiled_sources import parse

RECORD: Final = "record "
"""Prefix of the name of a record dtype: the scalars of such a dtype have its fields as attributes."""


def digest_bytes(data: bytes | bytearray | memoryview) -> str:
    """Return the xxh3-128 of the bytes as 32 hex digits."""
    return str(xxhash.xxh3_128_hexdigest(data))


def digest_source(source: bytes) -> str:
    """Return the digest of the syntax tree of a source file, so that comments and blank lines do not count; of its
    bytes if it cannot be parsed.
    """
    try:
        return digest_bytes(ast.dump(parse(source)).encode())
    except (SyntaxError, ValueError):
        return digest_bytes(source)


def begin_named(dtype: str, shape: tuple[int, ...]) -> Any:
    """Return a hash fed with the name of a dtype and a shape. Fed the raw bytes (C order) of such an array, too, it
    gives the digest of `digest_array`.
    """
    return xxhash.xxh3_128(header(dtype, shape))


def header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Return the bytes that a digest of an array is fed first: its dtype and shape."""
    return f"array {dtype.removeprefix(RECORD)} {shape}".encode()
