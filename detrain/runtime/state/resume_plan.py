"""The way to the newest checkpoint: the stations ahead, and how the run comes to the next one."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Final

from detrain.base import messages
from detrain.base.config import IS_CHECKED, Config
from detrain.base.cursor import Cursor, Cut
from detrain.base.errors import CheckpointDamaged, DetrainError, Diverged, NotCapturable, StoreError
from detrain.base.losses import is_doubtful, lacking
from detrain.base.progress import Progress, batches
from detrain.python.process import children
from detrain.runtime.state.position import Position
from detrain.store import Catalogue, Entry, Meta, read_meta
from detrain.store.catalogue import cursor_of, parse_name

_SECOND_TRY: Final = "DETRAIN_SECOND_TRY"
_OWN_CHECKPOINTS: Final = (
    "does the program resume by itself, from a checkpoint of its own, or go by what is in a file? Move that away, or start "
    "anew with --fresh"
)


class ResumePlan:
    """The stations ahead. Epochs before one are skipped as a whole; batches before it are loaded, and not executed."""

    def __init__(self, config: Config, metas: Sequence[Meta], position: Position, jumps: Sequence[str] = ()) -> None:
        """`jumps`: checkpoints that become stations when the run comes to the first batch of their epoch."""
        self._position = position
        self._jumps = {place: path for path in map(Path, jumps) if (place := _epoch_of(path)) is not None}
        self._command = () if config.ranks is not None or not config.stations else config.command
        self._checks_as_read = config.checks_as_read
        self._paths = config.stations
        self._is_second_try = os.environ.pop(_SECOND_TRY, "") != ""
        self._stations = [(Path(path), cursor_of(meta)) for path, meta in zip(config.stations, metas, strict=True)]
        self._loops_were = {meta.phase: meta.loop for meta in metas if meta.loop}
        """By phase, the place of the loop in the first run, for phases that have a station."""
        self._sought = {cursor_of(meta) for meta in metas if meta.forward == "" and config.loader != "forward"}
        """Cuts at which loaders are set to their positions."""
        self.loading: Progress | None = None
        """The progress display of the batches that are loaded again."""
        self._pass_until = 0
        """Number of this epoch's first batch whose body runs."""

    @property
    def is_resuming(self) -> bool:
        """Whether a station lies ahead."""
        return bool(self._stations)

    @property
    def passed(self) -> tuple[str, ...]:
        """The checkpoints on the way that the run has passed: their state has been set."""
        return self._paths[: len(self._paths) - len(self._stations)]

    @property
    def is_forwarding(self) -> bool:
        """Whether a station lies ahead in this phase; bodies are skipped then."""
        return bool(self._stations) and self._stations[0][1].phase == self._position.phase

    @property
    def is_last(self) -> bool:
        """Whether the next station is the last one."""
        return len(self._stations) == 1

    @property
    def is_passing(self) -> bool:
        """Whether the batch that has just been loaded lies before the next station; its body is skipped then."""
        return self._position.batch <= self._pass_until

    @property
    def passes_next(self) -> bool:
        """Whether the batch that is about to be loaded lies before the next station and is not the epoch's first."""
        return 0 < self._position.batch < self._pass_until

    def target_epoch(self) -> tuple[int, Cut] | None:
        """Return the epoch (and cut) of the next station, if it lies in this phase."""
        if not self.is_forwarding:
            return None
        cursor = self._stations[0][1]
        return cursor.epoch, cursor.cut

    def require_same_loop(self, frame: FrameType) -> None:
        """Raise Diverged if the phase that begins here is another loop than in the first run."""
        phase, here = self._position.phase, self._position.loop_at
        was = self._loops_were.get(phase, here)
        if was != here:
            raise Diverged(
                f"phase {phase} is the loop at {Path(frame.f_code.co_filename).name}:{frame.f_lineno}; the checkpoint was "
                f"taken in another, of {' '.join(was.split()[:2])}",
                "were other loops given probes since (inst.info)? Take those that it had, or start anew with --fresh",
            )

    def require_passed(self, epochs: int) -> None:
        """Raise Diverged if the epoch loop has run out and a station in it still lies ahead."""
        if self.is_forwarding:
            raise Diverged(
                f"the epoch loop ended after {epochs} epoch{'s' * (epochs != 1)}; the checkpoint was taken at "
                f"{self._stations[0][1]}",
                _OWN_CHECKPOINTS,
            )

    def require_over(self) -> None:
        """Raise Diverged if the program has run to its last line and a station still lies ahead: its work since the
        start is then no part of the run.
        """
        if self._stations:
            raise Diverged(
                f"the program has ended, and has not come to where the checkpoint at {self._stations[0][1]} was taken",
                _OWN_CHECKPOINTS,
            )

    def ahead(self) -> Path | None:
        """Return the next station if this is a second try, which sets its state before its batches are loaded again."""
        return self._stations[0][0] if self._is_second_try and self._awaits_in_epoch() else None

    def _awaits_in_epoch(self) -> bool:
        cursor, position = self._stations[0][1], self._position
        is_here = (cursor.phase, cursor.epoch) == (position.phase, position.epoch)
        return is_here and cursor.is_inside and position.batch <= cursor.batch

    @property
    def may_try_again(self) -> bool:
        """Whether an error of the program would begin a second try."""
        return bool(self._command) and not self._is_second_try and bool(self._stations) and self._awaits_in_epoch()

    def try_again(self, error: BaseException) -> None:
        """Start the program again for a second try, if it failed on its way in the middle of an epoch.

        A generator of the program, or code between the loops of an epoch, may read values that the skipped bodies
        before the cut have set (the meters of a log, a sum).
        """
        if self.may_try_again:
            messages.say(
                f"the program failed as batches were loaded again ({type(error).__name__}: {error}): starting again, with what it "
                "reads set beforehand"
            )
            os.environ[_SECOND_TRY] = "1"
            children.start_again(self._command)

    def go_back_from(self, damage: CheckpointDamaged) -> None:
        """Start the program again if a checkpoint on the way proves damaged and none was checked before. The command
        then reads all of them, and goes on from a whole one, or refuses.

        Either way this process does not go on with a partly restored state: it ends here, or by the error.
        """
        if self._command and self._checks_as_read:
            messages.say(f"{damage.what}: starting again, from what is whole")
            os.environ[IS_CHECKED] = "1"
            children.start_again(self._command)

    def begin_epoch(self) -> None:
        """Note that an epoch begins: none of its batches is known to be passed over."""
        self._pass_until = 0
        self.end_loading()

    def end_loading(self) -> None:
        """End the progress display: no more batches are loaded again."""
        if self.loading is not None:
            self.loading.end()
            self.loading = None

    def aim(self) -> None:
        """Find out how many batches of this epoch are only loaded, or go to the cut if the loader can be set."""
        cursor, position = self._stations[0][1], self._position
        is_here = cursor.epoch == position.epoch and cursor.is_inside
        self._pass_until = cursor.batch if is_here else sys.maxsize
        if is_here and cursor.cut == "load" and position.batch == 0 and cursor in self._sought:
            position.batch = cursor.batch
        else:
            total = cursor.batch if is_here else None
            self.loading = self.loading or Progress("batches loaded again", batches, total)

    def jumps_here(self) -> bool:
        """Return whether the run jumps over this epoch's batches; its first is about to be loaded."""
        position = self._position
        return not self._stations and position.batch == 0 and (position.phase, position.epoch) in self._jumps

    def jump(self) -> Meta:
        """Make the checkpoint behind these batches the next station, and return its metadata."""
        path = self._jumps.pop((self._position.phase, self._position.epoch))
        meta = read_meta(path)
        self._stations.append((path, cursor_of(meta)))
        self._sought.update([cursor_of(meta)] if not meta.forward else [])
        return meta

    def station_at(self, cut: Cut) -> tuple[Path, Cursor] | None:
        """Return the next station, if this cut is it."""
        if not self._stations or self._stations[0][1] != self._position.cursor(cut):
            return None
        return self._stations[0]

    def is_sought(self, cursor: Cursor) -> bool:
        """Return whether loaders are set to their positions at a cut."""
        return cursor in self._sought

    def pass_station(self) -> None:
        """Drop the next station: its state has been set."""
        self._stations.pop(0)
        self._pass_until = 0


