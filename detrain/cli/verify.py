"""`detrain verify`: run a program whole, whole again, and killed and resumed, and compare what they did bit for bit."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import msgspec

from detrain.base import messages
from detrain.base.cursor import Cursor
from detrain.base.errors import DetrainError, Diverged
from detrain.cli.diff import Comparison, Run, compare_runs, described
from detrain.cli.options import PROGRAM_SETTINGS, program_arguments
from detrain.cli.printing import console
from detrain.launcher.program import Program
from detrain.python.outside.clock_and_entropy import CLOCK_AND_RANDOMNESS
from detrain.runtime.observers.verify_hooks import Trial
from detrain.store import Catalogue, read_meta
from detrain.verify.runs import copy_folder, first_difference, timed_fields, written

_KEEP = 3
_EXACT = "EXACT"


@dataclass
class Done:
    """One run of the program, over as many processes as it took, and how it compares with the first."""

    name: str
    home: Path
    status: int = 0
    seconds: float = 0.0
    kills: list[str] = field(default_factory=list)
    """Cursors at which it was killed."""
    states: dict[str, dict[str, str]] = field(default_factory=dict)
    """Digest of each variable, by its key, at the end of each phase and of the program."""
    cuts: dict[str, int] = field(default_factory=dict)
    """How many bytes of output there were when a checkpoint was taken (`saved at CURSOR`)."""
    resumed: tuple[str, int] = ("", 0)
    """Where the last process resumed, and how much it had printed before that."""
    output: str = ""
    """What the last process printed."""
    files: dict[str, str] | None = None
    """Digests of the files written in the current folder, by name; None where that was not looked at."""
    warnings: list[str] = field(default_factory=list)
    comparison: Comparison | None = None
    variables: int = 0
    """Variables compared, at the ends of all phases and of the program."""
    differing: list[str] = field(default_factory=list)
    """Those that differ."""
    lines: int | None = None
    """Lines of output compared, from the last resume on; None where they are others in each run."""
    differing_output: list[str] = field(default_factory=list)
    """How the output differs, and the files that do."""
    unstable_files: list[str] = field(default_factory=list)
    """Files that are others in each run, so that they were not compared."""

    @property
    def journal(self) -> Path:
        """The journal of the run."""
        return next(iter(sorted(self.home.glob("*.journal"))), self.home / "no.journal")

    @property
    def values(self) -> set[str]:
        """The places of the Python values that differ, and the widths of Keras's bars: times in them make them equal by chance."""
        differences = self.comparison.checkpoints.values() if self.comparison is not None else ()
        places = {_place(each.name) for found in differences for each in found if each.what == "value"}
        return places | {place.replace("._last_update", "._prev_total_width") for place in places}

    def is_equal(self, *, but_for: Collection[str] = ()) -> bool:
        """Return whether the run was compared, and nothing differs but for these Python values."""
        if self.comparison is None or self.comparison.first_batch is not None or self.differing:
            return False
        return self.equal_checkpoints(but_for=but_for) == len(self.comparison.checkpoints)

    def equal_checkpoints(self, *, but_for: Collection[str]) -> int:
        """Return how many checkpoints of the run have no other bits, but for these Python values."""
        found = self.comparison.checkpoints.values() if self.comparison is not None else ()
        return sum(all(each.is_unused or (each.what == "value" and _place(each.name) in but_for) for each in one) for one in found)

    def compare(self, other: Done) -> None:
        """Compare with another run. A variable that only one of them has was not in use any more."""
        self.comparison = compare_runs(Run.at(other.journal), Run.at(self.journal))
        for of, digests in other.states.items():
            mine = self.states.get(of, {})
            common = [key for key in digests if key in mine]
            self.variables += len(common)
            self.differing += [f"{key} at the end of {of}" for key in common if mine[key] != digests[key]]

    def compare_outputs(self, whole: Done, again: Done) -> None:
        """Compare what was printed from the last resume on, and the files; leave out what differs between two whole runs."""
        timed = timed_fields(whole.output, again.output)
        cut, place = self.resumed
        start = whole.cuts.get(cut, 0) if cut else 0
        if timed is not None and (not cut or cut in whole.cuts):
            mine = self.output.encode()[place:].decode(errors="replace")
            reference = whole.output.encode()[start:].decode(errors="replace")
            self.lines = reference.count("\n")
            difference = first_difference(reference, mine, timed)
            self.differing_output += [f"output: {difference}"] if difference is not None else []
        if self.files is not None and whole.files is not None and again.files is not None:
            names = sorted({*self.files, *whole.files})
            both = {*whole.files, *again.files}
            one_sided = {_place(name) for name in both if (name in whole.files) != (name in again.files)}
            self.unstable_files = [
                name
                for name in names
                if whole.files.get(name) != again.files.get(name)
                or ((name in whole.files) != (name in self.files) and _place(name) in one_sided)
            ]
            differing = [name for name in names if self.files.get(name) != whole.files.get(name)]
            self.differing_output += [f"file {name}" for name in differing if name not in self.unstable_files]


