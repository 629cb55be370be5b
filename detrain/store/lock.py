"""One writer: while a program runs, no other process runs the same program in the same checkpoint home.

The lock is the kernel's (a POSIX record lock): it dies with its process, however that ends, is kept across `exec`, is
not handed down to children, and works over NFS as far as its lock service does. The file names the holder, only for the
error message.

A process loses such a lock when it opens and closes the file once more, as a program that copies its checkpoints does.
So it is taken again before each save; if another run has taken it meanwhile, this one ends without writing anything.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import time
from pathlib import Path
from typing import Final

import msgspec

from detrain.base import messages
from detrain.base.config import TOGETHER, Ranks
from detrain.base.errors import HomeInUse, StoreError
from detrain.store.atomic_file import open_regular, way_out

_FLOCK: Final = "hhqqi"
"""The kernel's `struct flock` on Linux: kind, base of the start, start, length, process."""


class _LockHolder(msgspec.Struct, frozen=True):
    """The process that holds a lock."""

    pid: int
    host: str
    since: str


def hold(folder: Path, program: str) -> bool:
    """Lock a program's checkpoints in a folder until this process ends, also after it has become the program.

    Raises HomeInUse if another process holds the lock, StoreError if its file cannot be opened. Returns False, with a
    warning, if the file system knows no locks.
    """
    path = folder / f".{program}.lock"
    try:
        descriptor = open_regular(path, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise StoreError(f"cannot open {str(path)!r}: {error.strerror or error}", way_out(error)) from error
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        said = os.pread(descriptor, 4096, 0)
        os.close(descriptor)
        raise _in_use(folder, program, said) from error
    except OSError as error:
        messages.warn(f"{str(folder)!r} knows no locks ({error.strerror or error}): see that no second run writes there")
        return False
    holder = _LockHolder(os.getpid(), socket.gethostname(), time.strftime("%Y-%m-%d %H:%M:%S"))
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, msgspec.json.encode(holder), 0)
    # The process becomes the program, and keeps the lock as long as the descriptor stays open.
    os.set_inheritable(descriptor, True)
    return True


def holder_of(folder: Path, program: str) -> int | None:
    """Return the id of the process that holds a program's lock in a folder; None if no holder is known."""
    try:
        descriptor = open_regular(folder / f".{program}.lock", os.O_RDONLY)
    except OSError:
        return None
    try:
        found = fcntl.fcntl(descriptor, fcntl.F_GETLK, struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    except OSError:
        return None
    finally:
        os.close(descriptor)
    kind, _whence, _start, _length, pid = struct.unpack(_FLOCK, found)
    return None if kind == fcntl.F_UNLCK else pid


class Lock:
    """The lock of a program in a folder, which this process holds."""

    def __init__(self, folder: Path, program: str) -> None:
        self._folder, self._program = folder, program
        self._descriptor: int | None = None

    def renew(self) -> None:
        """Take the lock again. Raises HomeInUse if another process holds it by now."""
        try:
            if self._descriptor is None:
                self._descriptor = open_regular(self._folder / f".{self._program}.lock", os.O_RDWR)
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            assert self._descriptor is not None
            raise _in_use(self._folder, self._program, os.pread(self._descriptor, 4096, 0)) from error
        except OSError:  # the file system knows no locks, as `hold` warned; or the folder is gone, as the save will report
            pass


def _in_use(folder: Path, program: str, said: bytes) -> HomeInUse:
    what = f"{program!r} is running with checkpoints in {str(folder)!r} already: {_shown(said)}"
    launched = None if Ranks.of_environment() else Ranks.launched()
    if launched is None:
        return HomeInUse(what, "wait for it or end it, or give another folder with --ckpt DIR")
    return HomeInUse(
        what,
        f"give each process of {launched[0]} another folder with --ckpt DIR; or, if they train together, {TOGETHER}",
    )


def _shown(said: bytes) -> str:
    try:
        holder = msgspec.json.decode(said, type=_LockHolder)
    except msgspec.DecodeError:
        return "the lock does not say by whom"
    return f"process {holder.pid} on {holder.host}, since {holder.since}"
