"""A campaign with the trials of a list of SASSIFI's or NVBitFI's, matched to our profile."""

from __future__ import annotations

from functools import cached_property
from typing import Final

import msgspec
import numpy as np
import xxhash

from detrain.base.errors import FaultInvalid
from detrain.faults.bits import DType, dtype_named
from detrain.faults.drawing import injection
from detrain.faults.exchange.kernels import Instruction
from detrain.faults.experiment import Experiment, Injection
from detrain.faults.plan import Kind, Operand, Plan
from detrain.faults.population.address import ADDRESS_MODELS, masks, misplaced
from detrain.faults.population.facts import Mode, Planned, Told, planned
from detrain.faults.population.groups import SASSIFI_MODELS

WARP: Final = 32
_FLIP, _PAIR, _RANDOM, _ZERO = range(4)


class ListLine(msgspec.Struct, frozen=True):
    """One injection of a list."""

    kernel: str
    count: int
    number: int
    operand_seed: float
    bit_seed: float


class ListedPlan(msgspec.Struct, frozen=True, dict=True):
    """The trials of a list; all have the same weight."""

    profile_digest: str
    group: int | None
    """SASSIFI's group, for the rows; None: each output's own group."""
    model: int
    """SASSIFI's bit-flip model, 0 to 7."""
    mode: Mode
    instructions: tuple[Instruction, ...]
    lines: tuple[ListLine, ...]
    after: int | None = None
    least: int = 0

    @property
    def count(self) -> int:
        """How many trials there are."""
        return len(self.lines)

    @cached_property
    def digest(self) -> str:
        """Digest of all that decides about trials (xxh3-128, hex)."""
        parts = self.profile_digest, self.group, self.model, self.mode, self.lines, self.after, self.least
        return xxhash.xxh3_128_hexdigest(msgspec.json.encode(parts))

    def trial(self, number: int) -> Planned:
        """Return the facts of a trial, and its experiment.

        There is no injection if nothing is run (`told`). Raises FaultInvalid for a number that is not in the list.
        """
        if not 0 <= number < self.count:
            raise FaultInvalid(f"there is no trial {number} in a list of {self.count}", "numbers are from 0")
        one, line = self.instructions[number], self.lines[number]
        drawn = self._drawn(one, line.bit_seed)
        facts, experiment = planned(
            number,
            one.output.site,
            drawn or _unchanged(one),
            one.at,
            one.occurrence,
            model=SASSIFI_MODELS[self.model],
            after=self.after,
            least=self.least,
            group=int(one.output.group) if self.group is None else self.group,
            mode=self.mode,
            stratum="listed",
        )
        return facts, msgspec.structs.replace(experiment, injection=None if one.is_dead else drawn)

    def _drawn(self, one: Instruction, seed: float) -> Injection | None:
        """Return the fault of a line; None if its address is outside of the tensor."""
        if self.mode == "IOA":
            return _address(one, self.model, seed)
        return injection(one.output.site, _value(one, self.model, seed), Operand.OUTPUT, one.replica)

    def told(self, number: int) -> Told:
        """Return a trial's result if it is known without a run: its address is outside, or its element never read."""
        if self.instructions[number].is_dead:
            return "never read"
        return "address outside" if self.trial(number)[1].injection is None else ""

    def again(self, number: int, first: Experiment) -> Planned | None:
        """Return None: a fault of a list is never drawn again."""
        return None


def _unchanged(one: Instruction) -> Injection:
    """Return a fault that leaves its element as it is."""
    keeps = Plan(np.array([one.element], np.int64), Kind.XOR, np.zeros(1, dtype_named(one.output.dtype).unsigned))
    return injection(one.output.site, keeps, Operand.OUTPUT, one.replica)


def _value(one: Instruction, model: int, seed: float) -> Plan:
    """Return the change that a line makes to its element, or to the aligned 32 elements around it."""
    what, dtype = model % 4, dtype_named(one.output.dtype)
    positions = np.array([one.element], np.int64)
    if model >= len(SASSIFI_MODELS) // 2:
        first = one.element // WARP * WARP
        positions = np.arange(first, min(first + WARP, one.output.elements), dtype=np.int64)
    pattern = pattern_of(seed, what, dtype)
    kind = Kind.XOR if what in (_FLIP, _PAIR) else Kind.SET
    return Plan(positions, kind, np.full(len(positions), pattern, dtype.unsigned))


def pattern_of(seed: float, what: int, dtype: DType) -> int:
    """Return a seed's mask or value, for a seed in [0, 1): bit ⌊w · seed⌋, pair at ⌊(w - 1) · seed⌋, ⌊2^w · seed⌋, 0.

    Raises FaultInvalid for a seed outside, and for a pair of bits of a bool.
    """
    if not 0 <= seed < 1:
        raise FaultInvalid(f"a seed of {seed}", "seeds are in [0, 1)")
    if what == _ZERO:
        return 0
    if what == _RANDOM:
        return int(seed * (1 << dtype.width))
    places = dtype.width - (what == _PAIR)
    if places < 1:
        raise FaultInvalid(f"a {dtype.name} has no two adjacent bits", "leave the line out, or choose another group")
    return (3 if what == _PAIR else 1) << int(places * seed)


def seed_of(bits: tuple[int, ...], pattern: int, what: int, dtype: DType) -> float:
    """Return a seed that gives the bits or the pattern, as exactly as a float can."""
    if what in (_FLIP, _PAIR):
        places = max(dtype.width - (what == _PAIR), 1)
        return (min(bits, default=0) + 0.5) / places
    return min((pattern + 0.5) / (1 << dtype.width), 1 - 2**-53) if what == _RANDOM else 0.5


def _address(one: Instruction, model: int, seed: float) -> Injection | None:
    """Return the fault of a wrong address; None if that is outside of the tensor."""
    bits = ADDRESS_MODELS.get(SASSIFI_MODELS[model])
    if bits is None:
        raise FaultInvalid(f"{SASSIFI_MODELS[model]} is no model of addresses", f"give one of {', '.join(ADDRESS_MODELS)}")
    each = masks(one.output.elements, bits)
    if not each or not 0 <= seed < 1:
        raise FaultInvalid(f"{one.output.site.name!r} has no address bit for a seed of {seed}", "leave the line out")
    landed = one.element ^ each[int(len(each) * seed)]
    if landed >= one.output.elements:
        return None
    return misplaced(one.output.site, one.element, landed, one.replica)
