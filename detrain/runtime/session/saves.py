"""The files that a run writes: its journal and its checkpoints; when saves are due by time, and the errors of saves."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Final

from detrain.base import messages
from detrain.base.config import SELDOM, Config
from detrain.base.cursor import Cursor
from detrain.base.digest import ToArray
from detrain.base.errors import StoreError
from detrain.base.losses import is_doubtful
from detrain.base.options import Every
from detrain.python.inspect.program_metrics import find_metric
from detrain.store import Catalogue, Snapshot
from detrain.store.background_writer import LARGE_BYTES, Writer
from detrain.store.chronicle import CheckpointSaved, Event, Started, now
from detrain.store.job_home import complete_names
from detrain.store.journal import Journal
from detrain.store.lock import Lock
from detrain.store.writing_process import WritingProcess

_FROM_S: Final = 5.0
"""Checkpoints that took fewer seconds in all are not worth a warning."""
_MUCH: Final = 0.2
"""The share of a run's time that is worth a warning."""
_LITTLE: Final = 0.05
"""The share that the warning advises."""


class Cost:
    """The share of a run's time that its checkpoints take, from the first one on."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._spent_s, self._count = 0.0, 0
        self._is_said = False

    def note(self, began: float, ended: float, every: Every) -> str | None:
        """Note a save's start and end, in seconds of one clock; return a warning, once, if saves take much time."""
        self._began = began if self._began is None else self._began
        self._spent_s, self._count = self._spent_s + ended - began, self._count + 1
        share = self._spent_s / max(ended - self._began, 1e-9)
        if (
            self._is_said
            or self._count < 4
            or self._spent_s < _FROM_S
            or share < _MUCH
            or every.unit == "minutes"
            or every.count >= SELDOM
        ):
            return None
        self._is_said = True
        fewer = Every(math.ceil(share / _LITTLE) * every.count, every.unit)
        each = f"{self._spent_s / self._count:.1f} s"
        return f"checkpoints take {share:.0%} of the time, {each} each: take fewer with --every {fewer} or --every 10min"


class Saves:
    """Writes the checkpoints of one run, at once or in the background.

    `journal_bytes`: the length of its journal at the checkpoint if it resumes, else None.
    """

    def __init__(self, config: Config, catalogue: Catalogue, journal_bytes: int | None) -> None:
        self._config, self._catalogue = config, catalogue
        self.writer = Writer()
        self._process = WritingProcess()
        self._lock = Lock(catalogue.folder, config.program)
        catalogue.manifest(config.program, config.run).require_file()
        path = catalogue.journal(config.program, config.run)
        if journal_bytes is None and path.is_file() and not path.is_symlink():
            path.unlink()  # of a run that was killed before its first checkpoint, perhaps of other data
        self.journal = Journal(path, journal_bytes or 0, may_differ=config.allow_environment)
        self.has_checkpoint = journal_bytes is not None
        self.last_at = time.monotonic()
        """Time of the last save or restore, on the monotonic clock."""
        self._stays = Path(config.stations[-1]).name if config.stations else ""
        """File name of the newest checkpoint without doubtful losses: a resume from it should not be refused."""
        self._misses_metric = False
        since = Path(config.stations[-1]).name if config.stations else ""
        self.note(Started(now(), os.getpid(), os.uname().nodename, since, config.environment))
        self._kept: dict[str, str] = {}
        """Digests of the source files whose text the chronicle already keeps."""
        self._cost = Cost()

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """Time the code inside, for which training waits at a save; warn, once, if saves take much of the run."""
        began = time.monotonic()
        yield
        warning = self._cost.note(began, time.monotonic(), self._config.every)
        if warning is not None:
            messages.warn(warning)

    def note(self, event: Event) -> None:
        """Add an event to the run's chronicle. If that fails, go on: the chronicle is only information."""
        with contextlib.suppress(StoreError):
            self._catalogue.chronicle(self._config.program, self._config.run).add(event)

    def is_due_by_time(self, now: float) -> bool:
        """Return whether the last save is at least `--every` minutes ago."""
        every = self._config.every
        return every.unit == "minutes" and now - self.last_at >= every.count * 60

    def save(
        self,
        cursor: Cursor,
        snapshot: Snapshot,
        sources: Callable[[], Mapping[str, tuple[str, bytes]]] = dict,
        loss: float | None = None,
    ) -> None:
        """Write a checkpoint, a large one in the background.

        `sources` returns the digests and bytes of the program's files, by name; `loss`: the program's own loss value.
        """
        is_large = snapshot.nbytes >= LARGE_BYTES
        self._lock.renew()
        self.finish_writing()  # or an error of the save before would end this one
        try:
            self.journal.flush()
            if snapshot.meta.sources != self._kept:
                with contextlib.suppress(StoreError):  # as in `note`
                    self._catalogue.chronicle(self._config.program, self._config.run).keep_sources(sources())
                    self._kept = snapshot.meta.sources
            with messages.working("saving", cursor):
                snapshot = (self._process.copied(snapshot) if is_large else None) or snapshot
                self.writer.write(lambda: self._write(cursor, snapshot, loss), is_large=is_large)
        except StoreError as error:
            self._on_error(error)
        self.last_at = time.monotonic()

    def metric(self, frame: FrameType, cursor: Cursor, to_array: ToArray) -> float | None:
        """Return the number by which `--keep-best` chooses."""
        name = self._config.keep_best.removeprefix("max:").removeprefix("min:")
        found = find_metric(name, frame, to_array) if name else None
        if name and found is None and not self._misses_metric:
            self._misses_metric = True
            messages.warn(f"--keep-best: the program has no number {name!r} at {cursor}; checkpoints without it are not the best")
        return found

    def drain(self) -> None:
        """Wait for the running write, and raise its error if it failed."""
        self.writer.drain()

    def check(self) -> None:
        """Handle the error of a failed background write, if there is one."""
        if self.writer.has_failed:
            self.finish_writing()

    def finish_writing(self) -> None:
        """Wait for the running write, and handle its error if it failed."""
        try:
            self.writer.drain()
        except StoreError as error:
            self._on_error(error)

    def finish(self) -> None:
        """Wait until everything is written."""
        self.finish_writing()
        self._process.close()
        try:
            self.journal.flush()
        except StoreError as error:
            self._on_error(error)

    def _write(self, cursor: Cursor, snapshot: Snapshot, loss: float | None) -> None:
        config, began = self._config, now()
        self.journal.sync()
        self._catalogue.save(config.program, config.run, cursor, snapshot)
        path = self._catalogue.path(config.program, config.run, cursor)
        done = snapshot.meta.batches_done
        self.note(CheckpointSaved(now(), path.name, path.stat().st_size, round(now() - began, 6), done, loss))
        self.has_checkpoint = True
        if not any(map(is_doubtful, snapshot.meta.not_captured)):
            self._stays = self._catalogue.path(config.program, config.run, cursor).name
        counts = complete_names(Path(config.home), config.ranks.world) if config.ranks is not None else lambda _name: True
        kept = config.keep, config.keep_every or 0, config.keep_best, config.keep_size or 0, config.after_batches
        self._catalogue.prune(config.program, config.run, *kept, counts, self._stays)

    def _on_error(self, error: StoreError) -> None:
        if self._config.on_save_error == "stop":
            raise error
        of_this_run = (self._config.program, self._config.run)
        has_others = any((entry.program, entry.run) == of_this_run for entry in self._catalogue.entries())
        others = "earlier ones are intact" if has_others else "and there is no earlier one in the folder"
        messages.warn(f"{error.what}; training goes on without this checkpoint, {others}")
