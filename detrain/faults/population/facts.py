"""What is known of a trial before it is run: the part of its row that the plan gives."""

from __future__ import annotations

from typing import Literal

import msgspec

Mode = Literal["IOV", "IOA", "RF"]
"""SASSIFI's modes: the value of an instruction, the address that it writes to, a register file (memory here)."""


Told = Literal["", "address outside", "never read"]
"""What is known of a trial without running it: nothing; its address is behind the tensor's end, and what a device does
there nothing here can tell; nothing depends on what it hits, so that it is masked for certain."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What the plan knows of one trial."""

    number: int
    """Index in the plan, from 0."""
    stratum: str
    weight: float
    """How many times as likely the trial is in the population as in the drawing (f / q); 1 where they are the same."""
    mode: Mode
    group: int
    """SASSIFI's instruction group, 0 to 13; -1 for RF."""
    model: str
    site: str
    """Of RF: the variable's, `memory/` and its name."""
    layer: str
    op: str
    stage: str
    """forward, backward, optimizer; of RF the class of memory: weight, slot, statistic, stream, batch."""
    operand: str
    dtype: str
    phase: int
    epoch: int
    batch: int
    occurrence: int
    replica: int
    position: int
    """Flat row-major index of the first element that is hit; in mode IOA of the one that is not written."""
    elements: int
    """How many are hit."""