@click.command(context_settings=PROGRAM_SETTINGS)
@click.option("--kills", type=click.IntRange(0), default=2, show_default=True, metavar="N", help="Kills of the third run.")
@click.option("--every", default="1", show_default=True, metavar="N|Nb|Nmin", help="Checkpoint each N epochs, batches or minutes.")
@click.option("--seed", type=int, default=0, show_default=True, metavar="S", help="Seed of the choice of batches to kill at.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("-m", "is_module", is_flag=True, help="PROGRAM is a module, as with python -m.")
@program_arguments
def command(kills: int, every: str, seed: int, as_json: bool, is_module: bool, program: str, arguments: tuple[str, ...]) -> int:
    """Run PROGRAM three times, the third killed N times at random batches and resumed, and compare all bits.

    What is compared: the digest of every batch, the checkpoints (variables, random streams, Python values), all variables at the
    end, what is printed from the last resume on, and the files written in the current folder. The runs work in copies of that
    folder; what the program writes elsewhere it writes three times. Exit status 0: exact; 78: not.

    \b
    Example:
      detrain verify --kills 3 train.py --epochs 5
    """
    Program.find(program, is_module=is_module)
    options = ["--every", every, "--keep", str(_KEEP), *(["-m"] if is_module else [])]
    with tempfile.TemporaryDirectory(prefix="detrain-verify-") as folder:
        place = Place.around(Path.cwd(), Path(folder))
        everything = [*options, program if is_module else place.program(program), *arguments]
        whole = _run("whole", place, everything, {}, {})
        outside = outside_of_run(whole.home)
        again = _run("again", place, everything, {}, outside)
        batches = list(Run.at(whole.journal).batches) if whole.journal.is_file() else []
        if whole.status or not batches:
            why = f"ended with status {whole.status}" if whole.status else "did no batch in a loop with probes"
            raise DetrainError(f"{program!r} {why}: there is nothing to compare", "see `detrain run` and `detrain info` of it")
        chosen = random.Random(seed).sample(range(1, len(batches)), min(kills, len(batches) - 1))
        places = {count: str(Cursor(*batches[count])) for count in sorted(chosen)}
        killed = _run("killed", place, everything, places, outside)
        for run in (again, killed):
            if not run.status:
                run.compare(whole)
        if not killed.status:
            killed.compare_outputs(whole, again)
    runs = [whole, again, killed]
    if as_json:
        click.echo(json.dumps(_as_json(runs, len(batches)), indent=2))
    else:
        _print(runs, len(batches))
        click.echo(_verdict(again, killed, len(batches)))
    return 0 if _verdict(again, killed, len(batches)).startswith(_EXACT) else Diverged.exit_code


def _place(path: str) -> str:
    """Return the path of a value or a file without numbers: one of several readings of a clock may happen to be the same."""
    return re.sub(r"\d+", "#", path)


def outside_of_run(home: Path) -> dict[str, list[str]]:
    """Return what a run has read of clock and randomness: the runs to be compared with it are given the same."""
    entries = Catalogue(home).entries()
    readings = read_meta(entries[-1].path).outside if entries else {}
    return {kind: values for kind, values in readings.items() if kind in CLOCK_AND_RANDOMNESS}


@dataclass(frozen=True)
class Place:
    """Where the runs work: in copies of the current folder, one after another under one path, or in the folder itself."""

    source: Path
    folder: Path
    """Temporary, for everything that the runs leave."""
    is_copied: bool

    @classmethod
    def around(cls, source: Path, folder: Path) -> Place:
        """Return the place for a current folder. What lies beside that is found beside its copies, too."""
        place = cls(source, folder, copy_folder(source, folder / "first"))
        if place.is_copied:
            (folder / "beside").mkdir()
            for entry in source.parent.iterdir() if source.parent != source else ():
                if entry != source:
                    (folder / "beside" / entry.name).symlink_to(entry)
        return place

    @property
    def work(self) -> Path:
        """The folder in which runs work."""
        return self.folder / "beside" / self.source.name if self.is_copied else self.source

    def program(self, path: str) -> str:
        """Return the path by which the runs find the program."""
        whole = Path(path).resolve()
        is_inside = self.source.resolve() in whole.parents
        return os.path.relpath(whole, self.source.resolve()) if is_inside else str(whole)

    def begin(self) -> dict[str, str]:
        """Make the folder for a run; return the digests of what is in it."""
        if not self.is_copied:
            return {}
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(self.folder / "first", self.work, symlinks=True)
        return written(self.work, {})


def _run(name: str, place: Place, command: Sequence[str], kills: Mapping[int, str], outside: dict[str, list[str]]) -> Done:
    """Run the program to its end, through kills after so many batches (at these cursors)."""
    done = Done(name, place.folder / name)
    before = place.begin()
    began = time.monotonic()
    left = list(kills)
    states = place.folder / f"{name}.states"
    while True:
        output, errors = (place.folder / f"{name}.{len(left)}.{kind}" for kind in ("output", "errors"))
        with messages.working(f"verify: {name} run", f"to be killed at {kills[left[0]]}" if left else "to its end"):
            trial = Trial(str(states), outside, left[0] if left else None)
            environment = {**os.environ, **trial.hand_over(place.folder / f"{name}.trial")}
            whole = [sys.executable, "-m", "detrain", "run", "--ckpt", str(done.home), *command]
            # Into files: the program's own workers may outlive it when it is killed, and would hold a pipe open.
            with output.open("wb") as stdout, errors.open("wb") as stderr:
                process = subprocess.run(whole, env=environment, stdout=stdout, stderr=stderr, check=False, cwd=place.work)
        said = errors.read_text(errors="replace")
        done.warnings += [line for line in said.splitlines() if line.startswith("detrain: warning:")]
        notes = dict(json.loads(line) for line in states.read_text().splitlines()) if states.is_file() else {}
        if not left or process.returncode != -signal.SIGKILL:
            break
        done.kills.append(kills[left.pop(0)])
    done.status, done.seconds = process.returncode, time.monotonic() - began
    if done.status:
        messages.put(said[-4000:].rstrip("\n"))
    done.output = output.read_text(errors="replace")
    done.files = written(place.work, before) if place.is_copied else None
    for key, what in notes.items():
        kind, _, cursor = key.rpartition(" at ")
        if kind == "saved":
            done.cuts[cursor] = what
        elif kind == "resumed":
            done.resumed = cursor, what
        else:
            done.states[key] = what
    return done


def _print(runs: list[Done], batches: int) -> None:
    from rich.table import Table

    table = Table("run", "seconds", "killed at", "equal: batches", "checkpoints", "variables", box=None, pad_edge=False)
    for run in runs:
        cells = [run.name, f"{run.seconds:.1f}", ", ".join(run.kills)]
        if run.status:
            cells.append(f"ended with {run.status}")
        if run.comparison is not None:
            equal = run.equal_checkpoints(but_for=runs[1].values)
            common, first = run.comparison.batches, run.comparison.first_batch
            cells += [
                f"{common} of {batches}" if first is None else f"until {first}",
                f"{equal} of {len(run.comparison.checkpoints)}",
                f"{run.variables - len(run.differing)} of {run.variables}",
            ]
        table.add_row(*cells)
    console().print(table)
    for run in runs:
        if run.comparison is not None and (run.differing_output or not run.is_equal(but_for=runs[1].values)):
            click.echo(f"{run.name}:")
            for line in [*described(run.comparison), *run.differing[:8], *run.differing_output[:8]]:
                click.echo(f"  {line}")
    if runs[1].values:
        click.echo(f"Python values that are others in each run, as those of a clock are: {', '.join(sorted(runs[1].values)[:8])}")
    for warning in sorted({warning for run in runs for warning in run.warnings}):
        click.echo(warning)


def _verdict(again: Done, killed: Done, batches: int) -> str:
    if not again.is_equal(but_for=again.values):
        return "NOT DETERMINISTIC: two whole runs differ, no resume can be exact; see `detrain doctor`"
    if killed.status:
        return "REFUSED: the killed run did not go on, see above"
    if killed.differing_output or not killed.is_equal(but_for=again.values):
        return "NOT EXACT: the killed and resumed run differs from the whole one"
    if not killed.kills and batches > 1:
        return "NOTHING SHOWN: the program was not killed"
    compared = [f"{batches} batches", f"{killed.variables} variables"]
    left_out = ["output (other lines in each run)"] if killed.lines is None else []
    compared += [f"{killed.lines} lines of output"] if killed.lines is not None else []
    if killed.files is None:
        left_out.append("files (too many in the current folder to work in copies of it)")
    else:
        compared.append(f"{sum(name not in killed.unstable_files for name in killed.files)} files")
    left_out += [f"{_some(killed.unstable_files)} (another file in each run)"] if killed.unstable_files else []
    left_out += [f"{_some(sorted(again.values))} (other values in each run)"] if again.values else []
    told = f"; not compared: {', '.join(left_out)}" if left_out else ""
    return f"{_EXACT}: {len(killed.kills)} kills, 0 differing bits in {', '.join(compared)}{told}"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _as_json(runs: list[Done], batches: int) -> dict[str, Any]:
    verdict = _verdict(runs[1], runs[2], batches)
    return {
        "exact": verdict.startswith(_EXACT),
        "verdict": verdict,
        "batches": batches,
        "runs": [
            {
                "name": run.name,
                "status": run.status,
                "seconds": round(run.seconds, 2),
                "kills": run.kills,
                "comparison": msgspec.to_builtins(run.comparison),
                "variables": run.variables,
                "differing_variables": run.differing,
                "lines_of_output": run.lines,
                "files": None if run.files is None else len(run.files),
                "differing_output": run.differing_output,
                "files_not_compared": run.unstable_files,
                "warnings": sorted(set(run.warnings)),
            }
            for run in runs
        ],
    }
