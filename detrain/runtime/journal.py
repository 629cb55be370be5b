"""The journal: an append-only record, beside the checkpoints, of every batch's digest and of random states that bodies changed.

Each record is `length (uint32) | xxh32 of the payload (uint32) | payload (msgpack)`, little-endian. A record is one write call,
so it survives SIGKILL; a torn tail is recognised and cut off. Record kinds: `b` a batch was loaded and has this digest, `r` the
random streams at the head of this batch (only where the body before it drew numbers).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import xxhash

_FRAME: Final = struct.Struct("<II")

Address = tuple[int, int, int]
"""(phase, epoch, batch)."""


class Journal:
    """The journal of one run. Reading keeps what lies beyond the resume point, to compare the re-run with."""

    def __init__(self, path: Path, keep_bytes: int) -> None:
        """Open the journal. With the first new record it is cut to `keep_bytes`: what came after the cut is done again."""
        self.batches: dict[Address, bytes] = {}
        self.streams: dict[Address, dict[str, bytes]] = {}
        """What the earlier run recorded, the part after the cut included."""
        if path.exists():
            for _offset, (kind, *address, value) in _records(path):
                target: dict[Address, Any] = self.batches if kind == "b" else self.streams
                target[tuple(address)] = value
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self.size = min(keep_bytes, os.fstat(self._file).st_size)
        self._is_cut = False

    def add_batch(self, address: Address, digest: bytes) -> None:
        """Record the digest [16 bytes] of a batch."""
        self._write(["b", *address, digest])

    def add_streams(self, address: Address, states: dict[str, bytes]) -> None:
        """Record the packed random streams at the head of a batch."""
        self.streams[address] = states
        self._write(["r", *address, states])

    def _write(self, record: list[Any]) -> None:
        if not self._is_cut:  # not before: until a batch has proved equal, what the first run recorded must not be lost
            os.ftruncate(self._file, self.size)
            os.lseek(self._file, self.size, os.SEEK_SET)
            self._is_cut = True
        payload = msgspec.msgpack.encode(record)
        self.size += os.write(self._file, _FRAME.pack(len(payload), xxhash.xxh32_intdigest(payload)) + payload)


def _records(path: Path) -> Iterator[tuple[int, list[Any]]]:
    data = path.read_bytes()
    offset = 0
    while offset + _FRAME.size <= len(data):
        length, checksum = _FRAME.unpack_from(data, offset)
        payload = data[offset + _FRAME.size : offset + _FRAME.size + length]
        if len(payload) != length or xxhash.xxh32_intdigest(payload) != checksum:
            return
        offset += _FRAME.size + length
        yield offset, msgspec.msgpack.decode(payload)
