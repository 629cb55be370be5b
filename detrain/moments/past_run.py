"""A run that is over: its checkpoints, its journal, the command that runs it again in a copy of its folder, how far its
steps are from its checkpoints, and the time to reach them.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import shutil
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Final

import msgspec

from detrain.base.cursor import Address, parse_cursor, written
from detrain.base.errors import Diverged, EnvironmentChanged, StoreError, UsageError
from detrain.base.paths import path_below
from detrain.launcher.program import Program
from detrain.launcher.ranks import WORLD
from detrain.python.outside.change_log import Changes
from detrain.python.process.environment import compare, variables
from detrain.store import Catalogue, Entry, Meta, read_meta
from detrain.store.catalogue import INFO_NAME, link
from detrain.store.chronicle import CheckpointSaved, Chronicle, Event, Started
from detrain.store.job_home import ranks_of
from detrain.store.journal import read_batches

LAST: Final = ("last", "crash")
"""Names for the last batch on record, however the run ended, where a cursor is asked for."""
_NEVER: Final = "1000000000"
_MARGIN_S: Final = 60.0
"""The most seconds by which the clock of a file server may be behind."""


@dataclass(frozen=True)
class PastRun:
    """The newest run of a program in a home. Its files are never changed."""

    program: Program
    arguments: tuple[str, ...]
    home: Path
    entries: tuple[Entry, ...]
    """Its checkpoints, in order; for a rank, only those that all ranks have."""
    ranks: tuple[PastRun, ...] = ()
    """For a job: the runs of all ranks, this one's among them."""

    @classmethod
    def of(cls, program: Program, arguments: Sequence[str], home: Path, rank: int | None = None) -> PastRun:
        """Return a program's newest run; for a job, that of a rank. Raises StoreError if the home has no checkpoint of
        it, or lacks those of some ranks; UsageError for a job without `rank`, and for `rank` without a job.
        """
        folders = ranks_of(home / program.name)
        if (rank is not None) != bool(folders):
            was = (
                f"the run of {program.name} is a job of {len(folders)} ranks"
                if folders
                else f"--rank {rank} of a run of one process"
            )
            raise UsageError(was, "`detrain at --rank 0` stands in one of them" if folders else "leave it out")
        everyone = [cls._alone(program, arguments, folder) for folder in folders or [home]]
        if rank is None:
            return everyone[0]
        names = set[str].intersection(*({entry.path.name for entry in each.entries} for each in everyone))
        world = int(everyone[0].recorded.environment.get(WORLD, "0"))
        is_whole = [each.home.name for each in everyone] == [f"rank-{number}" for number in range(world)]
        if not is_whole or not names:
            lacks = f"checkpoints of {len(folders)} of {world} ranks only" if not is_whole else "no checkpoint that all ranks have"
            raise StoreError(f"{str(home)!r} has {lacks}, and all must run again", "bring the folders of all ranks there")
        if rank >= world:
            raise UsageError(f"--rank {rank} of a job of {world} ranks", f"give one from 0 to {world - 1}")
        common = [replace(each, entries=tuple(entry for entry in each.entries if entry.path.name in names)) for each in everyone]
        return replace(common[rank], ranks=tuple(common))

    @classmethod
    def _alone(cls, program: Program, arguments: Sequence[str], home: Path) -> PastRun:
        found = [entry for entry in Catalogue(home).entries() if entry.program == program.name]
        if not found:
            raise StoreError(f"{str(home)!r} has no checkpoint of {program.name}", f"run it: detrain run {program.shown}")
        return cls(program, tuple(arguments), home, tuple(entry for entry in found if entry.run == found[-1].run))

    @property
    def everyone(self) -> tuple[PastRun, ...]:
        """The runs of all ranks of a job; for a run of one process, that run alone."""
        return self.ranks or (self,)

    @property
    def number(self) -> int:
        """The number of this run among the program's runs in its home."""
        return self.entries[-1].run

    @cached_property
    def recorded(self) -> Meta:
        """The metadata of its newest checkpoint."""
        return read_meta(self.entries[-1].path)

    @property
    def _journal(self) -> Path:
        return Catalogue(self.home).journal(self.program.name, self.number)

    @property
    def began_s(self) -> float:
        """The time when its first process began, in seconds since 1970, less a margin for other clocks; minus infinity
        if it is not known. A file that was last changed earlier was not written by the run.
        """
        told = [Catalogue(each.home).chronicle(self.program.name, each.number).events() for each in self.everyone]
        starts = (min((event.at for event in events if isinstance(event, Started)), default=-math.inf) for events in told)
        return min(starts) - _MARGIN_S

    @cached_property
    def batches(self) -> dict[Address, bytes]:
        """The digest of each batch on record, in the order of the run."""
        return dict(sorted(read_batches(self._journal).items()))

    def address(self, cursor: str) -> Address:
        """Return the batch that a cursor means: `3:17`, `1/3:17`, `step 41307` (from 0, over the whole run), or one of
        `LAST`. Raises UsageError if the run has no such batch, FaultInvalid if the text is no cursor.
        """
        batches = list(self.batches)
        if not batches:
            raise UsageError(f"the run of {self.program.name} has no batch on record", "see `detrain info` for its loops")
        number = re.fullmatch(r"step\s+(\d+)", cursor)
        if cursor in LAST or number is not None:
            at = int(number[1]) if number is not None else len(batches) - 1
            found = batches[at] if at < len(batches) else None
        else:
            found = parse_cursor(cursor) if parse_cursor(cursor) in self.batches else None
        if found is None:
            last = f"its last is {written(batches[-1])}, step {len(batches) - 1}"
            raise UsageError(f"the run has no step {cursor.removeprefix('step ')}: {last}", "give one that it has")
        return found

    def before(self, at: Address) -> tuple[Entry, ...]:
        """Return the checkpoints up to a batch. One right at it is left out if its epoch has an earlier one: names that
        the program does not read again, such as the last loss, are bound only after a step has been run.
        """
        ahead, upto = (bisect(self.entries, at, key=lambda entry: entry.cursor.address) for bisect in (bisect_left, bisect_right))
        return self.entries[: ahead if ahead and self.entries[ahead - 1].cursor.address[:2] == at[:2] else upto]

    def settings(self) -> dict[str, str]:
        """Return the environment variables that detrain set for its processes."""
        return variables(int(self.recorded.environment.get("threads", "0")), self.recorded.environment)

    def again(self, since: Sequence[Entry], home: Path, folder: Path, *options: str) -> list[str]:
        """Return the command that runs it again from the last checkpoint of `since` (if empty: from the start). Puts
        these checkpoints into `home`. The command is for a copy of `folder`.
        """
        program, names = self.program, {entry.path.name for entry in since}
        for each in self.everyone:
            own = self.home_in(home, each)
            own.mkdir(parents=True, exist_ok=True)
            chosen = [entry for entry in each.entries if entry.path.name in names]
            link(chosen, chosen[-1].cursor.address if chosen else (-1, 0, 0), own)
        info, own_info = ((each.parent if self.ranks else each) / INFO_NAME for each in (self.home, self.home_in(home, self)))
        if info.is_file() and not own_info.exists():
            shutil.copyfile(info, own_info)
        whole = ["--ckpt", str(home), "--every", _NEVER, *options]
        whole += ["--no-jit"] if self.ranks else []
        whole += [] if since else ["--fresh", "--seed", str(self.recorded.seed)]
        inside = None if program.is_module else path_below(str(program.path.resolve()), str(folder.resolve()))
        path = inside or program.shown
        is_module = ["-m"] if program.is_module else []
        return [sys.executable, "-m", "detrain", "run", *whole, *is_module, path, *self.arguments]

    def home_in(self, home: Path, run: PastRun) -> Path:
        """Return the folder, in another home, for the checkpoints of this run or of another rank's."""
        return home / self.program.name / run.home.name if self.ranks else home

    def set_back(self, copy: Path, folder: Path) -> None:
        """Restore the files in a copy of a folder to their state when the run began, as far as that is known."""
        log = Changes(self._journal.with_suffix(".changes"), None)
        for path, was in log.found_by_run().items():
            there = copy / os.path.relpath(path, folder.resolve())
            if copy not in there.parents or not os.path.lexists(there):
                continue
            if isinstance(was, int):
                if there.is_file() and not there.is_symlink() and there.stat().st_size > was:
                    os.truncate(there, was)
            elif was is None and there.is_dir() and not there.is_symlink():
                shutil.rmtree(there)
            elif was is None or was.is_file() or was.is_symlink():
                there.unlink()
                if was is not None:
                    shutil.copyfile(was, there, follow_symlinks=False)

    def require_same_environment(self, home: Path) -> None:
        """Raise EnvironmentChanged if a run in another home began in another environment than this run did."""
        now = (Chronicle(path).events() for path in home.glob("*.chronicle"))
        events = [Catalogue(self.home).chronicle(self.program.name, self.number).events(), *now]
        began = [next((event.environment for event in each if isinstance(event, Started)), {}) for each in events]
        changed = [words for each in began[1:] for words in compare(began[0], each)] if began[0] else []
        if changed:
            what = f"the environment differs from the run's: {'; '.join(changed)}"
            raise EnvironmentChanged(what, "stand there where it is the same")

    def require_same_batches(self, home: Path, upto: Address) -> None:
        """Raise Diverged if a batch of a run in another home differs from this run's; batches after `upto`, and the
        elements that the body of `upto` fetches, are not compared.
        """
        (journal,) = home.glob("*.journal")
        had, again = (read_batches(path, in_body=upto) for path in (self._journal, journal))
        parted = sorted(at for at in had.keys() & again.keys() if at <= upto and had[at] != again[at])
        if parted:
            raise Diverged(
                f"batch {written(parted[0])} is another one than the run had: what the program loads has changed since",
                "give it the data, arguments and variables of the environment that it had",
            )


