"""The file that HDF5 writes a checkpoint into: it shows HDF5 no error.

HDF5 (seen in 1.14) ends the process with a segmentation fault when a write fails while it closes a file, so a full disk
would kill the run. Here errors are kept until HDF5 is done, and raised then.
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from detrain.base.errors import StoreError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer


class NotRegular(OSError):
    """A link, a pipe, a folder or a device lies where a file of detrain belongs."""


_LEFTOVER: Final = re.compile(r"\..+\.\d+\.export", re.ASCII | re.DOTALL)


class Sink(io.RawIOBase):
    """A new file for h5py's file-like driver. After a first error it accepts all data and writes none."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self.descriptor = descriptor
        self._position = 0
        self.error: OSError | None = None

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to an offset from the start or the end."""
        self._position = offset + (os.fstat(self.descriptor).st_size if whence == os.SEEK_END else 0)
        return self._position

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def write(self, data: ReadableBuffer) -> int:
        """Write all of the data at the position, or keep the error."""
        done, view = 0, memoryview(data).cast("B")
        try:
            while self.error is None and done < len(view):
                done += os.pwrite(self.descriptor, view[done:], self._position + done)
        except OSError as error:
            self.error = error
        self._position += len(view)
        return len(view)

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Fill a buffer with the bytes at the position, and with zeros beyond the end of the file."""
        view = memoryview(buffer).cast("B")
        view[:] = self.read_at(self._position, len(view))
        self._position += len(view)
        return len(view)

    def read_at(self, offset: int, count: int) -> bytes:
        """Return the bytes at an offset, and zeros beyond the end of the file."""
        data = os.pread(self.descriptor, count, offset)
        return data + bytes(count - len(data))

    def truncate(self, size: int | None = None) -> int:
        """Set the length of the file, or keep the error."""
        length = self._position if size is None else size
        try:
            if self.error is None:
                os.ftruncate(self.descriptor, length)
        except OSError as error:
            self.error = error
        return length

    def flush(self) -> None:
        """Nothing is buffered here."""


@contextmanager
def replacing(path: Path) -> Iterator[Sink]:
    """Yield the sink of a new file. The file then appears at `path` whole and durable, or not at all. Raises OSError.

    Steps: temporary name in the same folder, write, fsync, close, rename, fsync of the folder. No link is followed.
    """
    with _replacing(path, path.with_name(f".{path.name}.{os.getpid()}.tmp")) as sink:
        yield sink


@contextmanager
def exporting(path: Path) -> Iterator[Sink]:
    """Do as `replacing`, and delete the temporary files that killed exports have left in the folder: those that no
    process has locked.
    """
    for left in path.parent.glob(".*.export") if path.parent.is_dir() else ():
        if _LEFTOVER.fullmatch(left.name):
            with suppress(OSError):
                _delete_unlocked(left)
    with _replacing(path, path.with_name(f".{path.name}.{os.getpid()}.export"), is_locked=True) as sink:
        yield sink


def _delete_unlocked(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
    finally:
        os.close(descriptor)


def _made(temporary: Path, *, is_locked: bool) -> int:
    """Return the descriptor of a new file. With `is_locked`, it is locked until closed, where the system has locks."""
    temporary.unlink(missing_ok=True)  # left by a killed process that had our number, as in a container
    while True:
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        if not is_locked:
            return descriptor
        with suppress(OSError):
            fcntl.lockf(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return descriptor
        os.close(descriptor)  # another export took the file for a leftover and deleted it before it was locked


@contextmanager
def _replacing(path: Path, temporary: Path, *, is_locked: bool = False) -> Iterator[Sink]:
    try:
        descriptor = _made(temporary, is_locked=is_locked)
        try:
            sink = Sink(descriptor)
            yield sink
            if sink.error is not None:
                raise sink.error
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
        sync_folder(path.parent)
    finally:
        with suppress(OSError):
            temporary.unlink()


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_regular(path: Path, flags: int, *, follows: bool = False) -> int:
    """Open a file and return its descriptor. A link is followed only with `follows`; a pipe does not make this wait.

    Raises OSError; NotRegular where the path leads to anything but a file.
    """
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follows else os.O_NOFOLLOW), 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotRegular(errno.ELOOP, "it is a symbolic link, which is not followed") from error
        if error.errno in (errno.EISDIR, errno.ENXIO):
            raise NotRegular(error.errno, "it is no file") from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotRegular(errno.EINVAL, "it is no file")
    return descriptor


def append_line(path: Path, line: bytes, first: bytes = b"", *, is_flushed: bool = False) -> None:
    """Append a line to a file. An empty or new file gets `first` before it; a line torn by a crash is ended first.

    Raises OSError.
    """
    descriptor = open_regular(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
    try:
        size = os.fstat(descriptor).st_size
        is_torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        left = (b"\n" if is_torn else b"" if size else first) + line
        while left:
            left = left[os.write(descriptor, left) :]
        if is_flushed:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_regular(path: Path, kind: str) -> bytes:
    """Return the bytes of a file, and none if it is not there. `kind` names it in an error. Raises StoreError."""
    try:
        # Not `open`: detrain watches it for the program's own files.
        with io.FileIO(open_regular(path, os.O_RDONLY, follows=True)) as file:
            return file.readall()
    except FileNotFoundError:
        return b""
    except OSError as error:
        todo = way_out(error) if isinstance(error, NotRegular) else "make it readable"
        raise StoreError(f"cannot read {kind} {str(path)!r}: {error.strerror or error}", todo) from error


def way_out(error: OSError) -> str:
    """Return what to do about a file in the checkpoint home that cannot be written."""
    if isinstance(error, NotRegular):
        return "put it out of the way: detrain has not made it; or give another folder with --ckpt DIR"
    return "free space or make the folder writable, or give another with --ckpt DIR"
