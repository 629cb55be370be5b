"""What two runs have left, compared: the first batch, and the first checkpoint and tensor, that differ."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from detrain.base.cursor import Address, Cursor
from detrain.base.errors import StoreError
from detrain.export.object_tensors import tensors_of
from detrain.store import Catalogue, Entry, read
from detrain.store.catalogue import parse_name
from detrain.store.journal import read_batches
from detrain.verify.state_diff import Difference, compare

_MOST_EQUAL: Final = 3
"""Equal checkpoints that are listed one by one."""

_END: Final = " (end)"
"""Ends the key of a checkpoint at the end of a loop."""


@dataclass(frozen=True)
class ComparedRun:
    """What one run has left: the digest of each batch, and checkpoints by cursor."""

    place: Path
    batches: dict[Address, bytes]
    checkpoints: dict[str, Path]

    @classmethod
    def at(cls, place: Path) -> ComparedRun:
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
    return f"{entry.cursor}" if entry.cursor.cut != "end" else f"{entry.cursor}{_END}"


class Comparison(msgspec.Struct, frozen=True):
    """What two runs have in common, and where they part."""

    batches: int
    """Batches that both have digests of."""
    first_batch: str | None
    """Cursor of the first batch whose digests differ."""
    checkpoints: dict[str, list[Difference]]
    """Differences by cursor, of the checkpoints that both have."""
    tensors: int = 0
    """Tensors that are leaves of Python objects, in the checkpoints at the ends of loops that both have."""

    @property
    def differing_tensors(self) -> int:
        """How many of the tensors at the ends of loops differ."""
        found = [each for key, differences in self.checkpoints.items() if key.endswith(_END) for each in differences]
        return min(self.tensors, sum(each.what == "tensor" for each in found))

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs."""
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
    """Return a comparison in lines."""
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
