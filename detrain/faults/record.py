"""The record of one fault: the change, its place, the changed values, and the steps that followed.

JSON; a replay needs only this and the program.
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
    """Digest (xxh3-128, hex) of all variables after the step."""
    series: dict[str, float | str]
    """Loss and metrics. Values that are not finite are text."""
    outputs: str = ""
    """Of a forward pass: the digest of its results."""


class Element(msgspec.Struct, frozen=True):
    """One element that the fault has changed: its index in the operand, and its bit patterns in hexadecimal."""

    position: tuple[int, ...]
    golden: str
    injected: str


class FaultRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A fault that was done, with its effects."""

    format: int = FORMAT
    program: str
    arguments: tuple[str, ...]
    sources: dict[str, str]
    """Digest of each source file, by name."""
    environment: dict[str, str]
    model: str
    seed: int | None
    """The seed that drew the fault; None for a fault that was read from a file."""
    experiment: Experiment
    """The fault, its place and its steps; its log is not a part of the record."""
    elements: tuple[Element, ...]
    elements_digest: str
    """Digest of the bit patterns of all elements, golden and injected."""
    fired: int
    """Number of steps in which the fault was put in."""
    missed: tuple[Address, ...] = ()
    """Steps of a permanent fault in which its site did not run, or had another shape."""
    steps: tuple[Step, ...]
    end: str
    is_unarmed_equal: bool = True
    """True if the golden run that decided the outcome is that of the bare program; else that run has the site in place,
    never armed."""
    outcome: str = ""
    thresholds: Thresholds = Thresholds()
    """The numbers in the outcome's definition."""
    alarm: Alarm | None = None
    """The guard's first alarm, if the run had a guard and it gave one."""
    corruptions: Corruptions | None = None
    """Of inference: numbers of corrupted inputs in the steps from the fault on."""
    digest: str = ""
    """Digest of all other fields (xxh3-128, hex); empty in records of earlier versions."""

    def signed(self) -> FaultRecord:
        """Return the record with its digest."""
        return msgspec.structs.replace(self, digest=_digest(msgspec.json.encode(self)))


def _digest(data: bytes) -> str:
    """Return the digest of a record's JSON, without its `digest`; fields that the JSON lacks do not count."""
    fields = msgspec.json.decode(data)
    fields.pop("digest", None)
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode(fields, order="sorted"))


def is_as_written(path: Path) -> bool:
    """Return whether a file, which `read_record` accepts, is unchanged since it was written; True for older records
    without a digest.
    """
    data = path.read_bytes()
    return msgspec.json.decode(data).get("digest", "") in ("", _digest(data))


def read_record(path: Path) -> FaultRecord:
    """Read a record. Raises FaultInvalid for a missing file, and for one that is no record of this format."""
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
    """Write a record as indented JSON, which people can read, too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")
