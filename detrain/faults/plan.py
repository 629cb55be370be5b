"""A plan: the change that one fault makes to one tensor, stated without the tensor, so that it can be compiled into a
step beforehand.

Every model comes to one bitwise operation for each element, with operands that are drawn on the host; only the device
knows the values that it changes. `Injection.put_into` does the operation in NumPy.
"""

from __future__ import annotations

import enum

import msgspec
import numpy as np

from detrain.base.errors import FaultInvalid
from detrain.faults.bits import Patterns, Positions


class Operand(enum.StrEnum):
    """The tensor of an op that is hit."""

    INPUT = "input"
    WEIGHT = "weight"
    OUTPUT = "output"
    INDEX = "index"  # of a gather: the places that it reads


class Kind(enum.StrEnum):
    """The new value of an element, by the fault's operand."""

    XOR = "xor"  # golden ^ operand
    SET = "set"  # operand
    COPY = "copy"  # the golden value at position `operand` of the same tensor
    AND = "and"  # golden & operand
    OR = "or"  # golden | operand


class Plan(msgspec.Struct, frozen=True, eq=False):
    """The change of a fault: `operands` [n] for the elements at `positions` [n], flat and ascending.

    `operands` are patterns of the tensor's dtype, or, for Kind.COPY, positions (int64). Raises FaultInvalid if they do
    not fit each other.
    """

    positions: Positions
    kind: Kind
    operands: Patterns | Positions

    def __post_init__(self) -> None:
        if self.positions.ndim != 1 or self.positions.shape != self.operands.shape:
            raise FaultInvalid(
                f"a fault with {self.positions.size} positions and {self.operands.size} values", "give one value a position"
            )
        if self.positions.dtype != np.int64 or (self.operands.dtype.kind == "u") == (self.kind is Kind.COPY):
            raise FaultInvalid(f"a fault of kind {self.kind.value!r} with operands of dtype {self.operands.dtype}")
        if np.any(np.diff(self.positions) <= 0):
            raise FaultInvalid("the positions of a fault are not ascending", "sort them, and give each element once")

    def check(self, numel: int) -> None:
        """Raise FaultInvalid unless every position is inside of a tensor of `numel` elements."""
        for positions in (self.positions, self.operands) if self.kind is Kind.COPY else (self.positions,):
            outside = positions[(positions < 0) | (positions >= numel)]
            if len(outside):
                raise FaultInvalid(f"position {int(outside[0])} is outside of a tensor of {numel} elements")


def trial_rng(seed: int, trial: int) -> np.random.Generator:
    """Return the random generator of a campaign's trial. It is counter-based: no trial depends on another, or on the
    machine.

    Both numbers are from 0 to 2^64 - 1. Raises FaultInvalid otherwise.
    """
    for name, number in (("seed", seed), ("trial", trial)):
        if not 0 <= number < 1 << 64:
            raise FaultInvalid(f"{name} {number} is not in 0 ... 2^64 - 1")
    return np.random.Generator(np.random.Philox(key=np.array([seed, trial], np.uint64)))
