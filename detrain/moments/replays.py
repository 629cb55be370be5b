"""Stretches of a run, run again with statements that were added since: several at a time, each in its own folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

from detrain.base.child_processes import dying_with_this
from detrain.base.cursor import Address, Cursor
from detrain.base.errors import UsageError
from detrain.moments.additions_since import Added
from detrain.moments.past_run import address_of
from detrain.python.process.environment import for_runs_of_ours
from detrain.runtime.observers.verify_hooks import VerifyPlan
from detrain.store import Entry
from detrain.store.catalogue import parse_name
from detrain.store.journal import read_batches
from detrain.verify.verification import outside_of_run
from detrain.verify.work_folder import WorkFolder

_POLL_S: Final = 0.02


@dataclass(frozen=True)
class Stretch:
    """A part of a run: from one checkpoint, or the start, to another, or the end."""

    since: Entry | None
    end: Cursor | None
    cuts: tuple[Cursor, ...]
    """Where the state is kept, to be compared: among them its ends, unless it starts anew."""
    kept: int | None = None
    """How many additions are in the program; None: all."""
    last: Address | None = None
    """The last batch that is run, where that is not the run's."""
    jumps: tuple[Entry, ...] = ()
    """Checkpoints behind the batches of epochs, whose bodies are not run then."""


def key_of(cursor: Cursor) -> str:
    """Return what a cut is called in notes and plans."""
    return f"{cursor} {cursor.cut}"


@dataclass
class Replay:
    """A stretch that has been run again, and what that has left."""

    stretch: Stretch
    folder: Path
    work: Path = Path()
    """The copy of the current folder that it ran in, which is gone."""
    status: int = 0
    notes: dict[str, tuple[int, int]] = field(default_factory=dict)
    """How much had been written to stdout and stderr, by what was done (`saved`, `begun`, `resumed`) and the cut."""
    digests: dict[str, dict[str, str]] = field(default_factory=dict)
    """Those of all variables, by key, at the ends of phases and of the program."""

    @property
    def home(self) -> Path:
        """Its checkpoints."""
        return self.folder / "ckpt"

    @cached_property
    def out(self) -> bytes:
        """What was written to stdout."""
        return (self.folder / "stdout").read_bytes()

    @cached_property
    def err(self) -> bytes:
        """What was written to stderr."""
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
        """Return where in stdout and stderr a cut is; None where it has not come there."""
        known = (self.notes.get(f"{what} at {key_of(cursor)}") for what in ("resumed", "begun", "saved"))
        return next((place for place in known if place is not None), None)


class Replays:
    """Runs stretches of one run again."""

    def __init__(self, added: Added, folder: Path, jobs: int) -> None:
        """`folder` is temporary, for everything that they leave; `jobs`: so many processes at a time."""
        self._added, self._folder, self._jobs, self._count = added, folder, jobs, 0
        self._outside = outside_of_run(added.run.home)
        self._began_s = min(entry.path.stat().st_mtime for entry in added.run.entries) - 1
        self.source = Path.cwd()
        self.is_inside = any(entry.cursor.is_inside for entry in added.run.entries)
        """Whether checkpoints are taken inside of epochs: what they hold at the start of one is said otherwise then."""

    def run(self, stretches: Sequence[Stretch]) -> list[Replay]:
        """Run them, and return them in the same order. Raises UsageError where the folder is too large to be copied."""
        done: list[Replay] = []
        running: list[tuple[Replay, subprocess.Popen[bytes]]] = []
        try:
            for stretch in stretches:
                while len(running) >= self._jobs:
                    running = self._waited(running)
                running.append(self._start(stretch))
                done.append(running[-1][0])
            while running:
                running = self._waited(running)
        finally:
            for _replay, process in running:
                process.kill()
                process.wait()
        for replay in done:
            self._read_notes(replay)
        return done

    def shown(self, replay: Replay, text: bytes) -> bytes:
        """Return a text with the path of the user's folder in the place of its copy's."""
        return text.replace(str(replay.work).encode(), str(self.source).encode())

    def _waited(self, running: list[tuple[Replay, subprocess.Popen[bytes]]]) -> list[tuple[Replay, subprocess.Popen[bytes]]]:
        left = []
        for replay, process in running:
            if process.poll() is None:
                left.append((replay, process))
            else:
                replay.status = process.returncode
                shutil.rmtree(replay.folder / "work", ignore_errors=True)
        if len(left) == len(running):
            time.sleep(_POLL_S)
        return left

    def _start(self, stretch: Stretch) -> tuple[Replay, subprocess.Popen[bytes]]:
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
                os.utime(copy, (self._began_s, self._began_s))  # what a run reads is not younger than its checkpoint
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
        with (replay.folder / "stdout").open("wb") as out, (replay.folder / "stderr").open("wb") as err:
            process = subprocess.Popen(
                command,
                cwd=place.work,
                env={
                    **for_runs_of_ours(),
                    **run.settings(),
                    **plan.hand_over(replay.folder / "plan"),
                    **self._added.told(kept).hand_over(),
                },
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                preexec_fn=dying_with_this(),  # noqa: PLW1509  this process has no other threads
            )
        return replay, process

    def _read_notes(self, replay: Replay) -> None:
        notes = replay.folder / "notes"
        lines = [json.loads(line) for line in notes.read_text().splitlines()] if notes.is_file() else []
        replay.notes = {key: tuple(what) for key, what in lines if isinstance(what, list)}
        replay.digests = {key: what for key, what in lines if isinstance(what, dict)}


def before(stretch: Stretch, at: Address) -> bool:
    """Return whether a batch comes before the end of a stretch."""
    return stretch.end is None or at < (stretch.end.phase, stretch.end.epoch, stretch.end.batch)


def starts_at(stretch: Stretch) -> Address:
    """Return the first batch of a stretch."""
    return address_of(stretch.since) if stretch.since is not None else (-1, 0, 0)
