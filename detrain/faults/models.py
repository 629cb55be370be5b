"""The fault models: each chooses elements of a tensor, and their new values.

The eighteen published models are those of He et al. (ISCA 2023). Such a model is the effect of a flip-flop on an
accelerator's results: it hits elements that were in the datapath together, from an aligned start, in the order of the
tensor in memory (flat, row-major).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from difflib import get_close_matches
from math import prod
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

import msgspec
import numpy as np

from detrain.base.errors import FaultInvalid
from detrain.base.installed import entry_points
from detrain.faults.bits import DType, Patterns, Positions
from detrain.faults.plan import Kind, Operand, Plan

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Rng = np.random.Generator
ENTRY_POINTS: Final = "detrain.fault_models"


@runtime_checkable
class FaultModel(Protocol):
    """A kind of fault. Both methods are pure functions of their arguments: the same generator gives the same fault."""

    @property
    def name(self) -> str:
        """The model's name on the command line and in records."""

    @property
    def operand(self) -> Operand:
        """The tensor of an op that the model hits."""

    @property
    def is_limited(self) -> bool:
        """True if only 16 outputs see the fault (detrain.faults.limits), though it hits an input or a weight."""

    def positions(self, shape: tuple[int, ...], rng: Rng) -> Positions:
        """Draw the elements that are hit: flat, row-major, ascending.

        Raises FaultInvalid for a tensor that is too small.
        """

    def plan(self, shape: tuple[int, ...], dtype: DType, rng: Rng) -> Plan:
        """Draw the whole fault.

        Raises FaultInvalid for a tensor that is too small, or a dtype that cannot hold the model's value.
        """


Draw = Callable[[int, int, DType, Rng], tuple[Kind, Patterns | Positions]]
"""Draws the change of elements: gets their number, the tensor's number of elements, its dtype, and a generator."""


class Model(msgspec.Struct, frozen=True):
    """One of detrain's own models: changes `group` consecutive elements, or with `is_long` a run of such groups; `draw`
    draws the change.
    """

    name: str
    operand: Operand
    draw: Draw
    group: int = 1
    is_long: bool = False
    is_limited: bool = False
    is_warp: bool = False
    """True if the group is the aligned one around a drawn element (the last may be shorter), and all of it gets the
    same mask or value, like the threads of a warp that run one instruction."""
    is_lane: bool = False
    """True if every `group`-th element is hit, from a drawn one of the first `group` on, and all get the same mask or
    value: the results of one lane of a vector unit, or of one column of an array of multipliers."""

    def positions(self, shape: tuple[int, ...], rng: Rng) -> Positions:
        """Draw a start uniformly from the groups of the tensor, and for a long run an end from the groups behind it."""
        numel = prod(shape)
        if self.is_warp and numel:
            start = int(rng.integers(numel)) // self.group * self.group
            return np.arange(start, min(start + self.group, numel), dtype=np.int64)
        if self.is_lane and numel >= self.group:
            return np.arange(int(rng.integers(self.group)), numel, self.group, dtype=np.int64)
        groups = numel // self.group
        if not groups:
            raise FaultInvalid(
                f"{self.name} hits {self.group} consecutive elements, and a tensor of shape {list(shape)} has {numel}",
                "choose a larger site, or a model that hits fewer",
            )
        start = int(rng.integers(groups))
        end = int(rng.integers(start + 1, groups + 1)) if self.is_long else start + 1
        return np.arange(start * self.group, end * self.group, dtype=np.int64)

    def plan(self, shape: tuple[int, ...], dtype: DType, rng: Rng) -> Plan:
        """Draw the positions, then the change of each."""
        positions = self.positions(shape, rng)
        is_one = self.is_warp or self.is_lane
        kind, operands = self.draw(1 if is_one else len(positions), prod(shape), dtype, rng)
        return Plan(positions, kind, operands[np.zeros(len(positions), np.int64)] if is_one else operands)


def _flips(bits: int) -> Draw:
    def draw(count: int, numel: int, dtype: DType, rng: Rng) -> tuple[Kind, Patterns]:
        if not 1 <= bits <= dtype.width:
            raise FaultInvalid(f"{bits} bits cannot be flipped in a {dtype.name}, which has {dtype.width}")
        if bits == 1:
            chosen = rng.integers(dtype.width, size=(count, 1))
        else:
            chosen = np.argsort(rng.random((count, dtype.width)), axis=1, kind="stable")[:, :bits]
        return Kind.XOR, _mask(chosen, dtype)

    return draw


