"""The writing process: it writes large checkpoints out of memory that it shares with the run. Training stops only while
the state is copied once; computing the digests and writing the file use processor time that the steps leave over.

A thread of the run would take this time from the steps: a step of several threads is as slow as the slowest of them.
The process is no child of the run, has a low priority, and ends with the run. It gets the open file and writes the
checkpoint into it. The run names and commits the file: a process that outlives its run leaves no file that counts. If
the process cannot be started, or is killed, the run writes by itself.
"""

from __future__ import annotations

import _thread
import contextlib
import errno
import mmap
import os
import select
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

import msgspec
import numpy as np

from detrain.base.child_processes import start_apart
from detrain.base.digest import Array, raw_bytes
from detrain.base.dtypes import dtype_name, named_dtype
from detrain.base.free_memory import free_bytes
from detrain.store.atomic_file import Sink
from detrain.store.hdf5_writer import write_into
from detrain.store.snapshot import LateArrays, Meta, Snapshot

_LENGTH: Final = struct.Struct("<Q")
_ALIGNMENT: Final = 64
_PART_BYTES: Final = 4 << 20
_MOST_THREADS: Final = 4
_NICENESS: Final = 10
"""Gives a tenth of a processor when the steps use all: with a lower priority, other processes could starve a save on
which the run waits at its end."""
_PAGES_AT_ONCE: Final = 4096
"""NumPy gives Python's lock away for so many elements."""
_MOST_BYTES: Final = 4096
"""Of the answer to an empty order."""
_ROOM: Final = 8
"""The memory is an eighth larger than the state: the next state may be larger."""
_FREE: Final = 0.5
"""The largest share of the free memory that the copy of the state may take."""


