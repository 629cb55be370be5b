"""A run that is over: its checkpoints, its journal, and how it is run again in a copy of its folder."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from detrain.base.cursor import Address
from detrain.base.errors import Diverged, StoreError, UsageError
from detrain.campaign.subject import link
from detrain.faults.experiment import parse_cursor, written
from detrain.launcher.program import Program
from detrain.python.outside.change_log import Changes
from detrain.python.process.environment import variables
from detrain.store import Catalogue, Entry, Meta, read_meta
from detrain.store.journal import read_batches

LAST: Final = ("last", "crash")
"""What the last batch on record is called as a cursor: how the run ended is another question."""
_NEVER: Final = "1000000000"


@dataclass(frozen=True)
class PastRun:
    """The newest run of a program in a home. Nothing of it is changed."""

    program: Program
    arguments: tuple[str, ...]
    home: Path
    entries: tuple[Entry, ...]
    """Its checkpoints, in order."""

    @classmethod
    def of(cls, program: Program, arguments: Sequence[str], home: Path) -> PastRun:
        """Return a program's newest run. Raises StoreError where the home has no checkpoint of it."""
        found = [entry for entry in Catalogue(home).entries() if entry.program == program.name]
        if not found:
            raise StoreError(f"{str(home)!r} has no checkpoint of {program.name}", f"run it: detrain run {program.shown}")
        return cls(program, tuple(arguments), home, tuple(entry for entry in found if entry.run == found[-1].run))

    @property
    def number(self) -> int:
        """Which run of the program in its home it is."""
        return self.entries[-1].run

    @cached_property
    def recorded(self) -> Meta:
        """What its newest checkpoint says."""
        return read_meta(self.entries[-1].path)

    @cached_property
    def batches(self) -> dict[Address, bytes]:
        """The digest of each batch on record, in the order of the run."""
        return dict(sorted(read_batches(Catalogue(self.home).journal(self.program.name, self.number)).items()))

    def address(self, cursor: str) -> Address:
        """Return the batch that a cursor means: `3:17`, `1/3:17`, `step 41307` (from 0, over the whole run), or one of
        `LAST`. Raises UsageError for one that the run has not, FaultInvalid for what is none.
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

    def settings(self) -> dict[str, str]:
        """Return the variables of the environment that its processes had by detrain."""
        return variables(int(self.recorded.environment.get("threads", "0")), self.recorded.environment)

    def again(self, since: Sequence[Entry], home: Path, folder: Path, *options: str) -> list[str]:
        """Return the command that runs it again, from the last of these checkpoints (none: from the start), which are
        put into a home of their own. `folder` is the one of which the command gets a copy.
        """
        home.mkdir(exist_ok=True)
        link(since, address_of(since[-1]) if since else (-1, 0, 0), home)
        program = self.program
        whole = ["--ckpt", str(home), "--every", _NEVER, "--on-sigterm", "ignore", *options]
        whole += [] if since else ["--fresh", "--seed", str(self.recorded.seed)]
        inside = os.path.relpath(program.path.resolve(), folder.resolve())
        path = program.shown if program.is_module or inside.startswith("..") else inside
        is_module = ["-m"] if program.is_module else []
        return [sys.executable, "-m", "detrain", "run", *whole, *is_module, path, *self.arguments]

    def set_back(self, copy: Path, folder: Path) -> None:
        """Have the files in a copy of a folder as the run found them when it began, as far as that is known."""
        log = Changes(Catalogue(self.home).journal(self.program.name, self.number).with_suffix(".changes"), None)
        for path, was in log.found_by_run().items():
            there = copy / os.path.relpath(path, folder.resolve())
            if copy not in there.parents or not os.path.lexists(there):
                continue
            if isinstance(was, int):
                if there.is_file() and not there.is_symlink() and there.stat().st_size > was:
                    os.truncate(there, was)
            elif was is None and there.is_dir() and not there.is_symlink():
                shutil.rmtree(there)
            elif was is None or was.is_file():
                there.unlink()
                if was is not None:
                    shutil.copyfile(was, there)

    def require_same_batches(self, home: Path, upto: Address) -> None:
        """Raise Diverged where a batch of a run in another home, up to this one, is another than the run had."""
        (journal,) = home.glob("*.journal")
        again = read_batches(journal)
        parted = sorted(at for at in self.batches.keys() & again.keys() if at <= upto and self.batches[at] != again[at])
        if parted:
            raise Diverged(
                f"batch {written(parted[0])} is another one than the run had: what the program loads has changed since",
                "give it the data, arguments and variables of the environment that it had",
            )


def address_of(entry: Entry) -> Address:
    """Return the batch before which a checkpoint was taken."""
    return entry.cursor.phase, entry.cursor.epoch, entry.cursor.batch
