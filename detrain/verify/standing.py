"""`detrain at`: runs a program again from the checkpoint before a cursor, in a copy of its folder, and stands there."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from detrain.base import messages
from detrain.base.child_processes import dying_with_this
from detrain.base.cursor import Address
from detrain.base.errors import Diverged, StoreError, UsageError, last_printed
from detrain.campaign.subject import link
from detrain.faults.experiment import written
from detrain.launcher.program import Program
from detrain.python.process.environment import variables
from detrain.runtime.observers.moment import Moment, Shown
from detrain.store import Catalogue, Entry, read_meta
from detrain.store.journal import read_batches
from detrain.verify.runs import copy_folder

_NEVER: Final = "1000000000"


@dataclass(frozen=True)
class Stand:
    """What was found at a cursor."""

    at: Address
    since: str
    """The checkpoint that the run went on from; empty: it started anew."""
    shown: list[Shown]


def stand(
    program: Program,
    arguments: Sequence[str],
    home: Path,
    at: Address,
    *,
    expressions: Sequence[str] = (),
    saved: Path | None = None,
    has_debugger: bool = False,
) -> Stand:
    """Go to a cursor of the newest run of a program in a home, and say what is there.

    Everything happens in a copy of the current folder: the run's checkpoints, its journal and its files stay as they
    are. Each batch on the way is compared with the journal's. Raises Diverged where one is another, StoreError where
    the home has no checkpoint of the program, UsageError where the run has no such step.
    """
    entries = _entries_of(program, home)
    with tempfile.TemporaryDirectory(prefix="detrain-at-") as made:
        folder = Path(made)
        source = Path.cwd()
        if not copy_folder(source, folder / source.name, without=[home]):
            raise UsageError(f"{str(source)!r} holds too many files to be copied", "start it in a folder with fewer")
        work = folder / source.name
        copied = folder / "ckpt"
        copied.mkdir()
        before = _before(entries, at)
        link(before, at, copied)
        recorded = read_meta(entries[-1].path)
        moment = Moment(
            at=at,
            answers=str(folder / "answers"),
            expressions=tuple(expressions),
            has_debugger=has_debugger,
            saved=str(saved.absolute()) if saved is not None else "",
        )
        settings = variables(int(recorded.environment.get("threads", "0")), recorded.environment)
        options = ["--ckpt", str(copied), "--every", _NEVER, "--on-sigterm", "ignore"]
        options += [] if before else ["--fresh", "--seed", str(recorded.seed)]
        inside = os.path.relpath(program.path.resolve(), source.resolve())
        path = program.shown if program.is_module or inside.startswith("..") else inside
        command = [sys.executable, "-m", "detrain", "run", *options, *(["-m"] if program.is_module else []), path, *arguments]
        start = _address(before[-1]) if before else (0, 0, 0)
        messages.say(f"going to {written(at)} from {f'the checkpoint {written(start)}' if before else 'the start'}")
        errors = folder / "stderr"
        with errors.open("wb") as file:
            done = subprocess.run(
                command,
                cwd=work,
                env={**os.environ, **settings, **moment.hand_over()},
                stdout=None if has_debugger else subprocess.DEVNULL,
                stderr=None if has_debugger else file,
                check=False,
                preexec_fn=dying_with_this(),
            )
        answers = Path(moment.answers)
        if not answers.is_file():
            _explain(done.returncode, errors.read_text(errors="replace"), at)
        lines = answers.read_bytes().splitlines()
        if not before:  # one that goes on from a checkpoint compares them itself
            _require_same_batches(copied, home, entries[-1], at)
        shown = [msgspec.json.decode(line, type=Shown) for line in lines if line]
        return Stand(at, written(start) if before else "", shown)


def _entries_of(program: Program, home: Path) -> list[Entry]:
    """Return the checkpoints of the program's newest run. Raises StoreError."""
    found = [entry for entry in Catalogue(home).entries() if entry.program == program.name]
    if not found:
        raise StoreError(f"{str(home)!r} has no checkpoint of {program.name}", f"run it: detrain run {program.shown}")
    return [entry for entry in found if entry.run == found[-1].run]


def _require_same_batches(copied: Path, home: Path, entry: Entry, at: Address) -> None:
    """Raise Diverged where a batch on the way was another one than the run's."""
    known = read_batches(Catalogue(home).journal(entry.program, entry.run))
    (journal,) = copied.glob("*.journal")
    again = read_batches(journal)
    parted = sorted(each for each in known.keys() & again.keys() if each <= at and known[each] != again[each])
    if parted:
        raise Diverged(
            f"batch {written(parted[0])} is another one than the run had: what the program loads has changed since",
            "give it the data, arguments and variables of the environment that it had",
        )


def _before(entries: Sequence[Entry], at: Address) -> list[Entry]:
    """Return the checkpoints up to a cursor. One that is at it is left out if there is another in the epoch: names that
    the program reads no more, such as the last loss, are bound only once a step has been done.
    """
    found = [entry for entry in entries if _address(entry) <= at]
    ahead = [entry for entry in found if _address(entry) < at]
    return ahead if ahead and _address(ahead[-1])[:2] == at[:2] else found


def _address(entry: Entry) -> Address:
    return entry.cursor.phase, entry.cursor.epoch, entry.cursor.batch


def _explain(status: int, said: str, at: Address) -> None:
    """Say why the run has not come to a cursor."""
    reason = last_printed(said)
    if reason is not None:
        kind = Diverged if status == Diverged.exit_code else UsageError
        raise kind(f"the run did not come to {written(at)}: {reason[0]}", reason[1])
    if status == 0:
        raise UsageError(f"the run has no step {written(at)}: it ended before", "give one that it has: see detrain ckpt ls")
    last = (said.splitlines() or ["no message"])[-1]
    raise UsageError(f"the run did not come to {written(at)} (status {status}): {last}", "run it with `detrain run` to see more")
