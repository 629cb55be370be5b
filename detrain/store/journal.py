"""The journal: an append-only record, beside the checkpoints, of every batch's digest and of random states that bodies
changed.

Each record is `length (uint32) | xxh32 of the payload (uint32) | payload (msgpack)`, little-endian. The first records
after a checkpoint are written at once, so that they survive SIGKILL: a resumed run compares its data with them. Later
ones wait up to a second. A torn tail is recognised and cut off. Kinds of records: `b` the digest of a loaded batch, `r`
the random streams at the head of a batch (only where the body before it drew numbers), `p` the random streams that the
Python code of an iterator's pipeline found at an element (only where other code had drawn since the element before),
`f` the number and digest of an element that a body fetched from an iterator that outlives the body, `v` the version of
the format, at the start (a journal without it is of version 1).

The digests that an earlier run recorded of later batches stay behind the records of a resumed run until it reaches
these batches: if the resumed run is refused at one of them, the next one is refused there, too.
"""

from __future__ import annotations

import bisect
import contextlib
import errno
import itertools
import os
import struct
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import xxhash

from detrain.base.cursor import Address
from detrain.base.errors import CheckpointDamaged, CheckpointTooNew, StoreError
from detrain.store.atomic_file import open_regular, read_regular, sync_folder, way_out

JOURNAL_VERSION: Final = 2

_FRAME: Final = struct.Struct("<II")
_AT_ONCE: Final = 8
_MOST_WAITING: Final = 256
_LONGEST_WAIT_S: Final = 1.0
_monotonic_s: Final = time.monotonic
"""The real clock: the program gets a replaced one, which first looks up its caller."""
_MOST_TO_COME: Final = 4096
"""The most records of an earlier run that are kept in the file behind the new ones."""

_RECORDS: Final[dict[str, Any]] = {
    "v": tuple[str, int],
    "b": tuple[str, int, int, int, bytes],
    "r": tuple[str, int, int, int, dict[str, bytes]],
    "f": tuple[str, int, int, int, int, bytes],
    "p": tuple[str, str, int, dict[str, bytes], list[str]],
}
"""The types of a record's parts, by its kind."""


class Ends(set[int]):
    """The lengths in bytes, 0 among them, at which a journal ends with a whole record: a checkpoint can need a journal
    up to one of these.
    """

    def __init__(self, path: Path) -> None:
        super().__init__({0})
        self._path = path

    @classmethod
    def of(cls, path: Path) -> Ends:
        """Return the ends of a journal; it may be missing. Raises StoreError, CheckpointTooNew, CheckpointDamaged."""
        ends = cls(path)
        ends.update(end for end, _record in _records(path))
        return ends

    def require(self, count: int) -> None:
        """Raise CheckpointDamaged if `count` bytes do not end with a whole record of the journal."""
        if count in self:
            return
        is_there = self._path.is_file()
        found = f"damaged: whole up to byte {max(self)}" if is_there else "gone"
        raise CheckpointDamaged(
            f"journal {str(self._path)!r} is {found}; the checkpoint rests on {count} bytes of it",
            "bring the file back, or start anew with --fresh (the old checkpoints stay)",
        )


