"""Replays: stretches of a run that run again with statements added since, several at a time, each in its own folder."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

from detrain.base.cursor import Address, Cursor
from detrain.base.errors import StoreError, UsageError
from detrain.campaign.engine.api import Engine, TrialLease
from detrain.moments.additions_since import Added
from detrain.python.process.environment import for_runs_of_ours, settings_here
from detrain.runtime.observers.verify_hooks import VerifyPlan
from detrain.store import Entry
from detrain.store.catalogue import parse_name
from detrain.store.journal import read_batches
from detrain.verify.verification import outside_of_run
from detrain.verify.work_folder import WorkFolder

_IN_FOLDER: Final = 'cd "$1" && exec >"$2" 2>"$3" && shift 3 && exec "$@"'
"""A shell command: runs the command after its arguments in a folder, with stdout and stderr in two files."""


@dataclass(frozen=True)
class Stretch:
    """A part of a run: from one checkpoint, or the start, to another, or the end."""

    since: Entry | None
    end: Cursor | None
    cuts: tuple[Cursor, ...]
    """The cuts at which the state is saved for comparison: also both ends, except the program's start and end."""
    kept: int | None = None
    """The number of additions in the program; None: all."""
    last: Address | None = None
    """The last batch that is run; None: the run's last."""
    jumps: tuple[Entry, ...] = ()
    """Checkpoints after the batches of epochs: the replay jumps to them and does not run the bodies before."""


def key_of(cursor: Cursor) -> str:
    """Return the name of a cut in notes and plans."""
    return f"{cursor} {cursor.cut}"


@dataclass
class Replay:
    """A stretch that has been run again, with its output and files."""

    stretch: Stretch
    folder: Path
    work: Path = Path()
    """The copy of the current folder in which it ran; it is deleted afterwards."""
    status: int = 0
    notes: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The bytes written to stdout and to stderr so far, by event (`saved`, `begun`, `resumed`) and cut."""
    digests: dict[str, dict[str, str]] = field(default_factory=dict)
    """The digests of all variables, by key, at the ends of phases and of the program."""

    @property
    def home(self) -> Path:
        """The folder of its checkpoints."""
        return self.folder / "ckpt"

    @cached_property
    def out(self) -> bytes:
        """The bytes that it wrote to stdout."""
        return (self.folder / "stdout").read_bytes()

    @cached_property
    def err(self) -> bytes:
        """The bytes that it wrote to stderr."""
        return (self.folder / "stderr").read_bytes()

    @cached_property
    def batches(self) -> dict[Address, bytes]:
        """The digests of its batches, by address."""
        return {at: digest for path in self.home.glob("*.journal") for at, digest in read_batches(path).items()}

    @cached_property
    def states(self) -> dict[str, Path]:
        """The checkpoints that it has taken itself, by cut."""
        entries = [entry for entry in map(parse_name, self.home.iterdir()) if entry is not None]
        return {key_of(entry.cursor): entry.path for entry in entries if f"saved at {key_of(entry.cursor)}" in self.notes}

    def place(self, cursor: Cursor) -> tuple[int, int] | None:
        """Return the offsets in stdout and stderr at a cut; None if the replay did not reach it."""
        known = (self.notes.get(f"{what} at {key_of(cursor)}") for what in ("resumed", "begun", "saved"))
        return next((place for place in known if place is not None), None)


@dataclass(frozen=True)
class _Commands:
    """The commands that an engine's workers run, by lease."""

    folder: Path
    known: dict[str, list[str]] = field(default_factory=dict)

    def command(self, lease: TrialLease, _shard: str) -> list[str]:
        """Return the command of a stretch."""
        return self.known[lease.identity]

    def log(self, lease: TrialLease) -> Path:
        """Return the file for output before a stretch begins."""
        return self.folder / f"{lease.identity}.log"

    def waits(self, _lease: TrialLease) -> bool:
        """Return whether the worker only waits: it never does."""
        return False


