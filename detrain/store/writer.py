"""Writing checkpoints: small ones at once, large ones in a thread, from a copy, while training goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from detrain.runtime import report
from detrain.runtime.digest import Array

LARGE_BYTES: Final = 4 << 20
"""States from this size on are copied and written in the background; below, the copy and the thread cost more than the write."""
_LONG_S: Final = 1.0


class Writer:
    """Writes one checkpoint at a time. A save waits for the one before, so that no more than one copy of the state is held."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._copies: dict[str, Array] = {}

    def copy(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Return copies of arrays, for `write`, once nothing is being written any more. Training stands still for so long.

        They are made in the memory of the last copies: new memory costs the kernel two to three times as much as the copy.
        """
        self.drain()
        kept, self._copies = self._copies, {}
        for key, array in arrays.items():
            copy = kept.pop(key, None)
            if copy is None or copy.shape != array.shape or copy.dtype != array.dtype:
                copy = np.empty(array.shape, array.dtype)
            np.copyto(copy, array)
            self._copies[key] = copy
        return dict(self._copies)

    def write(self, act: Callable[[], None], *, is_large: bool) -> None:
        """Have a checkpoint written by `act`. Raises what `act` raises, or what the one before has raised."""
        self.drain()
        if not is_large:
            act()
            return
        # No daemon: Python waits for it before it calls what is registered for the exit. There h5py takes converters out of HDF5,
        # without the lock by which it keeps threads apart, and a write that is under way is torn.
        self._thread = threading.Thread(target=self._run, args=(act,), name="detrain writer")
        self._thread.start()

    def drain(self) -> None:
        """Wait until nothing is being written. Raises StoreError if the last write failed."""
        if self._thread is not None:
            began = time.monotonic()
            self._thread.join()
            self._thread = None
            waited = time.monotonic() - began
            if waited > _LONG_S:
                report.say(f"waited {waited:.1f} s for the checkpoint before to be written: the disk is slower than the saves")
        self.check()

    @property
    def has_failed(self) -> bool:
        """Whether something went wrong in the background that `check` has not raised yet."""
        return self._error is not None

    def check(self) -> None:
        """Raise what went wrong in the background since the last look: StoreError, or what a defect of ours raised."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:  # in a thread nobody would see it: the next probe raises it
            self._error = error