class Journal:
    """The journal of one run. Records beyond the resume point are kept in memory, to compare the resumed run with."""

    def __init__(self, path: Path, keep_bytes: int, *, may_differ: bool = False) -> None:
        """Open the journal. The first new record cuts it to `keep_bytes`, its length at the checkpoint: the run repeats
        the rest. Digests recorded after that stay until they have been compared, unless they `may_differ`.

        Raises CheckpointDamaged if records before `keep_bytes` are missing: fast-forward would go on from other random
        states than the first run did.
        """
        self.batches: dict[Address, bytes] = {}
        self.last: Address = (-1, -1, -1)
        """The last batch that an earlier run has recorded."""
        self.ends: dict[int, Address] = {}
        """The last recorded batch of each phase."""
        self.streams: dict[Address, dict[str, bytes]] = {}
        """The random streams at heads of batches: those of the earlier run, also after the cut, and of this run."""
        self.fetched: dict[tuple[int, int, int, int], bytes] = {}
        self.elements: dict[str, dict[int, dict[str, bytes]]] = {}
        """The random streams from which elements before the cut were made, by the iterator's name and their number."""
        self._newest: dict[str, bytes] = {}
        """The streams at the last recorded head of a batch; records of elements leave out those that are the same."""
        self._in_order: list[Address] = []
        self._to_come: deque[tuple[tuple[int, ...], bytes]] = deque()
        """Records of an earlier run whose batches this run has not reached."""
        ends = Ends(path)
        for end, (kind, *address, value) in _records(path):
            ends.add(end)
            if kind == "b":
                self.batches[_address(address)] = value
                self.ends[address[0]] = max(self.ends.get(address[0], self.last), _address(address))
                self.last = max(self.last, _address(address))
            elif kind == "r":
                self.streams[_address(address)] = value
                self._newest |= value if end <= keep_bytes else {}
            elif kind == "f":
                phase, epoch, batch, number = address
                self.fetched[phase, epoch, batch, number] = value
            if kind in ("b", "f") and end > keep_bytes and not may_differ:
                self._to_come.append((tuple(address), _framed([kind, *address, value])))
            if kind == "p" and end <= keep_bytes:
                name, number, states = address
                if number == 0:  # a new iterator has taken this name
                    self.elements[name] = {}
                self.elements.setdefault(name, {})[number] = {**states, **{each: self._newest[each] for each in value}}
        ends.require(keep_bytes)
        self._written_bytes = keep_bytes
        self._waiting: list[list[Any]] = []
        self._at_once, self._written_at = _AT_ONCE, 0.0
        self._path = path
        self._is_named = False
        self._holds_others = True
        """True if records of an earlier run may lie behind those of this one."""
        # A thread writes large checkpoints, and flushes the journal before, while the main thread adds records.
        self._lock = threading.Lock()
        try:
            self._file = open_regular(path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise self._cannot_write(error) from error

    @property
    def size(self) -> int:
        """Length in bytes of the journal, waiting records included."""
        with self._lock:
            return self._written_bytes + len(self._framed())

    def add_batch(self, address: Address, digest: bytes) -> None:
        """Record the digest [16 bytes] of a batch.

        A record that cannot be written waits; the next `flush` or `sync` raises the error.
        """
        if self._to_come:
            self._pass(address)
        self._add(["b", *address, digest])

    def add_fetched(self, address: tuple[int, int, int, int], digest: bytes) -> None:
        """Record, as `add_batch` does, the digest [16 bytes] of an element that a body has fetched. The address ends
        with the element's number in the body.
        """
        self._pass(address)
        self._add(["f", *address, digest])

    def add_streams(self, address: Address, states: dict[str, bytes]) -> None:
        """Record the packed random streams at the head of a batch, as `add_batch` does."""
        self.streams[address] = states
        self._newest |= states
        self._add(["r", *address, states])

    def forget_streams(self, before: Address) -> None:
        """Drop the streams of earlier batches from memory; they stay in the file."""
        self.streams = {address: states for address, states in self.streams.items() if address >= before}
        self._in_order = []

    def add_element(self, name: str, number: int, states: dict[str, bytes]) -> None:
        """Record the packed random streams from which an iterator's element is made, where other code has used them."""
        if self.elements.get(name, {}).get(number) == states:  # a resumed run makes a recorded element again
            return
        as_at_head = [each for each, state in states.items() if self._newest.get(each) == state]
        self._add(["p", name, number, {each: state for each, state in states.items() if each not in as_at_head}, as_at_head])

    def streams_between(self, after: Address | None, upto: Address) -> dict[str, bytes]:
        """Return the newest recorded state of each stream after one batch (None: from the start) and up to another."""
        if len(self._in_order) != len(self.streams):
            self._in_order = sorted(self.streams)
        first = 0 if after is None else bisect.bisect_right(self._in_order, after)
        found: dict[str, bytes] = {}
        for address in self._in_order[first : bisect.bisect_right(self._in_order, upto)]:
            found |= self.streams[address]
        return found

    def flush(self) -> None:
        """Write the waiting records; the next few are written at once again. Raises StoreError."""
        with self._lock:
            self._write()
            self._at_once = _AT_ONCE

    def sync(self) -> None:
        """Flush all records to the disk: a checkpoint that needs them must not outlive them. Raises StoreError."""
        self.flush()
        try:
            os.fsync(self._file)
            if not os.path.samestat(os.fstat(self._file), os.stat(self._path)):
                raise FileNotFoundError(errno.ENOENT, "another file has taken its place")
            if not self._is_named:  # whoever made the file, perhaps a process that ended before its first sync
                sync_folder(self._path.parent)
                self._is_named = True
        except OSError as error:
            raise self._cannot_write(error) from error

    def close(self) -> None:
        """Write the waiting records and close the file. Raises StoreError."""
        self.flush()
        os.close(self._file)

    def _add(self, record: list[Any]) -> None:
        with self._lock:
            self._waiting.append(record)
            if self._at_once > 0:
                self._at_once -= 1
            elif len(self._waiting) < _MOST_WAITING and _monotonic_s() - self._written_at < _LONGEST_WAIT_S:
                return
            with contextlib.suppress(StoreError):  # no checkpoint needs the record yet, nor will before it is written
                self._write()

    def _framed(self) -> bytes:
        """Return the bytes of the waiting records as the file gets them."""
        is_new = self._waiting and not self._written_bytes
        return b"".join(map(_framed, ([["v", JOURNAL_VERSION], *self._waiting] if is_new else self._waiting)))

    def _pass(self, address: tuple[int, ...]) -> None:
        """Drop the earlier run's records up to the address of a batch or element: this run has reached it."""
        while self._to_come and self._to_come[0][0] <= address:
            self._to_come.popleft()

    def _write(self) -> None:
        start, new = self._written_bytes, self._framed()
        try:
            if new:
                # Later records of the earlier run follow: until a batch has proved equal, its first digest must stay.
                data = new + b"".join(framed for _at, framed in itertools.islice(self._to_come, _MOST_TO_COME))
                done = 0
                while done < len(data):  # a disk that fills up takes a part first, and raises at the next write
                    done += os.pwrite(self._file, data[done:], start + done)
                if self._holds_others:
                    os.ftruncate(self._file, start + len(data))
                    self._holds_others = bool(self._to_come)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, start)
            raise self._cannot_write(error) from error
        self._waiting.clear()
        self._written_bytes += len(new)
        self._written_at = _monotonic_s()

    def _cannot_write(self, error: OSError) -> StoreError:
        return StoreError(f"cannot write journal {str(self._path)!r}: {error.strerror or error}", way_out(error))