class _Listed(msgspec.Struct, frozen=True, array_like=True):
    """An array in the shared memory."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


class _Order(msgspec.Struct, frozen=True, array_like=True):
    """A state that lies in the shared memory."""

    meta: bytes
    """The metadata as JSON: parts of them stay byte for byte as they were."""
    tensors: list[_Listed]
    rng: dict[str, bytes]
    python: bytes
    arrays: list[_Listed]


class _Answer(msgspec.Struct, frozen=True, array_like=True):
    """The digest of a written checkpoint, or the number and text of the OSError that the write raised."""

    digest: str
    errno: int = 0
    error: str = ""


class WritingProcess:
    """The process that writes for a run, from its second large state on, and the memory shared with it."""

    def __init__(self) -> None:
        self._link: socket.socket | None = None
        self._number = -1
        """The descriptor of the shared memory."""
        self._opened: dict[int, os.stat_result] = {}
        """The status of the link's and the memory's files, by descriptor."""
        self._memory: mmap.mmap | None = None
        self._is_coming = False
        """True if memory was asked for and has not come yet."""
        self._brought_in: list[mmap.mmap | None] = []
        """The mapped memory, once each of its pages has been written to; None if it does not come."""
        self._refused = 0
        """The size in bytes of the memory that was asked for in vain, or has not come yet; else 0."""

    def copied(self, snapshot: Snapshot) -> Snapshot | None:
        """Return a snapshot with its arrays copied into the shared memory, so that the process writes it; None if parts
        are still on a device, or the memory is not there yet. Call it in the main thread, while no write is under way.
        """
        arrays = snapshot.arrays
        if isinstance(arrays, LateArrays) and not arrays.are_here:
            return None
        held = [*snapshot.tensors.values(), *arrays.values()]
        if not self._are_ours():
            return None
        if any(dtype_name(array.dtype) is None for array in held):
            return None
        size = sum(map(_room, held))
        self._look()
        if self._memory is None or len(self._memory) < size:
            self._ask(size + size // _ROOM)
            return None
        whole, at = np.frombuffer(self._memory, np.uint8), 0
        copies: list[Array] = []
        parts: list[tuple[Array, Array]] = []
        for array in held:
            if array.nbytes:
                parts += _parts(whole[at : at + array.nbytes], raw_bytes(array))
            copies.append(np.ndarray(array.shape, array.dtype, whole.data, at) if array.nbytes else array)
            at += _room(array)
        _copy(parts)
        tensors = dict(zip(snapshot.tensors, copies, strict=False))
        others = dict(zip(arrays, copies[len(tensors) :], strict=True))
        return replace(snapshot, tensors=tensors, arrays=others, writes=self._write)

    def _ask(self, size: int) -> None:
        """Ask for `size` bytes of memory. The kernel provides them page by page, which takes longer than a copy: the
        process does that, then a thread here, and the run does not wait.
        """
        if self._is_coming or 0 < self._refused <= size or not hasattr(os, "pidfd_open"):
            return
        self._memory, self._refused, self._brought_in = None, size, []
        if self._number >= 0:
            del self._opened[self._number]
            os.close(self._number)
        self._number = os.memfd_create("detrain")
        self._opened[self._number] = os.fstat(self._number)
        with contextlib.suppress(OSError, ValueError, RuntimeError):  # RuntimeError: the system gives no thread
            os.ftruncate(self._number, size)
            if size <= _FREE * free_bytes() and self._send(b"", self._number):
                assert self._link is not None
                _thread.start_new_thread(_bring_in, (self._link, mmap.mmap(self._number, size), self._brought_in))
                self._is_coming = True

    def _look(self) -> None:
        """Take the memory that was asked for, if it has been brought in."""
        if self._brought_in:
            self._memory, self._is_coming = self._brought_in.pop(), False
            self._refused = 0 if self._memory is not None else self._refused

    def close(self) -> None:
        """Let the process end. A later order starts a new one."""
        if self._link is not None and self._are_ours():
            del self._opened[self._link.fileno()]
            self._link.close()
            self._link, self._is_coming = None, False

    def _are_ours(self) -> bool:
        """Return True if the descriptors still belong to the files that were opened here: a program may have closed
        descriptors that are not its own, and opened others. Those are the program's: they are neither used nor closed.
        """
        for number, opened in self._opened.items():
            try:
                if os.path.samestat(os.fstat(number), opened):
                    continue
            except OSError:
                pass
            return False
        return True

    def _write(self, sink: Sink, snapshot: Snapshot) -> str:
        """Have the process write a snapshot that `copied` made, and return its digest. Raises OSError."""
        meta = msgspec.json.encode(snapshot.meta, order="deterministic")
        tensors, at = _listed(snapshot.tensors, 0)
        arrays, _at = _listed(snapshot.arrays, at)
        order = msgspec.msgpack.encode(_Order(meta, tensors, dict(snapshot.rng), snapshot.python, arrays))
        answer = self._answer() if self._send(order, self._number, sink.descriptor) else None
        if answer is None:
            sink.truncate(0)
            return write_into(sink, snapshot)
        if answer.errno:
            raise OSError(answer.errno, answer.error)
        return answer.digest

    def _send(self, order: bytes, *files: int) -> bool:
        """Send an order with the descriptors of the memory and of a file. Return False if the process has gone or
        cannot be started, or the program has closed descriptors that are not its own.
        """
        if not self._are_ours():
            return False
        try:
            if self._link is None:
                self._link, its = socket.socketpair()
                self._opened[self._link.fileno()] = os.fstat(self._link.fileno())
                with its, _this_process() as run:
                    start_apart(__name__, str(its.fileno()), str(run), keeping=[its.fileno(), run], in_session=True)
            # In a program that SIGPIPE ends, a process that is gone would end it. `send_fds` does not pass flags on.
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, np.array(files, np.intc).data)
            self._link.sendmsg([_LENGTH.pack(len(order))], [rights], socket.MSG_NOSIGNAL)
            self._link.sendall(order, socket.MSG_NOSIGNAL)
        except (OSError, RuntimeError, subprocess.CalledProcessError):
            self.close()
            return False
        return True

    def _answer(self) -> _Answer | None:
        """Return the answer to an order; None if the process has gone."""
        assert self._link is not None
        try:
            (length,) = _LENGTH.unpack(_exactly(self._link, _LENGTH.size))
            return msgspec.msgpack.decode(_exactly(self._link, length), type=_Answer)
        except (OSError, EOFError):
            self.close()
            return None


def _parts(to: Array, of: Array) -> list[tuple[Array, Array]]:
    return [(to[at : at + _PART_BYTES], of[at : at + _PART_BYTES]) for at in range(0, len(to), _PART_BYTES)]


def _copy(parts: list[tuple[Array, Array]]) -> None:
    """Copy by several threads: one alone does not use the memory's full speed. The threads are not made by `threading`,
    so that the program does not see them, and have ended when this returns.
    """
    count = min(_MOST_THREADS, len(os.sched_getaffinity(0)))
    shares = [parts[number::count] for number in range(count)]
    left: list[bool] = []

    def act(share: list[tuple[Array, Array]], is_over: _thread.LockType) -> None:
        try:
            for to, of in share:
                to[:] = of
            left.append(True)
        finally:
            is_over.release()

    locks = [_thread.allocate_lock() for _ in shares]
    for share, lock in zip(shares, locks, strict=True):
        lock.acquire()
        if lock is locks[-1] or not share:
            act(share, lock)
        else:
            try:
                _thread.start_new_thread(act, (share, lock))
            except RuntimeError:  # the system gives no thread
                act(share, lock)
    for lock in locks:
        lock.acquire()
    if len(left) != len(shares):
        raise MemoryError("a part of the state could not be copied")


def _bring_in(link: socket.socket, memory: mmap.mmap, done: list[mmap.mmap | None]) -> None:
    """When the process has answered that the memory is there, write to each page of it; then append it to `done`, or
    None if it is not there. The first write to a page is an interrupt that takes five times as long as the copy of a
    page: a cut must not pay for it.
    """
    found = None
    with contextlib.suppress(OSError, struct.error, msgspec.MsgspecError):
        answer = link.recv(_MOST_BYTES)  # at once: the program may close descriptors that are not its own
        if not msgspec.msgpack.decode(answer[_LENGTH.size :], type=_Answer).errno:
            with contextlib.suppress(OSError):  # a system may forbid it
                os.setpriority(os.PRIO_PROCESS, _thread.get_native_id(), os.getpriority(os.PRIO_PROCESS, 0) + _NICENESS)
            pages = np.frombuffer(memory, np.uint8)[:: mmap.PAGESIZE]
            for at in range(0, len(pages), _PAGES_AT_ONCE):
                pages[at : at + _PAGES_AT_ONCE] = 0
            found = memory
    done.append(found)


def _room(array: Array) -> int:
    return -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT


def _listed(arrays: Mapping[str, Array], at: int) -> tuple[list[_Listed], int]:
    """Return the places of arrays that were copied one behind the other from `at` on, and the end of the last one."""
    found = []
    for name, array in arrays.items():
        found.append(_Listed(name, str(dtype_name(array.dtype)), array.shape, at))
        at += _room(array)
    return found, at


@contextlib.contextmanager
def _this_process() -> Iterator[int]:
    """Yield a descriptor that becomes readable when this process ends. Raises OSError."""
    number = os.pidfd_open(os.getpid())
    try:
        yield number
    finally:
        os.close(number)


def _end_with(run: int, link: socket.socket) -> None:
    """End this process, whatever it does, when the run has closed its end of the link, or has ended. Both are watched:
    children of the program may keep that end open.
    """
    ends = select.poll()
    ends.register(run, select.POLLIN)
    ends.register(link, 0)
    ends.poll()
    os._exit(0)


def _exactly(link: socket.socket, length: int) -> bytearray:
    found = bytearray()
    while len(found) < length:
        more = link.recv(min(length - len(found), 1 << 20))
        if not more:
            raise EOFError
        found += more
    return found


def _serve(link: socket.socket) -> None:
    """Carry out the run's orders until it closes the link."""
    while True:
        head, numbers, *_ = socket.recv_fds(link, _LENGTH.size, 2)
        if not head:
            return
        head += _exactly(link, _LENGTH.size - len(head))
        order = _exactly(link, *_LENGTH.unpack(head))
        try:
            answer = _Answer(_carried_out(order, *numbers))
        except OSError as error:
            answer = _Answer("", error.errno or errno.EIO, error.strerror or str(error))
        finally:
            for number in numbers:
                os.close(number)
        reply = msgspec.msgpack.encode(answer)
        link.sendall(_LENGTH.pack(len(reply)) + reply)