def _adjacent(bits: int) -> Draw:
    """Flip `bits` bits beside one another."""

    def draw(count: int, numel: int, dtype: DType, rng: Rng) -> tuple[Kind, Patterns]:
        if not 1 <= bits <= dtype.width:
            raise FaultInvalid(f"{bits} adjacent bits cannot be flipped in a {dtype.name}, which has {dtype.width}")
        first = rng.integers(dtype.width - bits + 1, size=(count, 1))
        return Kind.XOR, _mask(first + np.arange(bits), dtype)

    return draw


def _at_bits(kind: Kind, bits: tuple[int, ...]) -> Draw:
    """Flip (XOR), clear (AND) or set (OR) the named bits."""

    def draw(count: int, numel: int, dtype: DType, rng: Rng) -> tuple[Kind, Patterns]:
        if max(bits) >= dtype.width:
            raise FaultInvalid(f"a {dtype.name} has no bit {max(bits)}", f"its bits are 0 ... {dtype.width - 1}")
        mask = _mask(np.array([bits], np.int64), dtype)
        return kind, np.repeat(~mask if kind is Kind.AND else mask, count)

    return draw


def _mask(bits: Positions, dtype: DType) -> Patterns:
    """Return [n] masks of the bits [n, k]."""
    one = dtype.unsigned.type(1)
    return np.asarray(np.bitwise_or.reduce(one << bits.astype(dtype.unsigned), axis=1))


def _finite(count: int, numel: int, dtype: DType, rng: Rng) -> tuple[Kind, Patterns]:
    """Draw uniformly random patterns; those that are not finite are drawn again."""
    drawn = rng.integers(1 << dtype.width, size=count, dtype=dtype.unsigned)
    while len(bad := np.flatnonzero(~dtype.is_finite(drawn))):
        drawn[bad] = rng.integers(1 << dtype.width, size=len(bad), dtype=dtype.unsigned)
    return Kind.SET, drawn


def _any(count: int, numel: int, dtype: DType, rng: Rng) -> tuple[Kind, Patterns]:
    """Draw uniformly random patterns, also INF and NaN."""
    return Kind.SET, rng.integers(1 << dtype.width, size=count, dtype=dtype.unsigned)


def _elsewhere(count: int, numel: int, dtype: DType, rng: Rng) -> tuple[Kind, Positions]:
    """Draw the positions of the same tensor whose values are copied."""
    return Kind.COPY, rng.integers(numel, size=count, dtype=np.int64)


def _number(number: float) -> Draw:
    def draw(count: int, numel: int, dtype: DType, rng: Rng) -> tuple[Kind, Patterns]:
        return Kind.SET, np.repeat(dtype.patterns([number]), count)

    return draw


def _worst(count: int, numel: int, dtype: DType, rng: Rng) -> tuple[Kind, Patterns]:
    """Draw the artifact's "worst case": numbers uniform on [1e16, 1e18]."""
    return Kind.SET, dtype.patterns(rng.uniform(1e16, 1e18, count))


_IN, _WT, _OUT = Operand.INPUT, Operand.WEIGHT, Operand.OUTPUT

PUBLISHED: Final = {
    model.name: model
    for model in (
        Model("INPUT", _IN, _flips(1)),
        Model("WT", _WT, _flips(1)),
        Model("INPUT_16", _IN, _flips(1), is_limited=True),
        Model("WT_16", _WT, _flips(1), is_limited=True),
        Model("RBFLIP", _OUT, _flips(1)),
        Model("RD", _OUT, _finite),
        Model("RD_CORRECT", _OUT, _elsewhere),
        Model("ZERO", _OUT, _number(0)),
        Model("N16_RD", _OUT, _finite, group=16),
        Model("N16_RD_CORRECT", _OUT, _elsewhere, group=16),
        # An output of these is one of the 16 that are computed together; so a long run consists of such groups.
        Model("RD_GLB", _OUT, _finite, group=16, is_long=True),
        Model("RD_CORRECT_GLB", _OUT, _elsewhere, group=16, is_long=True),
        Model("N64_INPUT", _IN, _elsewhere, group=64),
        Model("N64_WT", _WT, _elsewhere, group=64),
        Model("N64_INPUT_16", _IN, _elsewhere, group=64, is_limited=True),
        Model("N64_WT_16", _WT, _elsewhere, group=64, is_limited=True),
        Model("N64_INPUT_GLB", _IN, _elsewhere, group=64, is_long=True),
        Model("N64_WT_GLB", _WT, _elsewhere, group=64, is_long=True),
    )
}

