"""What is known of a trial before it is run: the part of its row that the plan gives."""

from __future__ import annotations

import msgspec

from detrain.faults.population.trial_row import Mode


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of `TrialRow`, by the same names."""

    number: int
    stratum: str
    weight: float
    mode: Mode
    group: int
    model: str
    site: str
    layer: str
    op: str
    stage: str
    operand: str
    dtype: str
    phase: int
    epoch: int
    batch: int
    occurrence: int
    replica: int
    position: int
    elements: int
