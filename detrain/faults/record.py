"""The record of one fault: what was done, where, on what, and what followed.

JSON, with all that a replay needs but the program.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
import xxhash

from detrain.base.cursor import Address
from detrain.base.errors import FaultInvalid
from detrain.faults.experiment import Alarm, Experiment
from detrain.faults.outcome_classes import Thresholds
from detrain.faults.predictions import Corruptions

FORMAT: Final = 1


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """One step of the faulty run, from the fault on."""

    at: Address
    state: str
    """Digest (xxh3-128, hex) of all variables after it."""
    series: dict[str, float | str]
    """Loss and metrics. What is not finite is text."""
    outputs: str = ""
    """Of a forward pass: the digest of what it gives."""


class Element(msgspec.Struct, frozen=True):
    """One element that the fault has changed: index into the operand, bit patterns in hexadecimal."""

    position: tuple[int, ...]
    golden: str
    injected: str


class FaultRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A fault that has been done."""

    format: int = FORMAT
    program: str
    arguments: tuple[str, ...]
    sources: dict[str, str]
    """Digest of each source file, by name."""
    environment: dict[str, str]
    model: str
    seed: int | None
    """Of the drawing; None for a fault that was read from a file."""
    experiment: Experiment
    """What was put where and when; its log is not a part of the record."""
    elements: tuple[Element, ...]
    elements_digest: str
    """Digest of the bit patterns of all elements, golden and injected."""
    fired: int
    """In how many steps it was put in."""
    missed: tuple[Address, ...] = ()
    """Steps of a permanent fault in which its site did not run, or had another shape."""
    steps: tuple[Step, ...]
    end: str
    is_unarmed_equal: bool = True
    """Whether the golden run, which the outcome is by, is that of the bare program; else it has the site in place,
    never armed."""
    outcome: str = ""
    thresholds: Thresholds = Thresholds()
    """What the outcome's definition has for numbers."""
    alarm: Alarm | None = None
    """What the guard saw first, if one was there."""
    corruptions: Corruptions | None = None
    """Of inference: to how many inputs of the steps from the fault on it has done what."""
    digest: str = ""
    """Of all the rest (xxh3-128, hex); empty in records of earlier versions."""

    def signed(self) -> FaultRecord:
        """Return it with its digest."""
        return msgspec.structs.replace(self, digest=_digest(msgspec.json.encode(self)))


def _digest(data: bytes) -> str:
    """Return the digest of a record's JSON, its own left out; fields that it has not are no part of it."""
    fields = msgspec.json.decode(data)
    fields.pop("digest", None)
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode(fields, order="sorted"))


def is_as_written(path: Path) -> bool:
    """Return whether nothing has been changed in a file since it was written, which is a record as `read_record` knows
    it.
    """
    data = path.read_bytes()
    return msgspec.json.decode(data).get("digest", "") in ("", _digest(data))


def read_record(path: Path) -> FaultRecord:
    """Read a record. Raises FaultInvalid for anything else."""
    if not path.is_file():
        raise FaultInvalid(f"no fault record at {str(path)!r}", "give one that `detrain inject` has written")
    try:
        record = msgspec.json.decode(path.read_bytes(), type=FaultRecord)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FaultInvalid(f"{str(path)!r} is no fault record: {error}", "give one that `detrain inject` has written") from error
    if record.format != FORMAT:
        todo = "install a newer detrain" if record.format > FORMAT else "give one that `detrain inject` has written"
        raise FaultInvalid(f"{str(path)!r} has format {record.format}, this detrain reads {FORMAT}", todo)
    return record


def write_record(path: Path, record: FaultRecord) -> None:
    """Write a record, for people to read as well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")
