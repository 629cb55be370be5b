"""The world outside of the program's process, as the program reads and changes it: clock, entropy, files."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from detrain.base import messages
from detrain.base.config import Config
from detrain.base.cursor import Cursor
from detrain.python.outside.change_log import Changes
from detrain.python.outside.clock_and_entropy import Outside, Readings
from detrain.python.outside.fs_answers import Answers
from detrain.python.outside.open_files import Files
from detrain.python.outside.rewritten_files import Contents
from detrain.python.process import pending_callbacks, pool_jobs
from detrain.store import Catalogue, Meta
from detrain.store.catalogue import cursor_of


class World:
    """The outside world, watched from before the program starts. `place` returns the program's cursor in a loop."""

    def __init__(
        self,
        config: Config,
        files: Files,
        catalogue: Catalogue,
        metas: Sequence[Meta],
        known: Readings,
        place: Callable[[], Cursor | None],
        *,
        is_restart: bool,
    ) -> None:
        """`known`: readings of an earlier run that this run gets again. `is_restart`: the process was only replaced."""
        last = metas[-1] if metas else None
        log = catalogue.folder / f"{config.program}-r{config.run}.changes"
        at = cursor_of(last) if last is not None else None
        self.changes = Changes(log, at, is_fresh=config.fresh and not is_restart)
        self.files = files
        made = last.folders if last is not None else ()
        kept = [meta.files for meta in metas]
        self.files.watch(kept, made, self.changes, catalogue.folder, config.program, is_new=last is None)
        heard = last.outside if last is not None else known
        self._hears_beginning = self.changes.heard is not None
        """Whether the run begins again, and gets the readings that an earlier process got until it trained."""
        if self.changes.heard is not None:
            heard = self.changes.heard
            if not is_restart:
                messages.say("cut off before its first checkpoint, it begins anew, and hears of clock and files what it heard then")
        # Each wraps the same functions as the one before, from outside: the caller shows which code asks.
        self.outside = Outside(heard, place)
        self.outside.watch()
        self.contents = Contents(self.files, self.changes, place)
        self.contents.watch()
        self.answers = Answers(self.outside, self.files, self.changes)
        self.answers.watch()
        pending_callbacks.watch()
        pool_jobs.watch()

    def enter(self, at: float | None = None) -> None:
        """Note that the program enters its first training loop, or, without probes yet, entered it at time `at`."""
        if at is None and self._hears_beginning:
            self.outside.forget_rest(self.answers.asked)
            self._hears_beginning = False
        self.outside.enter(at)
        if at is None:
            self.answers.enter()
        self.changes.begin(self.outside.readings)
        self.files.enter()

    def cut(self, cursor: Cursor) -> None:
        """Note that a checkpoint is taken."""
        self.changes.cut(cursor)
        self.files.begin_cut()

    def readings(self) -> Readings:
        """Return the readings of clock, entropy and files outside of the program's loops, by kind, in order."""
        return {kind: list(values) for kind, values in self.outside.readings.items()}
