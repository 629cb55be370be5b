"""What a run does with an alarm: back to the oldest moment in memory, or, where that is not exact, to a checkpoint."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn

from detrain.base import messages
from detrain.base.config import RESTARTED, Config
from detrain.base.cursor import NOTHING, Address, Cursor
from detrain.base.errors import FaultPersists
from detrain.guard.detector import DEPTH, Guard
from detrain.python.codec.api import Baseline
from detrain.python.outside.open_files import Files
from detrain.python.process import children
from detrain.runtime.rollback.ring import CannotGoBackError, Moment, Ring
from detrain.store import Catalogue


class Recovery:
    """The guard of a run and its ring.

    `baseline` returns what was there before the loop; `write_waiting` writes all that waits.
    """

    def __init__(
        self,
        guard: Guard,
        ring: Ring | None,
        config: Config,
        files: Files,
        baseline: Callable[[], Baseline],
        write_waiting: Callable[[], None],
    ) -> None:
        self._files = files
        self.guard: Final = guard
        self._ring = ring
        self._config = config
        self._catalogue = Catalogue(Path(config.home))
        self._baseline, self._write_waiting = baseline, write_waiting
        self._said: set[str] = set()
        self._cursor, self._batches_done = Cursor(0, 0, 0), 0

    def leave(self) -> None:
        """The batch loop has been left."""
        if self._ring is not None:
            self._ring.clear()

    @property
    def is_again(self) -> bool:
        """Whether steps are being run again."""
        return self._ring is not None and self._ring.is_again

    def at_cut(self, cursor: Cursor, batches_done: int, source: object = None, frame: FrameType | None = None) -> Moment | None:
        """Look.

        On an alarm go back and return the moment to go on from, or start the process again from a checkpoint.
        """
        self._cursor, self._batches_done = cursor, batches_done
        if not self.guard.must_go_back(cursor, batches_done):
            return None
        try:
            if self._ring is None or frame is None or source is None:
                raise CannotGoBackError("the loop has been left, or has no wrapper")
            if self.guard.has_tried(batches_done):
                raise CannotGoBackError("the alarm came again, and the step before may lie in the epoch before")
            moment = self._ring.go_back(source, frame, self._baseline(), self._catalogue.folder)
        except CannotGoBackError as error:
            self._restart(str(error))
        self._put_aside(moment.batches_done)
        self.guard.bounds.go_back(moment.extra)  # type: ignore[arg-type]
        steps = batches_done - moment.batches_done
        self.guard.note_way(cursor, batches_done, back_to=Cursor(*moment.address, "load"), steps=steps)
        return moment

    def hold(self, address: Address, batches_done: int, source: object, frame: FrameType) -> None:
        """Hold the moment before a load."""
        if self._ring is None or source is None:
            return
        self._ring.hold(address, batches_done, source, frame, self._baseline(), self.guard.bounds.mark())
        new = [obstacle for obstacle in self._ring.obstacles if obstacle not in self._said]
        if new:
            self._said.update(new)
            messages.warn(f"no exact way back in memory: {'; '.join(new[:4])}; an alarm goes back to a checkpoint")

    def load(self, frame: FrameType) -> object:
        """Return the batch of a step that is run again, or NOTHING: then the loader is to be asked."""
        if self._ring is None:
            return NOTHING
        try:
            item = self._ring.serve(frame, self._baseline())
        except CannotGoBackError as error:
            self._restart(str(error))
        if item is NOTHING:
            self._ring.begin_load()
        return item

    def end_load(self) -> None:
        """The loader has run out."""
        if self._ring is not None:
            self._ring.end_load()

    def keep(self, item: object, loader: object, frame: FrameType) -> None:
        """Keep what the loader has returned."""
        if self._ring is not None:
            self._ring.keep(item, loader, frame, self._baseline())

    def note_fetched(self, parts: list[Any]) -> None:
        """Keep a batch that a body has fetched itself."""
        if self._ring is not None:
            self._ring.note_fetched(parts)

    def _put_aside(self, batches_done: int) -> None:
        """Rename this run's checkpoints that were taken after so many batches: they may hold the fault."""
        self._write_waiting()
        for name in self._catalogue.put_aside_after(self._config.program, self._config.run, batches_done):
            messages.say(f"{name} may hold the fault: kept aside as {name}.suspect")

    def _restart(self, why: str) -> NoReturn:
        """Replace the process by the same command, which resumes from the newest checkpoint
        before the suspected steps.
        """
        self._put_aside(self._batches_done - DEPTH)
        if not self._config.command or self._batches_done <= self.guard.restarted_until:
            raise FaultPersists(
                f"no exact way back in memory: {why}", "run it again: it resumes from a checkpoint before the fault"
            )
        self.guard.note_restart(self._cursor, self._batches_done, why)
        os.environ[RESTARTED] = str(self._config.run)
        children.start_again(self._config.command)
