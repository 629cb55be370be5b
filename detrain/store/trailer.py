"""The end of a checkpoint file: the places of its arrays, and a digest of all bytes that belong to no array.

detrain reads by the trailer alone and never has HDF5 parse a file: HDF5 (seen in 1.14) writes over its own memory when
certain bits of a file's structure are wrong. So a flipped bit is found, wherever it is, before any code acts on it.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Iterable
from typing import Final

import msgspec
import xxhash

from detrain.base.errors import CheckpointDamaged, CheckpointTooNew

FORMAT_VERSION: Final = 4
_OLDEST: Final = 2
MAGIC: Final = "detrain checkpoint"
_END: Final = struct.Struct("<QI20s16s")
"""The last bytes in every version: length of the trailer, version, magic, digest of the trailer up to here."""
_FIXED: Final = struct.Struct("<16s16sQ")
_CHUNK_BYTES: Final = 1 << 20

ReadAt = Callable[[int, int], bytes]
"""A function of an offset and a count that returns that many bytes from there."""


class ListedArray(msgspec.Struct, frozen=True, omit_defaults=True):
    """One array's entry in the manifest. `key` is the full name of a tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    digest: str
    key: str = ""

    def size_bytes(self) -> int:
        """Return the size of the array in bytes. Raises ValueError if no array can have its shape or dtype."""
        if any(length < 0 for length in self.shape):
            raise ValueError(f"shape {self.shape} is none")
        return math.prod(self.shape) * _item_bytes(self.dtype)


_NUMBERS: Final = re.compile(r"[<|](?:b(?=1)|[iu](?=[1248]$)|f(?=[248]$)|c(?=8$|16$))(\d+)")
"""The names of the usual dtypes: their sizes are known without NumPy."""


def _item_bytes(dtype: str) -> int:
    """Return the size of an element in bytes. Raises ValueError if `dtype` does not name a dtype."""
    if (usual := _NUMBERS.fullmatch(dtype)) is not None:
        return int(usual[1])
    from detrain.base.dtypes import named_dtype

    return named_dtype(dtype).itemsize


class Extent(msgspec.Struct, frozen=True):
    """The place of an array's bytes in the file; an array without bytes lies at 0."""

    offset: int
    size_bytes: int


class Trailer(msgspec.Struct, frozen=True):
    """A trailer. `offsets` has one number for each array, in the order of the manifest, and the manifest's own last."""

    offsets: tuple[int, ...]
    rest: bytes
    """xxh3-128 of the bytes before the trailer that belong to no array."""
    manifest_digest: str
    manifest_bytes: int

    def pack(self) -> bytes:
        """Return the trailer's bytes."""
        body = struct.pack(f"<{len(self.offsets)}Q", *self.offsets)
        body += _FIXED.pack(self.rest, bytes.fromhex(self.manifest_digest), self.manifest_bytes)
        body += _END.pack(len(body) + _END.size, FORMAT_VERSION, MAGIC.encode(), b"")[:-16]
        return body + xxhash.xxh3_128_digest(body)

    @property
    def size_bytes(self) -> int:
        """Length of the packed trailer."""
        return 8 * len(self.offsets) + _FIXED.size + _END.size


def read_trailer(read_at: ReadAt, file_bytes: int) -> Trailer:
    """Read the trailer of a file of `file_bytes` bytes.

    Raises CheckpointDamaged or CheckpointTooNew; the caller puts the file's name before the error's text.
    """
    if file_bytes < _END.size:
        raise CheckpointDamaged("is not a whole checkpoint of detrain: it has no end")
    length, version, magic, digest = _END.unpack(read_at(file_bytes - _END.size, _END.size))
    if magic.rstrip(b"\0") != MAGIC.encode() or not _END.size <= length <= file_bytes:
        raise CheckpointDamaged("is not a whole checkpoint of detrain: it does not end as one")
    packed = read_at(file_bytes - length, length)
    if xxhash.xxh3_128_digest(packed[:-16]) != digest:
        raise CheckpointDamaged("is damaged: its trailer has another digest than it was written with")
    if version > FORMAT_VERSION:
        raise CheckpointTooNew(f"has format {version}; this detrain reads up to {FORMAT_VERSION}")
    numbers = len(packed) - _FIXED.size - _END.size
    if version < _OLDEST or numbers < 8 or numbers % 8:
        raise CheckpointDamaged(f"has format {version}, of which there are no files")
    rest, manifest_digest, manifest_bytes = _FIXED.unpack_from(packed, numbers)
    return Trailer(struct.unpack_from(f"<{numbers // 8}Q", packed), rest, manifest_digest.hex(), manifest_bytes)


def digest_of_rest(read_at: ReadAt, extents: Iterable[Extent], end: int) -> bytes:
    """Return the xxh3-128 of the bytes up to `end` that lie in no extent.

    Raises ValueError if extents overlap or pass the end.
    """
    state, position = xxhash.xxh3_128(), 0
    for extent in sorted((each for each in extents if each.size_bytes), key=lambda each: each.offset):
        if not position <= extent.offset <= end - extent.size_bytes:
            raise ValueError(f"an array lies at {extent.offset}, where there is no room for it")
        _feed(state, read_at, position, extent.offset)
        position = extent.offset + extent.size_bytes
    _feed(state, read_at, position, end)
    return bytes(state.digest())


def _feed(state: xxhash.xxh3_128, read_at: ReadAt, start: int, end: int) -> None:
    for offset in range(start, end, _CHUNK_BYTES):
        state.update(read_at(offset, min(_CHUNK_BYTES, end - offset)))