def read_batches(path: Path, *, in_body: Address | None = None) -> dict[Address, bytes]:
    """Return, by address and in order, the digest of each batch in a journal and of the elements that its body fetched.

    The fetched elements of the batch `in_body` are left out: its body has not run, or not to its end.
    """
    batches: dict[Address, bytes] = {}
    fetched: dict[Address, dict[int, bytes]] = {}
    for _end, (kind, *address, value) in _records(path):
        if kind == "b":
            batches[_address(address)] = value
        elif kind == "f" and _address(address[:3]) != in_body:
            fetched.setdefault(_address(address[:3]), {})[address[3]] = value
    for where, parts in fetched.items():
        batches[where] = xxhash.xxh3_128_digest(b"".join((batches.get(where, b""), *(parts[each] for each in sorted(parts)))))
    return batches


def _framed(record: list[Any]) -> bytes:
    payload = msgspec.msgpack.encode(record)
    return _FRAME.pack(len(payload), xxhash.xxh32_intdigest(payload)) + payload


def _address(numbers: list[int]) -> Address:
    phase, epoch, batch = numbers
    return phase, epoch, batch


def _records(path: Path) -> Iterator[tuple[int, list[Any]]]:
    data = read_regular(path, "journal")
    offset = 0
    while offset + _FRAME.size <= len(data):
        length, checksum = _FRAME.unpack_from(data, offset)
        payload = data[offset + _FRAME.size : offset + _FRAME.size + length]
        if len(payload) != length or xxhash.xxh32_intdigest(payload) != checksum:
            return
        offset += _FRAME.size + length
        try:
            record = msgspec.msgpack.decode(payload)
            msgspec.convert(record, _RECORDS[record[0]])
        except (msgspec.MsgspecError, ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
            raise CheckpointDamaged(
                f"journal {str(path)!r} has a record before byte {offset} that is none",
                "bring the file back, or start anew with --fresh (the old checkpoints stay)",
            ) from error
        if record[0] == "v" and record[1] > JOURNAL_VERSION:
            raise CheckpointTooNew(
                f"journal {str(path)!r} has format {record[1]}; this detrain reads up to {JOURNAL_VERSION}",
                "update detrain, or start anew with --fresh; the file is left as it is",
            )
        yield offset, record
