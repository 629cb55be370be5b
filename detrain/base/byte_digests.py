"""Digests (xxh3-128) of bytes: what files and sources are compared by. The command does with these, without NumPy."""

from __future__ import annotations

import ast
from typing import Any, Final

import xxhash

from detrain.base.compiled_sources import parse

RECORD: Final = "record "
"""Before the fields of records, in the name of a dtype, whose scalars have these for attributes."""


def digest_bytes(data: bytes | bytearray | memoryview) -> str:
    """Return the xxh3-128 of the bytes as 32 hex digits."""
    return str(xxhash.xxh3_128_hexdigest(data))


def digest_source(source: bytes) -> str:
    """Return the digest of what Python sees of a source file: its syntax tree, so that comments and blank lines do not
    count.
    """
    try:
        return digest_bytes(ast.dump(parse(source)).encode())
    except (SyntaxError, ValueError):
        return digest_bytes(source)


def begin_named(dtype: str, shape: tuple[int, ...]) -> Any:
    """Return a hash that has taken the name of a dtype and a shape: fed with the raw bytes (C order) of an array of
    those, it is that of `digest_array`.
    """
    return xxhash.xxh3_128(header(dtype, shape))


def header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Return what the digest of an array begins with."""
    return f"array {dtype.removeprefix(RECORD)} {shape}".encode()
