"""One run of a program that is being verified: its results and files, and their comparison with another run's. It shows
the first batch, and the first checkpoint and tensor, that differ.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Final

import msgspec

from detrain.base.cursor import Address, Cursor
from detrain.base.errors import StoreError
from detrain.export.object_tensors import tensors_of
from detrain.store import Catalogue, Entry, read
from detrain.store.catalogue import parse_name
from detrain.store.journal import read_batches
from detrain.verify.printed_lines import first_difference, timed_fields
from detrain.verify.state_diff import Difference, compare

_MOST_EQUAL: Final = 3
"""The most equal checkpoints that are listed one by one."""
_END: Final = " (end)"
"""Ends the key of a checkpoint at the end of a loop."""


class VerifiedRun(msgspec.Struct):
    """One run of the program, over as many processes as it took, and its comparison with the first run."""

    name: str
    home: Path
    status: int = 0
    seconds: float = 0.0
    kills: list[str] = []
    """Cursors at which it was killed."""
    states: dict[str, dict[str, str]] = {}
    """Digest of each variable, by its key, at the end of each phase and of the program."""
    cuts: dict[str, int] = {}
    """The bytes of output written when each checkpoint was taken, by its cursor."""
    began: int = 0
    """The bytes that stood in the output when its last process began: a first run may start itself again."""
    resumed: tuple[str, int] = ("", 0)
    """The cursor at which the last process resumed, and the bytes that it had printed before."""
    output: str = ""
    """The text that the last process printed."""
    files: dict[str, str] | None = None
    """Digests of the files written in the current folder, by name; None if the folder was not copied."""
    warnings: list[str] = []
    is_of_job: bool = False
    """True for one rank of a job, whose ranks print in any order."""
    comparison: Comparison | None = None
    variables: int = 0
    """The number of variables compared: at the ends of all phases and of the program; for PyTorch and JAX, tensors at
    the ends of phases."""
    differing: list[str] = []
    """The variables that differ."""
    lines: int | None = None
    """The number of lines of output compared, from the last resume on; None if the lines differ in each run."""
    differing_output: list[str] = []
    """The first difference of the output, in words, and the files that differ."""
    unstable_files: list[str] = []
    """Files that differ in each run, so that they were not compared."""
    timed: set[tuple[str, int]] = set()
    """The numbers in its output that differ in each run, so that they were not compared."""

    @property
    def journal(self) -> Path:
        """The journal of the run."""
        return next(iter(sorted(self.home.glob("*.journal"))), self.home / "no.journal")

    @property
    def values(self) -> set[str]:
        """The places of the Python values that differ, and the widths of Keras's bars there: a bar may show times."""
        differences = self.comparison.checkpoints.values() if self.comparison is not None else ()
        places = {without_numbers(each.name) for found in differences for each in found if each.what == "value"}
        return places | {place.replace("._last_update", "._prev_total_width") for place in places}

    def is_equal(self, *, but_for: Collection[str] = ()) -> bool:
        """Return True if the run was compared, and nothing differs except the Python values at these places."""
        if self.comparison is None or self.comparison.first_batch is not None or self.differing:
            return False
        return self.equal_checkpoints(but_for=but_for) == len(self.comparison.checkpoints)

    def equal_checkpoints(self, *, but_for: Collection[str]) -> int:
        """Return the number of the run's checkpoints that differ in no bit, except in Python values at these places."""
        found = self.comparison.checkpoints.values() if self.comparison is not None else ()
        return sum(
            all(each.is_unused or (each.what == "value" and without_numbers(each.name) in but_for) for each in one) for one in found
        )

    @property
    def equal_variables(self) -> int:
        """The number of variables that are equal."""
        return self.variables - len(self.differing) - (self.comparison.differing_tensors if self.comparison is not None else 0)

    def compare(self, other: VerifiedRun) -> None:
        """Compare with another run. Variables that only one of them has are left out: they were not in use any more."""
        self.comparison = compare_runs(ComparedRun.at(other.journal), ComparedRun.at(self.journal))
        self.variables += self.comparison.tensors
        for of, digests in other.states.items():
            mine = self.states.get(of, {})
            common = [key for key in digests if key in mine]
            self.variables += len(common)
            self.differing += [f"{key} at the end of {of}" for key in common if mine[key] != digests[key]]

    def compare_outputs(self, whole: VerifiedRun, again: VerifiedRun, where: str = "after the resume") -> None:
        """Compare output since the last resume, and files, without numbers and files that differ in two whole runs."""
        timed = timed_fields(whole.output, again.output)
        self.timed = timed or set()
        cut, place = self.resumed
        start = whole.cuts.get(cut, 0) if cut else whole.began
        if timed is not None and (not cut or cut in whole.cuts):
            mine = self.output.encode()[place if cut else self.began :].decode(errors="replace")
            reference = whole.output.encode()[start:].decode(errors="replace")
            self.lines = reference.count("\n")
            difference = first_difference(reference, mine, timed, where)
            self.differing_output += [f"output: {difference}"] if difference is not None else []
        self.compare_files(whole, again)

    def is_of_chance(self, other: VerifiedRun) -> bool:
        """Return True if another run of the same kind prints something else, or writes other files."""
        mine, its = (
            {name: each for name, each in (run.files or {}).items() if name not in self.unstable_files} for run in (self, other)
        )
        return mine != its or first_difference(self.output, other.output, self.timed) is not None

    def compare_files(self, whole: VerifiedRun, again: VerifiedRun) -> None:
        """Compare the files written, except those that differ between two whole runs."""
        if self.files is not None and whole.files is not None and again.files is not None:
            names = sorted({*self.files, *whole.files})
            both = {*whole.files, *again.files}
            one_sided = {without_numbers(name) for name in both if (name in whole.files) != (name in again.files)}
            self.unstable_files = [
                name
                for name in names
                if whole.files.get(name) != again.files.get(name)
                or ((name in whole.files) != (name in self.files) and without_numbers(name) in one_sided)
            ]
            differing = [name for name in names if self.files.get(name) != whole.files.get(name)]
            self.differing_output += [f"file {name}" for name in differing if name not in self.unstable_files]


