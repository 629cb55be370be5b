"""Have the system bring checkpoints into its memory while the program starts: a disk has nothing else to do then.

It is done by a process that is no child of this one, holds nothing of it but those files, and ends with them. Nothing
rests on it: whoever reads a checkpoint checks what it gets.
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
"""The system takes in hand so much of a request at once, and forgets the rest."""


def read_ahead(paths: Sequence[Path]) -> None:
    """Bring files in, where they are large, and there is room for them and for what is read from them."""
    with contextlib.suppress(OSError):
        size = sum(path.stat().st_size for path in paths)
        if size < _LEAST_BYTES or free_bytes() < 3 * size:
            return
        with warnings.catch_warnings(action="ignore"):  # other threads' locks: none is asked for in the child
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
    os.closerange(0, os.sysconf("SC_OPEN_MAX"))  # a lock among them, and pipes whose end somebody waits for
    os.setsid()
    os.nice(10)
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        for offset in range(0, os.fstat(descriptor).st_size, _CHUNK_BYTES):
            os.posix_fadvise(descriptor, offset, _CHUNK_BYTES, os.POSIX_FADV_WILLNEED)
        os.close(descriptor)
