"""What the program hears from outside of its process, and what it leaves there: clock, entropy, files."""

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
    """Watched from before the program starts. `place` returns where in a loop the program is."""

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
        """`known` is what a run heard that this one shall hear again;

        `is_restart`: the process has only been replaced.
        """
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
        """Whether the run begins again, and hears what an earlier process heard until it trained."""
        if self.changes.heard is not None:
            heard = self.changes.heard
            if not is_restart:
                messages.say("cut off before its first checkpoint, it begins anew, and hears of clock and files what it heard then")
        # Each stands in for the same functions as the one before, around it: who asks that is seen from its caller.
        self.outside = Outside(heard, place)
        self.outside.watch()
        self.contents = Contents(self.files, self.changes, place)
        self.contents.watch()
        self.answers = Answers(self.outside, self.files, self.changes)
        self.answers.watch()
        pending_callbacks.watch()
        pool_jobs.watch()

    def enter(self, at: float | None = None) -> None:
        """The program enters its first training loop, or has done so (`at`) where there are no probes yet."""
        if at is None and self._hears_beginning:
            self.outside.forget_rest(self.answers.asked)
            self._hears_beginning = False
        self.outside.enter(at)
        if at is None:
            self.answers.enter()
        self.changes.begin(self.outside.readings)
        self.files.enter()

    def cut(self, cursor: Cursor) -> None:
        """A checkpoint is taken."""
        self.changes.cut(cursor)
        self.files.begin_cut()

    def readings(self) -> Readings:
        """Return what the program has heard outside of its loops, by kind, in order."""
        return {kind: list(values) for kind, values in self.outside.readings.items()}
