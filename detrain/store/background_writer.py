"""Writing checkpoints: small ones at once, large ones in a thread, while training goes on."""

from __future__ import annotations

import _thread
import atexit
import os
import time
from collections.abc import Callable
from typing import Final

from detrain.base import messages

LARGE_BYTES: Final = 4 << 20
"""States from this size on are written in the background; below, the thread costs more than the write."""
_LONG_S: Final = 1.0


class Writer:
    """Writes one checkpoint at a time.

    A save waits for the one before, so that no more than one state of the past is held.
    """

    def __init__(self) -> None:
        self._pid: int | None = None
        """The process whose thread writes, or wrote last: a child that is forked meanwhile has no such thread."""
        self._under_way = _thread.allocate_lock()
        """Held while the last write that was begun is under way."""
        self._error: Exception | None = None
        self.has_failed = False
        """Whether something went wrong in the background that `check` has not raised yet."""

    def write(self, act: Callable[[], None], *, is_large: bool) -> None:
        """Have a checkpoint written by `act`. Raises what `act` raises, or what the one before has raised."""
        self.drain()
        if not is_large:
            act()
            return
        if self._pid is None:
            # At its exit h5py takes converters out of HDF5, without the lock by which it keeps threads apart, and a
            # write that is
            # under way is torn. This is registered after h5py's handler, and so is called before it.
            atexit.register(self._wait)
        under_way, pid = _thread.allocate_lock(), os.getpid()
        under_way.acquire()  # a signal's handler may raise behind each call: until here nothing has begun
        self._under_way, self._pid = under_way, pid
        try:
            # Not threading's, which waits until the thread has begun: 0.3 ms, or 5 to 8 ms where that begins with much
            # Python, for
            # it is then the thread's turn. And a program that joins all of threading's threads does not know this one.
            _thread.start_new_thread(self._run, ([act], under_way))
        except (RuntimeError, MemoryError):  # there is no thread to be had
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
        """Raise what went wrong in the background since the last look: StoreError, or what a defect of ours raised."""
        error, self._error, self.has_failed = self._error, None, False
        if error is not None:
            raise error

    def _run(self, acts: list[Callable[[], None]], under_way: _thread.LockType) -> None:
        try:
            acts[0]()
        except Exception as error:  # in a thread nobody would see it: the next probe raises it
            self._error, self.has_failed = error, True
        finally:
            # The state that was written goes first. Its tensors are deleted by C++, and a thread that is there when the
            # interpreter ends, takes the process with it (SIGABRT): behind the release the interpreter may end.
            acts.clear()
            under_way.release()

    def _wait(self) -> None:
        if self._pid == os.getpid():
            with self._under_way:
                pass
