"""Read-ahead: the system brings checkpoints into its memory while the program starts and the disk is idle.

A process that is no child of this one asks for that: it holds only those files, and ends after the last. No result
depends on it: the reader of a checkpoint checks the bytes that it gets.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from detrain.base.free_memory import free_bytes

_LEAST_BYTES: Final = 32 << 20
_CHUNK_BYTES: Final = 1 << 20
"""The system reads at most this much of one request ahead, and drops the rest."""


def read_ahead(paths: Sequence[Path]) -> None:
    """Bring large files into memory, if there is room for them and for the values read from them."""
    with contextlib.suppress(OSError):
        size = sum(path.stat().st_size for path in paths)
        if size < _LEAST_BYTES or free_bytes() < 3 * size:
            return
        with warnings.catch_warnings(action="ignore"):  # it warns of other threads' locks: the child takes none
            child = os.fork()
        if child:
            os.waitpid(child, 0)
            return
        try:
            _bring_in(paths)
        finally:
            os._exit(0)


def _bring_in(paths: Sequence[Path]) -> None:
    if os.fork():
        return
    os.closerange(0, os.sysconf("SC_OPEN_MAX"))  # among them a lock, and pipes on whose end another process waits
    os.setsid()
    os.nice(10)
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        for offset in range(0, os.fstat(descriptor).st_size, _CHUNK_BYTES):
            os.posix_fadvise(descriptor, offset, _CHUNK_BYTES, os.POSIX_FADV_WILLNEED)
        os.close(descriptor)
