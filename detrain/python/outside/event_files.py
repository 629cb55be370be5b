"""Queues of TensorBoard's writers: the `SummaryWriter` of PyTorch, tensorboardX and Lightning puts points into a queue,
and a thread writes them. At a cut the queue must be empty, or points before the cut are lost, or come twice.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from detrain.python.inspect.frames import frames_of_others, outwards

_WRITERS: Final = frozenset(
    {
        ("tensorboard.summary.writer.event_file_writer", "_AsyncWriterThread"),
        ("tensorboardX.event_file_writer", "_EventLoggerThread"),
    }
)
_LONGEST_S: Final = 10.0
MARK: Final = ".tfevents."
"""Part of the names of event files."""


_folders: Final[list[Callable[[], Iterable[str]]]] = []


def follow(folders: Callable[[], Iterable[str]]) -> None:
    """Follow event files that a framework writes without Python's `open`; `folders` returns their folders."""
    _folders.append(folders)


def written_here() -> list[str]:
    """Return the paths of such files that this process writes: their names contain its number."""
    mine = f".{os.getpid()}."
    found = []
    for folder in {os.path.abspath(each) for folders in _folders for each in folders()}:
        with contextlib.suppress(OSError):
            found += [os.path.join(folder, name) for name in os.listdir(folder) if MARK in name and mine in name]
    return found


def flush() -> None:
    """Wait until the queues of all TensorBoard writers are written, and flush their files."""
    for thread in threading.enumerate():
        if (type(thread).__module__, type(thread).__name__) in _WRITERS:
            _flush(thread)


def _flush(thread: Any) -> None:
    waiting, record_writer = getattr(thread, "_queue", None), getattr(thread, "_record_writer", None)
    until = time.monotonic() + _LONGEST_S
    while waiting is not None and not _is_written(waiting, thread) and thread.is_alive() and time.monotonic() < until:
        time.sleep(0.0005)
    if record_writer is not None and hasattr(record_writer, "flush"):
        record_writer.flush()


def _is_written(waiting: Any, thread: threading.Thread) -> bool:
    """Return whether a thread has written all points in its queue."""
    if hasattr(waiting, "unfinished_tasks"):
        return not waiting.unfinished_tasks
    # A multiprocessing queue (tensorboardX): a semaphore counts its items; a thread that polls has written the last.
    if waiting._sem.get_value() < waiting._maxsize:
        return False
    return any(each.f_code.co_name == "_poll" for each in outwards(frames_of_others().get(thread.ident or 0)))
