"""Runs a program whole, whole again, killed and resumed, and without probes, and compares these runs bit for bit. A job
of several ranks is compared rank by rank, and ranks of it are killed.

The run without probes has no records: what it prints and the files that it writes are compared. It shows whether
looking at the program changes it. The output of ranks comes in any order, and is not compared, so that a job has no
such run; the files of the whole job are compared.

A run is killed at one place of each kind of cut before a second of any. Kills at random places would mostly fall inside
long epochs, but defects show at the seams between epochs and loops.
"""

from __future__ import annotations

import itertools
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from detrain.base import messages
from detrain.base.cursor import Address, Cursor
from detrain.base.errors import DetrainError
from detrain.launcher.program import Program
from detrain.python.outside.clock_and_entropy import CLOCK_AND_RANDOMNESS
from detrain.python.process.environment import for_runs_of_ours
from detrain.runtime.observers.verify_hooks import VerifyPlan
from detrain.store import Catalogue, read_meta
from detrain.store.job_home import rank_folder
from detrain.verify.verified_run import ComparedRun, VerifiedRun
from detrain.verify.work_folder import WorkFolder, written

KEEP: Final = 3
_EXACT: Final = "EXACT"
_CLOCK: Final = tuple(kind for kind in CLOCK_AND_RANDOMNESS if kind not in ("urandom", "entropy"))

Kill = tuple[int, tuple[int, ...]]
"""The number of batches after which to kill, and the ranks to kill."""

_LATER: Final = 3
"""The starts of epochs from this one on count as one kind of place."""


class Verification(msgspec.Struct, frozen=True):
    """The result of the runs of a program."""

    whole: VerifiedRun
    again: VerifiedRun
    killed: VerifiedRun
    batches: int
    """The number of batches of the whole run, in loops with probes."""
    bare: VerifiedRun | None = None
    """The run without probes; None for a job."""

    @property
    def runs(self) -> list[VerifiedRun]:
        """The runs, in their order."""
        return [self.whole, self.again, self.killed, *([self.bare] if self.bare is not None else [])]

    @property
    def is_exact(self) -> bool:
        """True if the program was killed and resumed, and no compared bit differed."""
        return self.verdict.startswith(_EXACT)

    @property
    def verdict(self) -> str:
        """The verdict on the runs, in one line."""
        again, killed, batches = self.again, self.killed, self.batches
        if not again.is_equal(but_for=again.values):
            return "NOT DETERMINISTIC: two whole runs differ, no resume can be exact; see `detrain doctor`"
        if self.bare is not None and self.bare.differing_output:
            return "NOT EXACT: without detrain (`--bare`) the program does something else, see above; please report this"
        if killed.status:
            return "REFUSED: the killed run did not go on, see above"
        if killed.differing_output or not killed.is_equal(but_for=again.values):
            return "NOT EXACT: the killed and resumed run differs from the whole one"
        if not killed.kills and batches > 1:
            return "NOTHING SHOWN: the program was not killed"
        compared = [f"{batches} batches", _counted(killed.variables, "variable")]
        why = "ranks print in any order" if killed.is_of_job else "other lines in each run"
        left_out = [f"output ({why})"] if killed.lines is None else []
        compared += [f"{_counted(killed.lines, 'line')} of output"] if killed.lines is not None else []
        if killed.files is None:
            left_out.append("files (too many in the current folder to work in copies of it)")
        else:
            compared.append(_counted(sum(name not in killed.unstable_files for name in killed.files), "file"))
        left_out += [f"{_some(killed.unstable_files)} (another file in each run)"] if killed.unstable_files else []
        left_out += [f"{_some(sorted(again.values))} (other values in each run)"] if again.values else []
        told = f"; not compared: {', '.join(left_out)}" if left_out else ""
        kills = f"{_counted(len(killed.kills), 'kill')} at {len(set(killed.kills))} of {batches - 1} cuts"
        return f"{_EXACT}: {kills}, 0 differing bits in {', '.join(compared)}{told}"


def verify_program(
    program: str,
    arguments: Sequence[str] = (),
    *,
    is_module: bool = False,
    kills: int = 2,
    every: str = "1",
    seed: int = 0,
) -> Verification:
    """Run a program four times, in copies of the current folder: the third run is killed and resumed, the last has
    no probes.

    The `kills` places are drawn with `seed`, one of each kind of cut first; `every` is the distance between checkpoints
    as for `detrain run --every`. Raises ProgramNotFound, and DetrainError if the whole run fails or has no batch.
    """
    Program.find(program, is_module=is_module)
    options = ["--every", every, "--keep", str(KEEP), *(["-m"] if is_module else [])]
    with tempfile.TemporaryDirectory(prefix="detrain-verify-") as folder:
        place = WorkFolder.around(Path.cwd(), Path(folder))
        everything = [*options, program if is_module else place.program(program), *arguments]
        whole = run_through_kills("whole", place, everything, {}, {})
        outside = outside_of_run(whole.home)
        again = run_through_kills("again", place, everything, {}, outside)
        batches = list(ComparedRun.at(whole.journal).batches) if whole.journal.is_file() else []
        if whole.status or not batches:
            why = f"ended with status {whole.status}" if whole.status else "did no batch in a loop with probes"
            raise DetrainError(f"{program!r} {why}: there is nothing to compare", "see `detrain run` and `detrain info` of it")
        places = {at: str(Cursor(*batches[at])) for at in places_to_kill(batches, kills, random.Random(seed))}
        killed = run_through_kills("killed", place, everything, places, outside)
        for run in (again, killed):
            if not run.status:
                run.compare(whole)
        if not killed.status:
            killed.compare_outputs(whole, again)
        bare = bare_run(place, everything, whole, again, outside)
    return Verification(whole, again, killed, len(batches), bare)


