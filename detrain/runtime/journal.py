"""The journal: an append-only record, beside the checkpoints, of every batch's digest and of random states that bodies changed.

Each record is `length (uint32) | xxh32 of the payload (uint32) | payload (msgpack)`, little-endian. The first records after a
checkpoint are written at once, so that they survive SIGKILL: by them a resumed run knows whether its data are the same. Later ones
wait up to a second. A torn tail is recognised and cut off. Record kinds: `b` a batch was loaded and has this digest, `r` the
random streams at the head of this batch (only where the body before it drew numbers).
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import xxhash

from detrain.errors import CheckpointDamaged, StoreError

_FRAME: Final = struct.Struct("<II")
_AT_ONCE: Final = 8
_MOST_WAITING_BYTES: Final = 1 << 14
_LONGEST_WAIT_S: Final = 1.0

Address = tuple[int, int, int]
"""(phase, epoch, batch)."""


class Journal:
    """The journal of one run. Reading keeps what lies beyond the resume point, to compare the re-run with."""

    def __init__(self, path: Path, keep_bytes: int) -> None:
        """Open the journal. With the first new record it is cut to `keep_bytes`: what came after the cut is done again.

        Raises CheckpointDamaged if the records before the cut are not all there: fast-forward would go on from other random
        states than the first run's.
        """
        self.batches: dict[Address, bytes] = {}
        self.streams: dict[Address, dict[str, bytes]] = {}
        """What the earlier run recorded, the part after the cut included."""
        ends = {0}
        for end, (kind, *address, value) in _records(path) if path.exists() else ():
            ends.add(end)
            if kind == "b":
                self.batches[_address(address)] = value
            elif kind == "r":
                self.streams[_address(address)] = value
        if keep_bytes not in ends:
            raise CheckpointDamaged(
                f"journal {str(path)!r} is damaged: whole up to byte {max(ends)}, the checkpoint rests on {keep_bytes} bytes of it",
                "bring the file back, or start anew with --fresh (the old checkpoints stay)",
            )
        self.size = keep_bytes
        """Length in bytes of the journal, records that wait included."""
        self._waiting = bytearray()
        self._at_once, self._written_at = _AT_ONCE, 0.0
        self._path = path
        self._is_cut = False
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise self._cannot_write(error) from error

    def add_batch(self, address: Address, digest: bytes) -> None:
        """Record the digest [16 bytes] of a batch. Raises StoreError; the journal then ends with the record before."""
        self._add(["b", *address, digest])

    def add_streams(self, address: Address, states: dict[str, bytes]) -> None:
        """Record the packed random streams at the head of a batch. Raises StoreError, as `add_batch` does."""
        self.streams[address] = states
        self._add(["r", *address, states])

    def flush(self) -> None:
        """Write the records that wait; those that follow are written at once again. Raises StoreError."""
        self._write()
        self._at_once = _AT_ONCE

    def sync(self) -> None:
        """Have all records on the disk: a checkpoint that rests on them must not outlive them. Raises StoreError."""
        self.flush()
        try:
            os.fsync(self._file)
        except OSError as error:
            raise self._cannot_write(error) from error

    def close(self) -> None:
        """Write what waits and close the file. Raises StoreError."""
        self._write()
        os.close(self._file)

    def _add(self, record: list[Any]) -> None:
        payload = msgspec.msgpack.encode(record)
        self._waiting += _FRAME.pack(len(payload), xxhash.xxh32_intdigest(payload)) + payload
        self.size += _FRAME.size + len(payload)
        if self._at_once > 0:
            self._at_once -= 1
        elif len(self._waiting) < _MOST_WAITING_BYTES and time.monotonic() - self._written_at < _LONGEST_WAIT_S:
            return
        self._write()

    def _write(self) -> None:
        start = self.size - len(self._waiting)
        try:
            if self._waiting and not self._is_cut:  # not before: until a batch has proved equal, the first run's must not be lost
                os.ftruncate(self._file, start)
                self._is_cut = True
            done = 0
            while done < len(self._waiting):  # a disk that fills up takes a part first, and says so only then
                done += os.pwrite(self._file, self._waiting[done:], start + done)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, start)
            self.size = start
            raise self._cannot_write(error) from error
        finally:
            self._waiting.clear()
        self._written_at = time.monotonic()

    def _cannot_write(self, error: OSError) -> StoreError:
        return StoreError(
            f"cannot write journal {str(self._path)!r}: {error.strerror or error}",
            "free space or make the folder writable, or give another with --ckpt DIR",
        )


def read_batches(path: Path) -> dict[Address, bytes]:
    """Return the digest of each batch in a journal, by its address, in order."""
    return {_address(address): value for _end, (kind, *address, value) in _records(path) if kind == "b"}


def _address(numbers: list[int]) -> Address:
    phase, epoch, batch = numbers
    return phase, epoch, batch


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
