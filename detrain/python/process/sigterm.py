"""SIGTERM, the request that the run should end: it is answered with a last checkpoint at the next cut.

Processes that the program forks have nothing to save, and die of the signal as usual.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Final

GRACE_S: Final = 20.0
"""How long a run that was told to end goes on to the next cut: job managers kill after 30 seconds."""


def is_awaited() -> bool:
    """Return whether this process answers SIGTERM with a last checkpoint."""
    handler = signal.getsignal(signal.SIGTERM)
    return isinstance(getattr(handler, "__self__", None), Termination)


class Termination:
    """Handles SIGTERM. `is_in_phase` tells whether a cut can be expected; if none can, the process ends at once."""

    def __init__(self, is_in_phase: Callable[[], bool]) -> None:
        self._is_in_phase: Final = is_in_phase
        self.is_requested = False
        """Whether the run should end at the next cut that can have a checkpoint."""
        self._requested_at = 0.0
        self._pid: Final = os.getpid()
        self._masks: Final = threading.local()

    def watch(self) -> None:
        """Install the handler, unless other code has installed one."""
        if signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
            return
        signal.signal(signal.SIGTERM, self._on_signal)
        # Python drops signals that a forked process gets before its setup is done: with our handler SIGTERM would be
        # lost there, where the default would have ended the process. So it has to wait until the default is back.
        os.register_at_fork(before=self._hold, after_in_parent=self._release, after_in_child=self._release_child)

    @property
    def is_overdue(self) -> bool:
        """Whether the run should end at the next cut even without a checkpoint."""
        return self.is_requested and time.monotonic() - self._requested_at > GRACE_S

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        """Note the request. A second signal ends the process at once."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if os.getpid() != self._pid or not self._is_in_phase():  # a fork by C code runs no hook of Python's
            os.kill(os.getpid(), signal.SIGTERM)
            return
        self.is_requested, self._requested_at = True, time.monotonic()
        os.write(2, b"detrain: SIGTERM: ending at the next cut, with a checkpoint; once more ends the program at once\n")

    def _hold(self) -> None:
        self._masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def _release(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._masks.before)

    def _release_child(self) -> None:
        if signal.getsignal(signal.SIGTERM) == self._on_signal:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._release()