def bare_run(
    place: WorkFolder, command: Sequence[str], whole: VerifiedRun, again: VerifiedRun, outside: dict[str, list[str]]
) -> VerifiedRun:
    """Return a run without probes, compared with the whole run. It reads clock and randomness by itself: what another
    such run does otherwise, and anything in a program that reads the clock, is no difference.
    """
    bare = run_through_kills("bare", place, ["--bare", *command], {}, {})
    if bare.status:
        bare.differing_output = [f"it ends with status {bare.status}"]
        return bare
    bare.compare_outputs(whole, again, where="without detrain")
    reads_clock = any(kind.startswith(_CLOCK) for kind in outside)
    if bare.differing_output and (reads_clock or bare.is_of_chance(run_through_kills("bare", place, ["--bare", *command], {}, {}))):
        bare.lines, bare.differing_output = None, []
    return bare


def outside_of_run(home: Path) -> dict[str, list[str]]:
    """Return the clock's and random values that a run has read: the runs to be compared with it get the same ones."""
    entries = Catalogue(home).entries()
    readings = read_meta(entries[-1].path).outside if entries else {}
    return {kind: values for kind, values in readings.items() if kind.partition(":")[0] in CLOCK_AND_RANDOMNESS}


def run_through_kills(
    name: str, place: WorkFolder, command: Sequence[str], kills: Mapping[int, str], outside: dict[str, list[str]]
) -> VerifiedRun:
    """Run the program to its end, through kills. `kills`: cursors as text, by the number of batches done before.

    `outside`: the clock's and random values that an earlier run has read; this run gets them, too.
    """
    done = VerifiedRun(name, place.folder / name)
    before = place.begin()
    began = time.monotonic()
    left = list(kills)
    states = place.folder / f"{name}.states"
    while True:
        output, errors = (place.folder / f"{name}.{len(left)}.{kind}" for kind in ("output", "errors"))
        with messages.working(f"verify: {name} run", f"to be killed at {kills[left[0]]}" if left else "to its end"):
            hooks = VerifyPlan(str(states), outside, left[0] if left else None)
            environment = {**for_runs_of_ours(), **hooks.hand_over(place.folder / f"{name}.trial")}
            whole = [sys.executable, "-m", "detrain", "run", "--ckpt", str(done.home), *command]
            # Output goes to files: the program's own workers may outlive it when it is killed, and hold a pipe open.
            with output.open("wb") as stdout, errors.open("wb") as stderr:
                process = subprocess.run(whole, env=environment, stdout=stdout, stderr=stderr, check=False, cwd=place.work)
        said = errors.read_text(errors="replace")
        done.warnings += [line for line in said.splitlines() if line.startswith("detrain: warning:")]
        if not left or process.returncode != -signal.SIGKILL:
            break
        done.kills.append(kills[left.pop(0)])
    done.status, done.seconds = process.returncode, time.monotonic() - began
    if done.status:
        messages.put(said[-4000:].rstrip("\n"))
    done.output = output.read_text(errors="replace")
    done.files = written(place.work, before) if place.is_copied else None
    read_notes(done, states)
    return done


def read_notes(done: VerifiedRun, states: Path) -> None:
    """Read the notes that the processes of a run have left about its states and its output."""
    notes = dict(json.loads(line) for line in states.read_text().splitlines()) if states.is_file() else {}
    for key, what in notes.items():
        kind, _, cursor = key.rpartition(" at ")
        if kind == "saved":
            done.cuts[cursor] = what[0]
        elif kind == "resumed":
            done.resumed = cursor, what[0]
        elif kind == "started":
            done.began = what[0]
        elif kind != "begun":
            done.states[key] = what


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def verify_job(
    program: str,
    arguments: Sequence[str] = (),
    *,
    world: int,
    is_module: bool = False,
    kills: int = 2,
    every: str = "1",
    seed: int = 0,
) -> list[Verification]:
    """Run a job of `world` ranks three times; in the third one rank, then all, and so on, are killed at random batches.

    Returns the result for each rank. Raises ProgramNotFound, and DetrainError if the whole job fails or has no batch.
    """
    found = Program.find(program, is_module=is_module)
    options = ["--every", every, "--keep", str(KEEP), *(["-m"] if is_module else [])]
    with tempfile.TemporaryDirectory(prefix="detrain-verify-") as folder:
        place = WorkFolder.around(Path.cwd(), Path(folder))
        everything = [*options, program if is_module else place.program(program), *arguments]
        whole = _run("whole", place, everything, found.name, world, [], {})
        outside = outside_of_run(whole[0].home)
        again = _run("again", place, everything, found.name, world, [], outside)
        batches = list(ComparedRun.at(whole[0].journal).batches) if whole[0].journal.is_file() else []
        if whole[0].status or not batches:
            why = f"ended with status {whole[0].status}" if whole[0].status else "did no batch in a loop with probes"
            raise DetrainError(f"the job {program!r} {why}: there is nothing to compare", "see `detrain launch` of it")
        draw = random.Random(seed)
        places = places_to_kill(batches, kills, draw)
        chosen = [(at, (draw.randrange(world),) if turn % 2 == 0 else tuple(range(world))) for turn, at in enumerate(places)]
        names = {at: str(Cursor(*batches[at])) for at in places}
        killed = _run("killed", place, everything, found.name, world, chosen, outside, names)
        for runs in (again, killed):
            for rank, run in enumerate(runs):
                if not run.status:
                    run.compare(whole[rank])
        for three in zip(killed, whole, again, strict=True):
            three[0].compare_files(*three[1:])
    each = zip(whole, again, killed, strict=True)
    return [Verification(*three, len(batches)) for three in each]


