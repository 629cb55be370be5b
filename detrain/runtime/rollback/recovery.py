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
from detrain.runtime.rollback.ranks_together import RanksTogether
from detrain.runtime.rollback.ring import HeldMoment, Ring
from detrain.runtime.state.whole_state import WholeState
from detrain.store import Catalogue

_FINE, _GO_BACK, _STOP = 0, 1, 2
"""What a rank says to the others at a cut; the greatest counts."""


class Recovery(Ring):
    """The last moments of a run with a guard; the run goes back at an alarm.

    `write_waiting` writes everything that waits to be written. `ranks`: in a job of several processes, the others.
    `end_saving` ends the saving just in time, on all ranks.
    """

    guard: Guard

    def __init__(
        self,
        guard: Guard,
        whole: WholeState,
        config: Config,
        write_waiting: Callable[[], None],
        *,
        on_host: bool,
        ranks: RanksTogether | None = None,
        end_saving: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(DEPTH if guard.recovers else 0, whole, guard, on_host=on_host)
        self._config, self._catalogue, self._write_waiting = config, Catalogue(Path(config.home)), write_waiting
        self._ranks, self._end_saving, self._agreed_at = ranks, end_saving, -1
        self._said: set[str] = set()
        self._cursor, self._batches_done = Cursor(0, 0, 0), 0

    def at_cut(self, cursor: Cursor, batches_done: int, source: object = None, frame: FrameType | None = None) -> HeldMoment | None:
        """Have the guard look.

        On an alarm go back and return the moment to go on from, or start the process again from a checkpoint.
        """
        self._cursor, self._batches_done = cursor, batches_done
        if not self._is_alarm(cursor, batches_done):
            self.guard.note_success(cursor, batches_done)
            return None
        moment, why = None, ""
        try:
            if frame is None or source is None:
                raise CannotGoBackError("the loop has been left, or is no `for` loop")
            if self.guard.has_tried(batches_done):
                raise CannotGoBackError("the alarm came again, and the step before may lie in the epoch before")
            moment = self.go_back(source, frame)
        except CannotGoBackError as error:
            why = str(error)
        if self._greatest(_FINE if moment is not None else _GO_BACK) != _FINE or moment is None:
            self.fail(why or "another rank has none")
        self._agreed_at = -1
        self._put_aside(moment.batches_done)
        steps = batches_done - moment.batches_done
        self.guard.note_way(cursor, batches_done, back_to=Cursor(*moment.address, "load"), steps=steps)
        return moment

    def _is_alarm(self, cursor: Cursor, batches_done: int) -> bool:
        """Have the guard look, and agree with the other ranks; return whether the last steps must be run again. Raises
        FaultPersists."""
        try:
            said = _GO_BACK if self.guard.must_go_back(cursor, batches_done) else _FINE
        except FaultPersists:
            self._greatest(_STOP)
            self._end_saving()
            raise
        if self._ranks is None or batches_done == self._agreed_at:
            return said != _FINE
        self._agreed_at = batches_done
        agreed = self._greatest(said)
        if agreed == _STOP:
            self._end_saving()
            raise FaultPersists(
                f"another rank has met its alarm at {cursor} again: no transient fault", "look at what that rank has printed"
            )
        return agreed != _FINE

    def _greatest(self, said: int) -> int:
        return said if self._ranks is None else self._ranks.greatest(said)

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
        self._end_saving()
        if self._ranks is not None or not self._config.command or self._batches_done <= self.guard.restarted_until:
            raise FaultPersists(f"no exact way back in memory: {why}", "run it again: it goes on from before the fault")
        self.guard.note_restart(self._cursor, self._batches_done, why)
        os.environ[RESTARTED] = str(self._config.run)
        children.start_again(self._config.command)
