"""The address of a moment of a training run: (phase, epoch, batch), each counted from 0, and its place in the loop."""

from __future__ import annotations

import re
from typing import Final, Literal

import msgspec

from detrain.base.errors import FaultInvalid

Cut = Literal["epoch", "load", "batch", "end"]
"""The place of a cut in the loop: `epoch` at record_epoch, `load` before a batch is loaded, `batch` at record_batch (a
probe inserted by hand, without the loop wrapper), `end` when the epoch loop has run out."""

Address = tuple[int, int, int]
"""(phase, epoch, batch) alone."""

_ORDER: Final = {"epoch": 0, "load": 1, "batch": 2, "end": 3}


class FileState(msgspec.Struct, frozen=True):
    """A file at a cut: its length in bytes, and the result of its object's `tell` if it is open."""

    size: int
    position: int | None = None


FETCHED_IN_BODY: Final = object()
"""Stands for a batch that the body of its loop will load."""
NOTHING: Final = object()
"""Stands for no batch: the loader must be asked."""


class Cursor(msgspec.Struct, frozen=True):
    """(phase, epoch, batch): a phase is one entry into an epoch loop. detrain counts each itself, and ignores the
    program's numbers.

    At the cuts `epoch` and `end`, `batch` is 0; at `end`, `epoch` is the number of epochs done.
    """

    phase: int
    epoch: int
    batch: int
    cut: Cut = "epoch"

    @property
    def address(self) -> Address:
        """Its (phase, epoch, batch) alone."""
        return self.phase, self.epoch, self.batch

    @property
    def is_inside(self) -> bool:
        """Whether the cursor lies inside of an epoch."""
        return self.cut in ("load", "batch")

    def key(self) -> tuple[int, int, int, int, int]:
        """Return a sort key: the order in which a run reaches its cuts. For one batch, `load` comes before `batch`."""
        stage = _ORDER[self.cut]
        return (self.phase, self.epoch, min(stage, 1) if self.cut != "end" else stage, self.batch, stage)

    def __str__(self) -> str:
        short = f"{self.epoch}:{self.batch}"
        return f"{self.phase}/{short}" if self.phase else short


def parse_cursor(text: str) -> Address:
    """Return the (phase, epoch, batch) of a text `3:17`, or `1/3:17` with a phase. Raises FaultInvalid."""
    match = re.fullmatch(r"(?:(\d+)/)?(\d+):(\d+)", text)
    if match is None:
        raise FaultInvalid(f"{text!r} is not a step", "write it as EPOCH:BATCH, both from 0: 3:17 (or PHASE/EPOCH:BATCH)")
    return int(match[1] or 0), int(match[2]), int(match[3])


def written(cursor: Address) -> str:
    """Return a cursor as a text that `parse_cursor` reads."""
    return (f"{cursor[0]}/" if cursor[0] else "") + f"{cursor[1]}:{cursor[2]}"