def _run(
    name: str,
    place: WorkFolder,
    command: Sequence[str],
    program: str,
    world: int,
    kills: Sequence[Kill],
    outside: dict[str, list[str]],
    cursors: Mapping[int, str] = {},
) -> list[VerifiedRun]:
    """Run the job to its end, through kills; return the run of each rank."""
    home = place.folder / name
    done = [VerifiedRun(name, rank_folder(home, program, rank), is_of_job=True) for rank in range(world)]
    before = place.begin()
    began, left = time.monotonic(), list(kills)
    states = place.folder / f"{name}.states"
    while True:
        output, errors = (place.folder / f"{name}.{len(left)}.{kind}" for kind in ("output", "errors"))
        at, ranks = left[0] if left else (None, ())
        with messages.working(f"verify: {name} job", "with a kill" if left else "to its end"):
            hooks = VerifyPlan(str(states), outside, at, ranks, is_of_job=True)
            environment = {**for_runs_of_ours(), **hooks.hand_over(place.folder / f"{name}.trial")}
            whole = [sys.executable, "-m", "detrain", "launch", "--nproc-per-node", str(world), "--ckpt", str(home), *command]
            with output.open("wb") as stdout, errors.open("wb") as stderr:
                process = subprocess.run(whole, env=environment, stdout=stdout, stderr=stderr, check=False, cwd=place.work)
        said = errors.read_text(errors="replace")
        for run in done:
            run.warnings += [line for line in said.splitlines() if line.startswith("detrain: warning:")]
        if not left or process.returncode == 0:
            break
        at, ranks = left.pop(0)
        for rank in ranks:
            done[rank].kills.append(cursors.get(at, ""))
        for rank in set(range(world)) - set(ranks):
            done[rank].kills.append(f"with rank {ranks[0]}")
    if process.returncode:
        messages.put(said[-4000:].rstrip("\n"))
    files = written(place.work, before) if place.is_copied else None
    for rank, run in enumerate(done):
        run.status, run.seconds, run.files = process.returncode, time.monotonic() - began, files
        read_notes(run, Path(f"{states}.rank-{rank}"))
    return done


def places_to_kill(batches: Sequence[Address], kills: int, draw: random.Random) -> list[int]:
    """Return up to `kills` places, in order: each is the index in `batches` (all of the whole run, in order) of a batch
    before which to kill; never the first one.
    """
    lengths: dict[tuple[int, int], int] = {}
    for phase, epoch, _batch in batches:
        lengths[phase, epoch] = lengths.get((phase, epoch), 0) + 1

    def is_other_length(phase: int, epoch: int) -> bool:
        return lengths[phase, epoch] != lengths.get((phase, 0), lengths[phase, epoch])

    kinds: list[Callable[[int, int, int], bool]] = [
        lambda _phase, epoch, batch: batch == 0 and 0 < epoch < _LATER,  # the start of an early epoch
        lambda _phase, epoch, batch: batch > 0 and epoch == 1,  # inside the second pass over the data
        lambda phase, epoch, _batch: is_other_length(phase, epoch),  # an epoch of another length than the first
        lambda phase, epoch, batch: batch == 0 and epoch == 0 and phase > 0,  # another training loop
        lambda _phase, epoch, batch: batch == 0 and epoch >= _LATER,
        lambda _phase, epoch, batch: batch > 0 and epoch == 0,
        lambda _phase, epoch, batch: batch > 0 and epoch > 1,
    ]
    of_kinds = [[at for at, address in enumerate(batches) if at and kind(*address)] for kind in kinds]
    chosen: list[int] = []
    for places in itertools.cycle(of_kinds):
        if len(chosen) >= min(kills, len(batches) - 1):
            return sorted(chosen)
        left = [at for at in places if at not in chosen]
        chosen += [draw.choice(left)] if left else []
    raise AssertionError("a cycle has no end")