class Reach(msgspec.Struct, kw_only=True):
    """Consecutive epochs that are all reached from one checkpoint before them, or each from checkpoints of its own."""

    first: str
    """The first of them, written as in cursors: `3`, or `1/3` in a later phase."""
    last: str
    since: str | None
    """The checkpoint before them; empty: the run's start; None: each epoch has checkpoints of its own."""
    steps: int
    """The number of steps that are run to reach the farthest batch."""


class Costs(msgspec.Struct, kw_only=True, frozen=True):
    """The seconds that a run's processes took, by its chronicle; None if they are not on record."""

    start_s: float | None
    """From the start to the first step."""
    step_s: float | None


def reach(run: PastRun) -> list[Reach]:
    """Return, in the run's order, how far its steps are from checkpoints."""
    batches, found = list(run.batches), list[Reach]()
    where = None
    for number, at in enumerate(batches):
        before = run.before(at)
        start = before[-1].cursor.address if before else None
        is_own = start is not None and start[:2] == at[:2]
        since = None if is_own else "" if start is None else written(start)
        steps = number - (0 if start is None else bisect_left(batches, start))
        epoch = written(at).rpartition(":")[0]
        if where is None or (where, found[-1].since) != (at[0], since):
            found.append(Reach(first=epoch, last=epoch, since=since, steps=steps))
        found[-1].last, found[-1].steps = epoch, max(found[-1].steps, steps)
        where = at[0]
    return found


