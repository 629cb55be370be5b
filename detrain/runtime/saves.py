"""What a run writes down: its journal and its checkpoints, when they are due, and what becomes of errors."""

from __future__ import annotations

import time
from types import FrameType

from detrain.errors import StoreError
from detrain.runtime import report
from detrain.runtime.config import Config
from detrain.runtime.cursor import Cursor
from detrain.runtime.digest import ToArray
from detrain.runtime.journal import Journal
from detrain.runtime.metric import find_metric
from detrain.store import Catalogue, Snapshot
from detrain.store.writer import LARGE_BYTES, Writer


class Saves:
    """Writes the checkpoints of one run, at once or in the background. `journal_bytes`: its journal where it resumes, else None."""

    def __init__(self, config: Config, catalogue: Catalogue, journal_bytes: int | None) -> None:
        self._config, self._catalogue = config, catalogue
        self._writer = Writer()
        path = catalogue.folder / f"{config.program}-r{config.run}.journal"
        if journal_bytes is None:  # left by a run that was killed before its first checkpoint: perhaps of other data
            path.unlink(missing_ok=True)
        self.journal = Journal(path, journal_bytes or 0)
        self.has_checkpoint = journal_bytes is not None
        self.last_at = time.monotonic()
        """When the state was saved or restored last."""
        self._misses_metric = False

    def is_due_by_time(self, now: float) -> bool:
        """Return whether the last save is as long ago as `--every` says in minutes."""
        every = self._config.every
        return every.unit == "minutes" and now - self.last_at >= every.count * 60

    def save(self, cursor: Cursor, snapshot: Snapshot) -> None:
        """Write a checkpoint, a large one in the background."""
        sizes = (array.nbytes for array in (*snapshot.tensors.values(), *snapshot.arrays.values()))
        is_large = sum(sizes) >= LARGE_BYTES
        self.settle()  # or what went wrong with the save before would cost this one
        try:
            self.journal.flush()
            with report.working("saving", cursor):
                self._writer.write(lambda: self._write(cursor, snapshot), is_large=is_large)
        except StoreError as error:
            self._on_error(error)
        self.last_at = time.monotonic()

    def metric(self, frame: FrameType, cursor: Cursor, to_array: ToArray) -> float | None:
        """Return the number by which `--keep-best` chooses."""
        name = self._config.keep_best.removeprefix("max:").removeprefix("min:")
        found = find_metric(name, frame, to_array) if name else None
        if name and found is None and not self._misses_metric:
            self._misses_metric = True
            report.warn(f"--keep-best: the program has no number {name!r} at {cursor}; checkpoints without it are not the best")
        return found

    def drain(self) -> None:
        """Wait for what is being written. Raises what went wrong with it."""
        self._writer.drain()

    def check(self) -> None:
        """Hand on what has gone wrong in the background."""
        if self._writer.has_failed:
            self.settle()

    def settle(self) -> None:
        """Wait for what is being written, and hand on what went wrong with it."""
        try:
            self._writer.drain()
        except StoreError as error:
            self._on_error(error)

    def finish(self) -> None:
        """Have everything written."""
        self.settle()
        try:
            self.journal.flush()
        except StoreError as error:
            self._on_error(error)

    def _write(self, cursor: Cursor, snapshot: Snapshot) -> None:
        config = self._config
        self.journal.sync()
        self._catalogue.save(config.program, config.run, cursor, snapshot)
        self.has_checkpoint = True
        self._catalogue.prune(config.program, config.run, config.keep, config.keep_every, config.keep_best)

    def _on_error(self, error: StoreError) -> None:
        if self._config.stops_on_save_error:
            raise error
        report.warn(f"{error.what}; training goes on without this checkpoint, earlier ones are intact")
