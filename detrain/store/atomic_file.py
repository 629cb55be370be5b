"""The file that HDF5 writes a checkpoint into: one that never fails while HDF5 looks.

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
    """Where a file of detrain's belongs lies a link, a pipe, a folder or a device."""


_LEFTOVER: Final = re.compile(r"\..+\.\d+\.export", re.ASCII | re.DOTALL)


class Sink(io.RawIOBase):
    """A new file for h5py's file-like driver. After a first error it takes everything and writes nothing."""

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
        """Write all of the data at the position, or note the error."""
        done, view = 0, memoryview(data).cast("B")
        try:
            while self.error is None and done < len(view):
                done += os.pwrite(self.descriptor, view[done:], self._position + done)
        except OSError as error:
            self.error = error
        self._position += len(view)
        return len(view)

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Read back what was written; zeros beyond the end."""
        view = memoryview(buffer).cast("B")
        view[:] = self.read_at(self._position, len(view))
        self._position += len(view)
        return len(view)

    def read_at(self, offset: int, count: int) -> bytes:
        """Read back what was written; zeros beyond the end."""
        data = os.pread(self.descriptor, count, offset)
        return data + bytes(count - len(data))

    def truncate(self, size: int | None = None) -> int:
        """Set the length of the file, or note the error."""
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
    """Hand out the sink of a file that takes its place at `path` whole, and durable, or not at all. Raises OSError.

    Temporary name in the same folder, write, fsync, close, rename, fsync of the folder. Links are never followed.
    """
    with _replacing(path, path.with_name(f".{path.name}.{os.getpid()}.tmp")) as sink:
        yield sink


@contextmanager
def exporting(path: Path) -> Iterator[Sink]:
    """Do as `replacing`, and delete what killed exports have left in the folder: temporary files that no process has
    locked.
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
    """Return the descriptor of a new file; it stays locked until it is closed, where the file system knows locks."""
    temporary.unlink(missing_ok=True)  # of a process that was killed and had our number, as in a container
    while True:
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        if not is_locked:
            return descriptor
        with suppress(OSError):
            fcntl.lockf(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return descriptor
        os.close(descriptor)  # another export took it for a leftover, before it was locked


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
    """Have the names of a folder on the disk. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_regular(path: Path, flags: int, *, follows: bool = False) -> int:
    """Open a file and return its descriptor; no link is followed unless asked, and a pipe does not hold us up.

    Raises OSError, NotRegular where the path leads to anything but a file.
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
    """Append a line to a file, behind `first` where there is none yet, or an end of what a crash has torn.

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
    """Return what is in a file, which is a `kind`; nothing if it is not there. Raises StoreError."""
    try:
        # Not `open`, by which the program's own files are followed.
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
