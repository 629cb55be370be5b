"""Writing checkpoints: small ones at once, large ones in a thread, from a copy, while training goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from detrain.errors import StoreError
from detrain.runtime import report

LARGE_BYTES: Final = 4 << 20
"""States from this size on are copied and written in the background; below, the copy and the thread cost more than the write."""
_LONG_S: Final = 1.0


class Writer:
    """Writes one checkpoint at a time. A save waits for the one before, so that no more than one copy of the state is held."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: StoreError | None = None

    def write(self, act: Callable[[], None], *, is_large: bool) -> None:
        """Have a checkpoint written by `act`. Raises what `act` raises, or what the one before has raised."""
        self.drain()
        if not is_large:
            act()
            return
        self._thread = threading.Thread(target=self._run, args=(act,), name="detrain writer", daemon=True)
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

    def check(self) -> None:
        """Raise what went wrong in the background since the last look."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self, act: Callable[[], None]) -> None:
        try:
            act()
        except StoreError as error:
            self._error = error