def without_numbers(path: str) -> str:
    """Return the path of a value or a file without numbers: two readings of a clock may be equal by chance."""
    return re.sub(r"\d+", "#", path)


class ComparedRun(msgspec.Struct, frozen=True):
    """The records of one run: the digest of each batch, and checkpoints by cursor."""

    place: Path
    batches: dict[Address, bytes]
    checkpoints: dict[str, Path]

    @classmethod
    def at(cls, place: Path) -> ComparedRun:
        """Return the run of a journal, or the newest run of a home, or a single checkpoint. Raises StoreError."""
        entry = parse_name(place)
        if entry is not None and place.is_file():
            return cls(place, {}, {_key(entry): place})
        journal = place
        if place.is_dir():
            entries = Catalogue(place).entries()
            programs = sorted({entry.program for entry in entries})
            if len(programs) != 1:
                raise StoreError(
                    f"{str(place)!r} holds checkpoints of {len(programs)} programs: {', '.join(programs) or 'none'}",
                    "give a folder with those of one program, or the PROGRAM-rRUN.journal of the run",
                )
            journal = Catalogue(place).journal(programs[0], entries[-1].run)
        if not journal.is_file() or journal.suffix != ".journal":
            raise StoreError(f"no run at {str(place)!r}", "give a checkpoint home, a PROGRAM-rRUN.journal in one, or a checkpoint")
        program, _, number = journal.stem.rpartition("-r")
        mine = [entry for entry in Catalogue(journal.parent).entries() if (entry.program, str(entry.run)) == (program, number)]
        return cls(place, read_batches(journal), {_key(entry): entry.path for entry in mine})


def _key(entry: Entry) -> str:
    return f"{entry.cursor}" if entry.cursor.cut != "end" else f"{entry.cursor}{_END}"


class Comparison(msgspec.Struct, frozen=True):
    """The comparison of two runs."""

    batches: int
    """The number of batches of which both have digests."""
    first_batch: str | None
    """Cursor of the first batch whose digests differ."""
    checkpoints: dict[str, list[Difference]]
    """The differences, by cursor, in each checkpoint that both have."""
    tensors: int = 0
    """The number of tensors that are leaves of Python objects, in the checkpoints at ends of loops that both have."""

    @property
    def differing_tensors(self) -> int:
        """The number of tensors at the ends of loops that differ."""
        found = [each for key, differences in self.checkpoints.items() if key.endswith(_END) for each in differences]
        return min(self.tensors, sum(each.what == "tensor" for each in found))

    @property
    def is_equal(self) -> bool:
        """True if nothing differs."""
        return self.first_batch is None and not any(self.checkpoints.values())


def compare_runs(one: ComparedRun, other: ComparedRun) -> Comparison:
    """Return the comparison of two runs."""
    common = sorted(one.batches.keys() & other.batches.keys())
    first = next((str(Cursor(*address)) for address in common if one.batches[address] != other.batches[address]), None)
    files = {key: (path, other.checkpoints[key]) for key, path in one.checkpoints.items() if key in other.checkpoints}
    if not common and not files and len(one.checkpoints) == len(other.checkpoints) == 1:  # two files
        [(key, path)], [(other_key, other_path)] = one.checkpoints.items(), other.checkpoints.items()
        files = {f"{key} against {other_key}": (path, other_path)}
    checkpoints, tensors = {}, 0
    for key, (path, other_path) in files.items():
        snapshot = read(path)
        checkpoints[key] = compare(snapshot, read(other_path))
        tensors += len(tensors_of(snapshot)) - len(snapshot.tensors) if key.endswith(_END) else 0
    return Comparison(len(common), first, checkpoints, tensors)


def described(found: Comparison, most: int = 8) -> list[str]:
    """Return a comparison as lines of text, with `most` differences at most."""
    lines = []
    if found.batches:
        equal = "all equal" if found.first_batch is None else f"they part at {found.first_batch}"
        lines.append(f"batches     {found.batches} in common, {equal}")
    keys = list(found.checkpoints)
    first = next((number for number, key in enumerate(keys) if found.checkpoints[key]), len(keys))
    if first > _MOST_EQUAL:
        lines.append(f"checkpoints {keys[0]} to {keys[first - 1]}: {first}, all equal to the bit")
    else:
        lines += [f"checkpoint  {key}: equal to the bit" for key in keys[:first]]
    for key in keys[first : first + 1]:
        differences = found.checkpoints[key]
        lines.append(f"checkpoint  {key}: {len(differences)} values differ")
        lines += [f"  {difference.what} {difference}" for difference in differences[:most]]
        if len(differences) > most:
            lines.append(f"  and {len(differences) - most} more: --json lists them")
    later = keys[first + 1 :]
    if later:
        differing = sum(bool(found.checkpoints[key]) for key in later)
        lines.append(f"and {differing} of the {len(later)} later checkpoints in common, up to {later[-1]}")
    return lines
