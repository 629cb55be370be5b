"""Full disks: they are no outcome of a trial, so the campaign stops, loses nothing, and names the full folder."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from detrain.base.errors import StoreError, last_printed

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_SAID: Final = tuple(map(os.strerror, sorted(_NO_ROOM)))
_PROBE: Final = bytes(1 << 16)
_TODO: Final = "make room there and run the campaign again: what is in the ledgers stays"


@contextlib.contextmanager
def told(folder: Path) -> Iterator[None]:
    """Raise StoreError if code inside fails to write for want of room."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        raise StoreError(f"cannot write in {str(folder)!r}: {error.strerror}", _TODO) from error


def require_room(folder: Path, status: int, said: str) -> None:
    """Raise StoreError if a failed process may have lacked room: it says so, or the disk is full now.

    `said`: the text that it wrote to stderr.
    """
    if status == StoreError.exit_code and (printed := last_printed(said)) is not None:
        raise StoreError(*printed)
    if any(text in said for text in _SAID):
        raise StoreError(f"a trial in {str(folder)!r} has failed for want of room", _TODO)
    probe = folder / ".room"
    with told(folder):
        try:
            with probe.open("wb") as file:
                file.write(_PROBE)
                file.flush()
                os.fsync(file.fileno())
        finally:
            probe.unlink(missing_ok=True)