class Replays:
    """A runner of stretches of one run."""

    def __init__(self, added: Added, folder: Path, engine: Engine) -> None:
        """Start the `engine`. All its machines see the temporary `folder`, which gets all files of the replays."""
        self._added, self._folder, self._engine, self._count = added, folder, engine, 0
        self._commands = _Commands(folder)
        engine.start(self._commands)
        self._outside = outside_of_run(added.run.home)
        self._began_s = min(entry.path.stat().st_mtime for entry in added.run.entries) - 1
        self.source = Path.cwd()
        self.is_inside = any(entry.cursor.is_inside for entry in added.run.entries)
        """True if checkpoints are also taken inside epochs: those at epochs' starts then store states differently."""

    def run(self, stretches: Sequence[Stretch]) -> list[Replay]:
        """Run stretches, and return their replays in the same order.

        Raises UsageError if the current folder is too large to be copied, StoreError if a worker does not see the copy.
        """
        done: list[Replay] = []
        running: dict[str, Replay] = {}
        for stretch in stretches:
            while len(running) >= self._engine.slots:
                self._take(running)
            replay, command = self._prepared(stretch)
            identity = replay.folder.name
            self._commands.known[identity] = command
            running[identity] = replay
            done.append(replay)
            self._engine.submit(TrialLease(identity, ()))
        while running:
            self._take(running)
        for replay in done:
            self._read_notes(replay)
        return done

    def _take(self, running: dict[str, Replay]) -> None:
        """Wait a little, and take ended replays out of `running`. Raises StoreError as `run` does."""
        for ended in self._engine.events():
            replay = running.pop(ended.lease.identity)
            replay.status = ended.status
            if not (replay.folder / "stderr").is_file():
                raise StoreError(
                    f"a worker could not begin in {str(replay.folder)!r}: {ended.said or f'it ended with status {ended.status}'}",
                    "set TMPDIR to a folder that all machines see",
                )
            shutil.rmtree(replay.folder / "work", ignore_errors=True)

    def shown(self, replay: Replay, text: bytes) -> bytes:
        """Return a text with the path of the copied folder replaced by that of the user's folder."""
        return text.replace(str(replay.work).encode(), str(self.source).encode())

    def _prepared(self, stretch: Stretch) -> tuple[Replay, list[str]]:
        """Make the folder in which a stretch runs; return the replay and its command."""
        run, source = self._added.run, self.source
        self._count += 1
        replay = Replay(stretch, self._folder / str(self._count))
        (replay.folder / "work").mkdir(parents=True)
        place = WorkFolder.around(source, replay.folder / "work", unchanged_since=run.began_s)
        if not place.is_copied:
            raise UsageError(f"{str(source)!r} holds too many files to be copied", "start it in a folder with fewer")
        place.begin()
        replay.work = place.work
        if stretch.since is None:
            run.set_back(place.work, source)
        kept = len(self._added.statements) if stretch.kept is None else stretch.kept
        for path, data in self._added.sources(kept).items():
            if source.resolve() in path.parents:
                copy = place.work / path.relative_to(source.resolve())
                copy.write_bytes(data)
                os.utime(copy, (self._began_s, self._began_s))  # the files of a program are older than its checkpoints
            elif stretch.kept is not None:
                raise UsageError(f"{str(path)!r} lies beside the current folder", f"start it in {str(path.parent)!r}")
        replay.home.mkdir()
        self._added.write_info(replay.home)
        inside = self.is_inside or any(cut.is_inside for cut in stretch.cuts)
        since = [entry for entry in run.entries if stretch.since is not None and entry.cursor.key() <= stretch.since.cursor.key()]
        plan = VerifyPlan(
            str(replay.folder / "notes"),
            self._outside,
            cuts=tuple(map(key_of, stretch.cuts)),
            ends_at=key_of(stretch.end) if stretch.end is not None else "",
            jumps=tuple(str(entry.path.absolute()) for entry in stretch.jumps),
            files=str(source),
            last=stretch.last or list(run.batches)[-1],
        )
        command = run.again(since, replay.home, source, "--keep", "1000000", *(["--every", f"{1 << 30}b"] if inside else []))
        told = {**settings_here(), **run.settings(), **plan.hand_over(replay.folder / "plan"), **self._added.told(kept).hand_over()}
        unset = [*(os.environ.keys() - for_runs_of_ours().keys()), *(name for name, value in told.items() if not value)]
        apart = [word for name in unset for word in ("-u", name)]
        places = [str(place.work), str(replay.folder / "stdout"), str(replay.folder / "stderr")]
        within = ["env", *apart, *(f"{name}={value}" for name, value in told.items() if value)]
        return replay, ["sh", "-c", _IN_FOLDER, "detrain", *places, *within, *command]

    def _read_notes(self, replay: Replay) -> None:
        notes = replay.folder / "notes"
        lines = [json.loads(line) for line in notes.read_text().splitlines()] if notes.is_file() else []
        replay.notes = {key: tuple(what) for key, what in lines if isinstance(what, list)}
        replay.digests = {key: what for key, what in lines if isinstance(what, dict)}


def before(stretch: Stretch, at: Address) -> bool:
    """Return True if a batch comes before the end of a stretch."""
    return stretch.end is None or at < stretch.end.address


def starts_at(stretch: Stretch) -> Address:
    """Return the address of a stretch's first batch, or one before all batches if it begins at the program's start."""
    return stretch.since.cursor.address if stretch.since is not None else (-1, 0, 0)
