"""The writer of checkpoints: it writes small ones at once, and large ones in a thread while training goes on."""

from __future__ import annotations

import _thread
import atexit
import os
import time
from collections.abc import Callable
from typing import Final

from detrain.base import messages

LARGE_BYTES: Final = 4 << 20
"""States of this size or more are written in the background; for smaller ones the thread costs more than the write."""
_LONG_S: Final = 1.0


class Writer:
    """A writer of one checkpoint at a time.

    A save waits for the save before it, so that memory holds at most one past state.
    """

    def __init__(self) -> None:
        self._pid: int | None = None
        """The process with the thread that writes, or wrote last: a child forked meanwhile has no such thread."""
        self._under_way = _thread.allocate_lock()
        """Held while the write that began last is under way."""
        self._error: Exception | None = None
        self.has_failed = False
        """True if a write in the background has failed and `check` has not raised its error yet."""

    def write(self, act: Callable[[], None], *, is_large: bool) -> None:
        """Have `act` write a checkpoint. Raises the error of `act`, or that of the write before it."""
        self.drain()
        if not is_large:
            act()
            return
        if self._pid is None:
            # At exit, h5py removes converters from HDF5 without taking its lock on threads, and so tears a write that
            # is under way. Our handler is registered after h5py's, and so is called before it.
            atexit.register(self._wait)
        under_way, pid = _thread.allocate_lock(), os.getpid()
        under_way.acquire()  # a signal's handler may raise after any call: until here no write has begun
        self._under_way, self._pid = under_way, pid
        try:
            # Not `threading.Thread`: its `start` waits until the thread has begun: 0.3 ms, or 5 to 8 ms where that
            # begins with much Python. And a program that joins all threads of `threading` must not see ours.
            _thread.start_new_thread(self._run, ([act], under_way))
        except (RuntimeError, MemoryError):  # the system gives no thread
            self._under_way = _thread.allocate_lock()
            raise

    def drain(self) -> None:
        """Wait until nothing is being written. Raises StoreError if the last write failed."""
        began = time.monotonic()
        self._wait()
        waited = time.monotonic() - began
        if waited > _LONG_S:
            messages.say(f"waited {waited:.1f} s for the checkpoint before to be written: the disk is slower than the saves")
        self.check()

    def check(self) -> None:
        """Raise the error of a background write since the last check: StoreError, or one by a defect of detrain."""
        error, self._error, self.has_failed = self._error, None, False
        if error is not None:
            raise error

    def _run(self, acts: list[Callable[[], None]], under_way: _thread.LockType) -> None:
        try:
            acts[0]()
        except Exception as error:  # nobody would see it in a thread: the next probe raises it
            self._error, self.has_failed = error, True
        finally:
            # Drop the written state before the release. C++ deletes its tensors, and a thread that still does so when
            # the interpreter ends aborts the process (SIGABRT): after the release the interpreter may end.
            acts.clear()
            under_way.release()

    def _wait(self) -> None:
        if self._pid == os.getpid():
            with self._under_way:
                pass