def _epoch_of(path: Path) -> tuple[int, int] | None:
    entry = parse_name(path)
    return None if entry is None else (entry.cursor.phase, entry.cursor.epoch)


def way_back(error: DetrainError, config: Config, catalogue: Catalogue, passed: Sequence[str]) -> str:
    """Return, in words, an earlier checkpoint from which a refused resume can go on; empty if there is none.

    If a batch that was loaded again differed, this is the start of that epoch or of an earlier one: the skipped bodies
    may have changed values by which the batch is drawn. It is not the start of the cut's own epoch if its first batch
    differed: that would differ again, as would a batch behind the cut. Otherwise, it is a checkpoint that this run has
    passed (`passed`), or an epoch's start without the losses that make the newest checkpoint doubtful.
    """
    if not isinstance(error, Diverged | NotCapturable) or not error.may_go_back or not config.stations or config.ranks is not None:
        return ""
    target = next((entry for entry in catalogue.entries() if str(entry.path) == config.stations[-1]), None)
    if target is None or not config.command:
        return ""
    aim, at = target.cursor, error.at if isinstance(error, Diverged) else None
    is_again, has_doubts = at is not None and at < aim.address, any(map(is_doubtful, _lost(target)))
    for entry in reversed(catalogue.ways(config.program, config.run)):
        cursor, lost = entry.cursor, _lost(entry)
        if cursor.key() >= aim.key() or lacking(lost, config.allow_lost):
            continue
        if at is not None and is_again:
            here = cursor.address
            is_good = here <= at and not cursor.is_inside and (here != at or here[:2] != (aim.phase, aim.epoch))
        else:
            is_sound = has_doubts and not cursor.is_inside and not any(map(is_doubtful, lost))
            is_good = is_sound or (at is None and str(entry.path) in passed)
        if is_good:
            why = "up to which all batches were equal" if is_again else "which has all that it needs"
            return f", or go back to the checkpoint at {cursor}, {why}: `{_command(config.command, str(cursor))}`"
    return ""


def _lost(entry: Entry) -> tuple[str, ...]:
    """Return the losses of a checkpoint: its whole file if it cannot be read."""
    try:
        return read_meta(entry.path).not_captured
    except StoreError:
        return ("its file",)


def _command(words: tuple[str, ...], cursor: str) -> str:
    first, *rest = words
    if "--from" in rest[:-1]:
        place = rest.index("--from")
        del rest[place : place + 2]
    return shlex.join(["detrain", first, "--from", cursor, *rest])