def _median(values: list[float]) -> float:
    in_order, count = sorted(values), len(values)
    return (in_order[(count - 1) // 2] + in_order[count // 2]) / 2


def costs(run: PastRun) -> Costs:
    """Return the seconds for the program's start, and for a step: there the median over pairs of checkpoints."""
    events = Catalogue(run.home).chronicle(run.program.name, run.number).events()
    told = [event for event in events if isinstance(event, Started | CheckpointSaved)]
    steps = [each for pair in itertools.pairwise(told) if (each := _step_s(*pair)) is not None]
    step_s = _median(steps) if steps else None
    starts = [
        saved.at - start.at - saved.batches_done * (step_s or 0)
        for start, saved in itertools.pairwise(told)
        if isinstance(start, Started) and isinstance(saved, CheckpointSaved) and not start.since
    ]
    return Costs(start_s=max(starts[0], 0.0) if starts and step_s is not None else None, step_s=step_s)


def _step_s(one: Event, other: Event) -> float | None:
    """Return the seconds for a step between two checkpoints of one process; None if the events are no such pair."""
    if not (isinstance(one, CheckpointSaved) and isinstance(other, CheckpointSaved)) or other.batches_done <= one.batches_done:
        return None
    return (other.at - one.at) / (other.batches_done - one.batches_done)
