"""`detrain diff`: where two runs part: the first batch, and the first checkpoint and tensor, that differ."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import msgspec

from detrain.base.cursor import Cursor
from detrain.base.errors import StoreError, UsageError
from detrain.cli.options import PROGRAM_SETTINGS
from detrain.launcher.program import Program
from detrain.store import Catalogue, Entry, read
from detrain.store.catalogue import parse_name
from detrain.store.journal import Address, read_batches
from detrain.verify.state_diff import Difference, compare


@dataclass(frozen=True)
class Run:
    """What one run has left: the digest of each batch, and checkpoints by cursor."""

    place: Path
    batches: dict[Address, bytes]
    checkpoints: dict[str, Path]

    @classmethod
    def at(cls, place: Path) -> Run:
        """Return the run of a journal, or the newest of a checkpoint home, or a checkpoint alone. Raises StoreError."""
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
    return f"{entry.cursor}" if entry.cursor.cut != "end" else f"{entry.cursor} (end)"


class Comparison(msgspec.Struct, frozen=True):
    """What two runs have in common, and where they part."""

    batches: int
    """Batches that both have digests of."""
    first_batch: str | None
    """Cursor of the first batch whose digests differ."""
    checkpoints: dict[str, list[Difference]]
    """Differences by cursor, of the checkpoints that both have."""

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs."""
        return self.first_batch is None and not any(self.checkpoints.values())


def compare_runs(one: Run, other: Run) -> Comparison:
    """Return the comparison of two runs."""
    common = sorted(one.batches.keys() & other.batches.keys())
    first = next((str(Cursor(*address)) for address in common if one.batches[address] != other.batches[address]), None)
    files = {key: (path, other.checkpoints[key]) for key, path in one.checkpoints.items() if key in other.checkpoints}
    if not common and not files and len(one.checkpoints) == len(other.checkpoints) == 1:  # two files, of whatever cursors
        [(key, path)], [(other_key, other_path)] = one.checkpoints.items(), other.checkpoints.items()
        files = {f"{key} against {other_key}": (path, other_path)}
    return Comparison(len(common), first, {key: compare(read(a), read(b)) for key, (a, b) in files.items()})


@click.command(context_settings=PROGRAM_SETTINGS)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--bisect", "is_bisect", is_flag=True, help="Run PROGRAM again, and name the step and the op in which they part.")
@click.argument("one", metavar="RUN_A", type=click.Path(path_type=Path))
@click.argument("other", metavar="RUN_B", type=click.Path(path_type=Path))
@click.argument("program", metavar="[PROGRAM ARGS…]", nargs=-1, type=click.UNPROCESSED)
def command(as_json: bool, is_bisect: bool, one: Path, other: Path, program: tuple[str, ...]) -> int:
    """Compare two runs: the first batch, and the first checkpoint and tensors, that differ. Exit status 1 if something does.

    RUN is a checkpoint home (its newest run), a journal in one, or a checkpoint.

    \b
    Example:
      detrain diff ckpt_monday ckpt_tuesday
      detrain diff --bisect ckpt_monday ckpt_tuesday train.py --epochs 3
    """
    if is_bisect != bool(program):
        raise UsageError("--bisect and PROGRAM go together", "for example `detrain diff --bisect ckpt_a ckpt_b train.py`")
    found = compare_runs(Run.at(one), Run.at(other))
    if not found.batches and not found.checkpoints:
        raise StoreError(f"{str(one)!r} and {str(other)!r} have no batch or checkpoint in common", "give two runs of one program")
    if as_json:
        click.echo(json.dumps({**msgspec.to_builtins(found), "equal": found.is_equal}, indent=2))
    else:
        for line in described(found):
            click.echo(line)
    if is_bisect and not found.is_equal:
        _bisect(one, other, found, program)
    return 0 if found.is_equal else 1


def _bisect(one: Path, other: Path, found: Comparison, program: tuple[str, ...]) -> None:
    from detrain.campaign.subject import Subject
    from detrain.verify.bisect import bisect
    from detrain.verify.bisect import described as in_lines

    subject = Subject(Program.find(program[0], is_module=False), program[1:], one if one.is_dir() else one.parent)
    for line in in_lines(bisect(Run.at(one), Run.at(other), found, subject)):
        click.echo(line)


def described(found: Comparison, most: int = 8) -> list[str]:
    """Return a comparison in lines."""
    lines = []
    if found.batches:
        equal = "all equal" if found.first_batch is None else f"they part at {found.first_batch}"
        lines.append(f"batches     {found.batches} in common, {equal}")
    for key, differences in found.checkpoints.items():
        lines.append(f"checkpoint  {key}: {'equal to the bit' if not differences else f'{len(differences)} values differ'}")
        lines += [f"  {difference.what} {difference}" for difference in differences[:most]]
        if len(differences) > most:
            lines.append(f"  and {len(differences) - most} more")
    return lines


def summary(found: Comparison) -> dict[str, Any]:
    """Return a comparison in a few numbers."""
    return {
        "batches": found.batches,
        "first_batch": found.first_batch,
        "checkpoints": len(found.checkpoints),
        "differing": sum(map(len, found.checkpoints.values())),
    }