def _carried_out(order: bytearray, memory: int, *files: int) -> str:
    """Write the state of an order and return its digest; for an empty order, allocate the memory. Raises OSError."""
    if not order:
        os.posix_fallocate(memory, 0, os.fstat(memory).st_size)
        return ""
    return _written(msgspec.msgpack.decode(order, type=_Order), memory, *files)


def _written(order: _Order, memory: int, file: int) -> str:
    size = os.fstat(memory).st_size
    whole = np.frombuffer(mmap.mmap(memory, size, prot=mmap.PROT_READ), np.uint8) if size else np.empty(0, np.uint8)

    def found(listed: list[_Listed]) -> dict[str, Array]:
        return {each.name: np.ndarray(each.shape, named_dtype(each.dtype), whole.data, each.offset) for each in listed}

    meta = msgspec.json.decode(order.meta, type=Meta)
    snapshot = Snapshot(meta, found(order.tensors), order.rng, order.python, found(order.arrays))
    sink = Sink(file)
    digest = write_into(sink, snapshot)
    os.fsync(file)
    return digest


if __name__ == "__main__":
    os.nice(_NICENESS)
    with contextlib.suppress(EOFError, ConnectionError), socket.socket(fileno=int(sys.argv[1])) as to_run:
        threading.Thread(target=_end_with, args=(int(sys.argv[2]), to_run), daemon=True).start()
        _serve(to_run)
