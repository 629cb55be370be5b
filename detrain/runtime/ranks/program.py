"""The place of the program's own thread, as both that thread and the watcher must know it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, NoReturn

from detrain.runtime.ranks.vote import StatePoint

_LOCKED_S: Final = 0.5
"""The watcher waits this long for the program's thread to release the lock: that takes some microseconds, unless a
signal handler of the program hangs there."""


class ProgramThread:
    """The program's thread goes from cut to gate to step. Once frozen, it goes on only to the next of these, and rests.

    Once closed, it publishes no more states, so that those named in a vote stay.
    """

    def __init__(self, steps: int, cuts: int) -> None:
        self._condition = threading.Condition()
        self.steps, self._cuts = steps, cuts
        self.is_frozen = False
        self._is_closed = self._is_parked = self._is_dirty = False
        self.in_step = False

    # The program's thread.

    def cut(self, publish: Callable[[StatePoint], None]) -> None:
        """Publish at a cut; also when frozen, as long as no vote has been cast, because it gives a newer point."""
        with self._condition:
            if not self._is_closed:
                publish(StatePoint(self.steps, self._cuts, "c"))
                self._cuts += 1
        if self.is_frozen:
            self.park()

    def enter(self, publish: Callable[[StatePoint], None], wait: Callable[[int], int | None]) -> int:
        """Publish at the entry of a step, and pass the gate; return the number on which all ranks agreed there."""
        with self._condition:
            if not self.is_frozen:
                publish(StatePoint(self.steps, self._cuts - 1, "d"))
        agreed = None if self.is_frozen else wait(self.steps)
        with self._condition:
            self.in_step = agreed is not None and not self.is_frozen
        if agreed is None or not self.in_step:
            self.park()
        return agreed

    def stepped(self) -> None:
        """Say that the step is done."""
        with self._condition:
            self.steps += 1
            self.in_step = False
            self._condition.notify_all()

    def break_off(self) -> None:
        """Say that an error has ended the program. If that was in a step, the big state is of no use."""
        with self._condition:
            self._is_dirty = self.in_step
            self.in_step = False

    def await_freeze(self, timeout_s: float) -> bool:
        """Return whether the watcher freezes the program within a time."""
        with self._condition:
            return self._condition.wait_for(lambda: self.is_frozen, timeout_s)

    def park(self) -> NoReturn:
        """Rest for good: the watcher ends the process."""
        self.rest()
        while True:
            with suppress(KeyboardInterrupt):
                time.sleep(3600)

    def rest(self) -> None:
        """Say that the program's thread rests for good."""
        with self._condition:
            self._is_parked = True
            self._condition.notify_all()

    # The watcher.

    def freeze(self) -> None:
        """Let the program go no further than its next cut or gate."""
        with self._at_rest():
            self.is_frozen = True

    @property
    def is_parked(self) -> bool:
        """Whether the program's thread has come to rest by itself."""
        return self._is_parked

    def close(self) -> tuple[int, bool]:
        """End all publishing; return the steps done, and whether the big state is that of a step's end. It is not if
        the program's thread does not release the lock, as that thread may yet go on.
        """
        with self._at_rest() as is_at_rest:
            self._is_closed = True
            return self.steps, is_at_rest and not (self.in_step or self._is_dirty)

    @contextmanager
    def _at_rest(self) -> Iterator[bool]:
        is_at_rest = self._condition.acquire(timeout=_LOCKED_S)
        try:
            yield is_at_rest
        finally:
            if is_at_rest:
                self._condition.notify_all()
                self._condition.release()
