"""The checkpoint home: which checkpoints of which program and run lie in a folder, and which of them to keep."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from detrain.errors import StoreError
from detrain.runtime.cursor import Cursor, Cut

_CUTS: Final[dict[str, Cut]] = {"e": "epoch", "l": "load", "b": "batch", "z": "end"}
_LETTERS: Final = {cut: letter for letter, cut in _CUTS.items()}
_NUMBER: Final = r"(?:0|[1-9]\d*)"
_NAME: Final = re.compile(
    rf"(?P<program>.+)-r(?P<run>{_NUMBER})-p(?P<phase>{_NUMBER})-e(?P<epoch>\d{{5,}})-(?P<cut>[elbz])(?P<batch>\d{{6,}})\.h5",
    re.ASCII | re.DOTALL,
)
_LEFTOVER: Final = re.compile(r"\.(?P<name>.+)\.\d+\.tmp", re.ASCII | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Entry:
    """A checkpoint file by its name alone: nothing in it has been read yet."""

    path: Path
    program: str
    run: int
    cursor: Cursor


def parse_name(path: Path) -> Entry | None:
    """Return what a checkpoint's file name says, or None if it is not the name of one."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        return None
    cursor = Cursor(int(match["phase"]), int(match["epoch"]), int(match["batch"]), _CUTS[match["cut"]])
    entry = Entry(path, match["program"], int(match["run"]), cursor)
    # A name with more zeros than we write (e000001) is not ours, and must not be pruned.
    return entry if _name(entry.program, entry.run, cursor) == path.name else None


def _name(program: str, run: int, cursor: Cursor) -> str:
    return f"{program}-r{run}-p{cursor.phase}-e{cursor.epoch:05d}-{_LETTERS[cursor.cut]}{cursor.batch:06d}.h5"


class Catalogue:
    """The checkpoints in one folder. Files that are not ours are never touched."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def create(self) -> None:
        """Make the folder, and make sure that it can be written. Raises StoreError."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder):  # has no name where the system can do that: nothing is left by a kill
                pass
        except OSError as error:
            raise StoreError(
                f"checkpoint home {str(self.folder)!r} cannot be written: {error.strerror or error}",
                "give a writable folder with --ckpt DIR or $CKPT_DIR",
            ) from error

    def entries(self) -> list[Entry]:
        """Return all checkpoints, in the order (program, run, cursor)."""
        found = []
        if self.folder.is_dir():
            for path in self.folder.iterdir():
                entry = parse_name(path)
                if entry is not None:
                    found.append(entry)
        return sorted(found, key=lambda entry: (entry.program, entry.run, entry.cursor.key()))

    def path(self, program: str, run: int, cursor: Cursor) -> Path:
        """Return the file name of a checkpoint, for example `train-r1-p0-e00003-e000000.h5`."""
        return self.folder / _name(program, run, cursor)

    def prune(self, program: str, run: int, keep: int, keep_every: int = 0) -> None:
        """Delete old checkpoints of a run: the newest `keep` stay, with what resuming from them needs.

        With `keep_every`, those at the start of each so manieth epoch, and at the end of a phase, stay too.
        That is, for a checkpoint inside an epoch the one at the start of that epoch, and for a run of several phases the
        newest of each earlier phase.
        """
        mine = [entry for entry in self.entries() if (entry.program, entry.run) == (program, run)]
        kept = mine[max(len(mine) - keep, 0) :]
        if keep_every:
            kept += [e for e in mine if e.cursor.cut == "end" or (e.cursor.cut == "epoch" and e.cursor.epoch % keep_every == 0)]
        needed = {station.path for entry in kept for station in stations(mine, entry)}
        for entry in mine:
            if entry.path not in needed:
                with contextlib.suppress(OSError):
                    entry.path.unlink()

    def remove_leftovers(self, program: str) -> None:
        """Delete the temporary files that a killed save of this program left."""
        for path in self.folder.iterdir():
            match = _LEFTOVER.fullmatch(path.name)
            entry = parse_name(path.with_name(match["name"])) if match else None
            if entry is not None and entry.program == program:
                with contextlib.suppress(OSError):
                    path.unlink()


def stations(entries: Iterable[Entry], target: Entry) -> list[Entry]:
    """Return the checkpoints at which a run that resumes from `target` stops on its way, `target` last.

    A checkpoint inside an epoch rests on the one at the start of its epoch (code between the two runs again, from exact
    state); an earlier phase is finished from its newest checkpoint.
    """
    newest: dict[int, Entry] = {}
    starts: dict[tuple[int, int], Entry] = {}
    for entry in sorted(entries, key=lambda entry: entry.cursor.key()):
        if entry.cursor.key() <= target.cursor.key():
            newest[entry.cursor.phase] = entry
            if entry.cursor.cut == "epoch":
                starts[entry.cursor.phase, entry.cursor.epoch] = entry
    result: list[Entry] = []
    for phase, last in sorted(newest.items()):
        start = starts.get((phase, last.cursor.epoch))
        if last.cursor.cut in ("load", "batch") and start is not None:
            result.append(start)
        result.append(last)
    return result
