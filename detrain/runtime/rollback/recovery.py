"""A run's way back after an alarm: to the oldest moment in memory, or, if that is not exact, to a checkpoint."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NoReturn

from detrain.adapters.api import CannotGoBackError
from detrain.base import messages
from detrain.base.config import RESTARTED, Config
from detrain.base.cursor import Address, Cursor
from detrain.base.errors import FaultPersists
from detrain.guard.detector import DEPTH, Guard
from detrain.python.process import children
from detrain.runtime.rollback.ring import Moment, Ring
from detrain.runtime.state.whole_state import WholeState
from detrain.store import Catalogue


class Recovery(Ring):
    """The last moments of a run with a guard; the run goes back at an alarm.

    `write_waiting` writes everything that waits to be written.
    """

    guard: Guard

    def __init__(
        self, guard: Guard, whole: WholeState, config: Config, write_waiting: Callable[[], None], *, on_host: bool
    ) -> None:
        super().__init__(DEPTH if guard.recovers else 0, whole, guard, on_host=on_host)
        self._config, self._catalogue, self._write_waiting = config, Catalogue(Path(config.home)), write_waiting
        self._said: set[str] = set()
        self._cursor, self._batches_done = Cursor(0, 0, 0), 0

    def at_cut(self, cursor: Cursor, batches_done: int, source: object = None, frame: FrameType | None = None) -> Moment | None:
        """Have the guard look.

        On an alarm go back and return the moment to go on from, or start the process again from a checkpoint.
        """
        self._cursor, self._batches_done = cursor, batches_done
        if not self.guard.must_go_back(cursor, batches_done):
            return None
        try:
            if frame is None or source is None:
                raise CannotGoBackError("the loop has been left, or has no wrapper")
            if self.guard.has_tried(batches_done):
                raise CannotGoBackError("the alarm came again, and the step before may lie in the epoch before")
            moment = self.go_back(source, frame)
        except CannotGoBackError as error:
            self.fail(str(error))
        self._put_aside(moment.batches_done)
        steps = batches_done - moment.batches_done
        self.guard.note_way(cursor, batches_done, back_to=Cursor(*moment.address, "load"), steps=steps)
        return moment

    def hold(self, address: Address, batches_done: int, source: object, frame: FrameType) -> None:
        """Hold the moment before a load, and warn of new obstacles to going back."""
        super().hold(address, batches_done, source, frame)
        new = [obstacle for obstacle in self.obstacles if obstacle not in self._said]
        if new:
            self._said.update(new)
            messages.warn(f"no exact way back in memory: {'; '.join(new[:4])}; an alarm goes back to a checkpoint")

    def _put_aside(self, batches_done: int) -> None:
        """Rename this run's checkpoints taken after `batches_done` batches: they may hold the fault."""
        self._write_waiting()
        for name in self._catalogue.put_aside_after(self._config.program, self._config.run, batches_done):
            messages.say(f"{name} may hold the fault: kept aside as {name}.suspect")

    def fail(self, why: str) -> NoReturn:
        """Replace the process by the same command, which resumes from the newest checkpoint before the suspected steps.

        Raises FaultPersists if that has been tried, or if the command is not known.
        """
        self._put_aside(self._batches_done - DEPTH)
        if not self._config.command or self._batches_done <= self.guard.restarted_until:
            raise FaultPersists(
                f"no exact way back in memory: {why}", "run it again: it resumes from a checkpoint before the fault"
            )
        self.guard.note_restart(self._cursor, self._batches_done, why)
        os.environ[RESTARTED] = str(self._config.run)
        children.start_again(self._config.command)
