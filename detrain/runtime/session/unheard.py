"""What code around bodies prints while batches are loaded again: nothing, since the first run has printed it.

By `sys.stdout`, and by handlers of `logging` that write to standard output or to stderr. What goes to stderr otherwise
is heard: progress bars.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
from collections.abc import Iterator
from typing import Any

from detrain.python.inspect.progress import is_standard


class _Unheard(io.TextIOBase):
    """A standard stream that this process does not write to; those that are forked meanwhile do."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._process = stream, os.getpid()

    def write(self, text: str) -> int:
        return len(text) if os.getpid() == self._process else int(self._stream.write(text))

    def flush(self) -> None:
        self._stream.flush()

    def fileno(self) -> int:
        return int(self._stream.fileno())

    def isatty(self) -> bool:
        return bool(self._stream.isatty())


@contextlib.contextmanager
def nothing_printed() -> Iterator[None]:
    """Leave out what is printed inside."""
    process, handle, streams = os.getpid(), logging.Handler.handle, (sys.stdout, sys.stderr)

    def handle_unheard(handler: logging.Handler, record: logging.LogRecord) -> bool | logging.LogRecord:
        """Ask the handler's filters, which may count, and format nothing."""
        stream = getattr(handler, "stream", None)
        if stream is not None and os.getpid() == process and (stream in streams or is_standard(stream)):
            return handler.filter(record)
        return handle(handler, record)

    logging.Handler.handle = handle_unheard  # type: ignore[assignment, method-assign]
    try:
        with contextlib.redirect_stdout(_Unheard(sys.stdout)):
            yield
    finally:
        logging.Handler.handle = handle  # type: ignore[method-assign]