_SPELLING: Final = re.compile(r"(?P<name>[^:@\s]+)(:(?P<argument>[^:@\s]+))?(@(?P<operand>input|weight|output|index))?")
_OWN: Final = (
    "FLIP:2",
    "ADJ:2",
    "RANDOM",
    "N32_FLIP:1",
    "L16_STUCK1:30",
    "BIT:30",
    "STUCK0:30",
    "STUCK1:30",
    "SET:1e18",
    "RD:worst",
)
_WARP: Final = "N32_"
_LANE: Final = re.compile(r"L([1-9]\d{0,6})_")
_OF_WARPS: Final = ("FLIP", "ADJ", "RANDOM", "ZERO")


def model_named(text: str) -> FaultModel:
    """Return the model that a user names.

    `RD` and the other published names; `RD:worst`, any of these with values of the worst case; `FLIP:n`, n random bits
    of one element flipped (default 1); `ADJ:n`, n adjacent ones (default 2); `RANDOM`, any pattern; `BIT:30,22`, the
    named bits flipped; `STUCK0:30` and `STUCK1:30`, cleared and set; `SET:1e18`, a number. `N32_` before FLIP, ADJ,
    RANDOM and ZERO gives 32 elements the same change; `L16_` before FLIP, ADJ, RANDOM, BIT, STUCK and SET hits one lane
    of 16: each 16th element. These, from FLIP on, hit the output, or the operand behind `@`: `FLIP:2@weight`.
    Raises FaultInvalid.
    """
    spelled = _SPELLING.fullmatch(text)
    if spelled is None:
        raise FaultInvalid(f"{text!r} is not a fault model", f"write it as one of {', '.join((*PUBLISHED, *_OWN))}")
    name, argument = spelled["name"], spelled["argument"]
    of_warp = name.removeprefix(_WARP)
    if of_warp != name and of_warp in _OF_WARPS and not (of_warp == "ZERO" and argument):
        many = _number(0) if of_warp == "ZERO" else _own_draw(text, of_warp, argument)
        assert many is not None
        return Model(text, Operand(spelled["operand"] or Operand.OUTPUT), many, group=32, is_warp=True)
    lane = _LANE.match(name)
    if lane is not None and (draw := _own_draw(text, name[lane.end() :], argument)):
        return Model(text, Operand(spelled["operand"] or Operand.OUTPUT), draw, group=int(lane[1]), is_lane=True)
    if draw := _own_draw(text, name, argument):
        return Model(text, Operand(spelled["operand"] or Operand.OUTPUT), draw)
    known = {**_installed(), **PUBLISHED}
    if name not in known:
        near = get_close_matches(name.upper(), known, n=3)
        hint = f"near it: {', '.join(near)}" if near else f"there are {', '.join((*known, *_OWN))}"
        raise FaultInvalid(f"there is no fault model {name!r}", hint)
    model = known[name]
    if spelled["operand"] not in (None, model.operand.value):
        raise FaultInvalid(f"{name} hits the {model.operand.value}, not the {spelled['operand']}")
    if argument is None:
        return model
    if argument != "worst" or not isinstance(model, Model):
        raise FaultInvalid(f"{name} takes no {argument!r}", "a published model takes `worst`: values of the worst case")
    return msgspec.structs.replace(model, name=text, draw=_worst)


def _own_draw(text: str, name: str, argument: str | None) -> Draw | None:
    try:
        match name:
            case "FLIP":
                return _flips(int(argument or "1"))
            case "ADJ":
                return _adjacent(int(argument or "2"))
            case "RANDOM" if argument is None:
                return _any
            case "BIT" | "STUCK0" | "STUCK1":
                bits = tuple(int(bit) for bit in (argument or "").split(","))
                if min(bits) < 0:
                    raise ValueError("negative")
                return _at_bits({"BIT": Kind.XOR, "STUCK0": Kind.AND, "STUCK1": Kind.OR}[name], bits)
            case "SET":
                return _number(float(argument or ""))
    except ValueError as error:
        raise FaultInvalid(f"{text!r} is not a fault model", f"write it as one of {', '.join(_OWN)}") from error
    return None


def _installed() -> dict[str, FaultModel]:
    """Return the models of other packages, by the names of their entry points: classes, called without arguments."""
    return {point.name: _loaded(point) for point in entry_points(ENTRY_POINTS)}


def _loaded(point: EntryPoint) -> FaultModel:
    try:
        model = point.load()()
    except Exception as error:  # a stranger's code: any error is reported with the model's name
        raise FaultInvalid(f"the fault model {point.name!r} of {point.value} cannot be made: {error!r}") from error
    if not isinstance(model, FaultModel):
        raise FaultInvalid(f"the fault model {point.name!r} of {point.value} is a {type(model).__name__}, not a FaultModel")
    return model
