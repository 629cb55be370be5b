"""What one trial does: the fault as numbers to be put at a site, when, and how long the run goes on. Drawn before the
run starts.

A value at a position becomes `(source & keep) ^ flip`, all on bit patterns, where `source` is the value at another
position of the same tensor, or at the same one. Flips, stuck bits, values that are set and values that are copied are
all of this form, so the compiled step knows one operation alone. Nothing is ever multiplied or added: other elements
keep their bits, INF and NaN too.
"""

from __future__ import annotations

import io
import os
from math import prod
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from detrain.base.cursor import Address, written
from detrain.base.errors import FaultInvalid
from detrain.faults.plan import trial_rng

VARIABLE: Final = "DETRAIN_EXPERIMENT"
UNARMED: Final = -1
"""Stands for the execution that is hit where none is, and the site is to be in place."""

BITS: Final[dict[str, type[np.signedinteger]]] = {
    "float64": np.int64,
    "float32": np.int32,
    "float16": np.int16,
    "bfloat16": np.int16,
    "int64": np.int64,
    "int32": np.int32,
    "int8": np.int8,
    "uint8": np.int8,
    "bool": np.int8,
}
"""The integer that holds a dtype's bit pattern; signed, because TensorFlow's kernels are. Which of these dtypes have
sites, a framework's adapter says."""


class Injection(msgspec.Struct, frozen=True, kw_only=True):
    """Which elements of which operand of which site become what. Arrays are little-endian bytes."""

    site: str
    operand: str
    index: int | None = None
    """Which of the op's inputs the operand is, or which of its outputs; None in records that do not say: where it is
    mostly."""
    worker: int
    """The replica that is hit, from 0."""
    dtype: str
    shape: tuple[int, ...]
    """Of the operand, per replica."""
    positions: bytes
    """Flat row-major positions, int64."""
    sources: bytes
    """For each, the position whose value is taken, int64."""
    keep: bytes
    """For each, the bits of that value that stay: integers of the dtype's width."""
    flip: bytes
    """For each, the bits that are flipped then."""
    limited: bytes = b""
    """Flat positions of the outputs that see a fault of an operand, int64; empty: all do."""
    outputs: int = 0
    """Where they are limited: the elements of the output that they were drawn for; 0 in records that do not say."""
    signature: str = ""
    """Of the site; empty in records that do not say, and for eager ops."""

    @property
    def elements(self) -> int:
        """Elements of the operand."""
        return prod(self.shape)

    @property
    def is_in_memory(self) -> bool:
        """Whether a variable is hit, before the body of the step, and no op of it."""
        return self.site.startswith("memory/")

    @property
    def place(self) -> tuple[object, ...]:
        """What injections at one point of a step have in common: where they are put, and
        whether all outputs see them.
        """
        what = self.operand, self.index, self.dtype, self.shape, bool(self.limited), self.outputs
        return self.site, self.signature, self.worker, *what

    def check(self) -> None:
        """Raise FaultInvalid unless the arrays of a fault from a file go together, and with the tensor."""
        is_shape = min(self.shape, default=0) >= 0 and self.elements < 1 << 63
        if self.dtype not in BITS or not is_shape or self.worker < 0:
            raise FaultInvalid(f"a fault in {self.dtype}{list(self.shape)} of replica {self.worker}", "the record was altered")
        if self.operand not in ("input", "weight", "output", "index"):
            raise FaultInvalid(f"a fault in the {self.operand!r} of an op", "the record was altered")
        try:
            arrays = {name: self.array(name) for name in ("positions", "sources", "keep", "flip", "limited")}
        except ValueError as error:
            raise FaultInvalid(f"the fault's arrays are no {self.dtype}: {error}", "the record was altered") from error
        counts = {name: array.size for name, array in arrays.items() if name != "limited"}
        if len(set(counts.values())) != 1 or not counts["positions"]:
            raise FaultInvalid(f"a fault with {counts}: not one of each for each position", "the record was altered")
        for name in ("positions", "sources"):
            outside = arrays[name][(arrays[name] < 0) | (arrays[name] >= self.elements)]
            if outside.size:
                raise FaultInvalid(
                    f"position {outside[0]} is outside of a tensor of {self.elements} elements, {list(self.shape)}",
                    "the record was altered",
                )

    def array(self, name: str) -> NDArray[np.signedinteger]:
        """Return one of the arrays."""
        kind = np.int64 if name in ("positions", "sources", "limited") else BITS[self.dtype]
        return np.frombuffer(getattr(self, name), np.dtype(kind).newbyteorder("<")).astype(kind)

    def put_into(self, bits: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Change the bit patterns [element] of the operand; return those that were at its positions, and that are."""
        positions = self.array("positions")
        keep, flip = (self.array(name).view(bits.dtype) for name in ("keep", "flip"))
        golden = bits[positions]
        bits[positions] = (bits[self.array("sources")] & keep) ^ flip
        return golden, bits[positions]


class Firing(msgspec.Struct, frozen=True):
    """What a fault has done."""

    count: int
    """How often it was put in."""
    golden: bytes
    """Bit patterns at its positions before the last time, little-endian integers of the dtype's width."""
    injected: bytes
    """And after it."""
    misfits: int = 0
    """How often its site had another shape, and was left as it was."""


class Alarm(msgspec.Struct, frozen=True):
    """What the guard has seen first."""

    steps: int
    """Steps done since the faulty one: 0 at the end of that."""
    variable: str
    norm: float | str
    bound: float | str
    kind: str


Bounds = tuple[str, str]
"""The lowest and the highest value, hexadecimal: JSON has no infinity."""


class Experiment(msgspec.Struct, frozen=True, kw_only=True):
    """One trial, or a golden run (no injection), or a run for the sites of a step (`is_profile`)."""

    log: str
    """Absolute path of the file that takes what is measured, a JSON object a line."""
    is_profile: bool = False
    """List the sites of the first step from `at` on, then end."""
    digests_at: Address | None = None
    """Note a digest of what each op of this step gives, then end."""
    injection: Injection | None = None
    at: Address = (0, 0, 0)
    """The first step that is hit."""
    steps: int = 1
    """How many steps in a row are hit; 0: all from there on."""
    duty: float = 1.0
    """Of an intermittent fault: the chance with which each step behind the first is hit, of those that may be."""
    duty_seed: int = 0
    """Which ones, this says: they are drawn before the run."""
    occurrence: int = 0
    """Which execution of the site in the step is hit."""
    also: tuple[tuple[Injection, int], ...] = ()
    """Other faults in the same steps, each at an op or variable of its own, with the execution that is hit."""
    until: Address | None = None
    """The last step; None: as `count` says."""
    count: int | None = None
    """How many steps are run from `at` on; None: to the program's end."""
    ends_with_loop: bool = False
    """End where its training loop ends, if that is before: what the program does then is not looked at."""
    has_checkpoints: bool = False
    """Whether the run takes checkpoints: the golden run does."""
    is_armed: bool = True
    """Whether the fault is armed: a golden run may have its site in place without that."""
    has_twin: bool = False
    """Whether it is compared with a run that has the site in place, too, never armed: then it may change bits alone."""
    stops_on_nonfinite: bool = False
    """End after a step whose loss is not finite, as the artifact does."""
    least: int = 0
    """But not before so many steps from `at` on."""
    has_digests: bool = True
    """Note a digest of all variables after each step; where there is a fault, from it on."""
    digests_every: int = 1
    """But only after each so many steps from `at` on, and after the last."""
    is_inference: bool = False
    """Whether steps are forward passes without gradients, and what they give is noted."""
    notes_ranges: bool = False
    """Note between which values the outputs of each module are."""
    ranges: dict[str, Bounds] = {}
    """By module: what its outputs are clipped to."""
    seeds_by: int = 0
    """Is added to each seed that the program sets itself."""

    def check(self) -> None:
        """Raise FaultInvalid unless an experiment from a file is a trial with a fault that can be."""
        if self.injection is None or not self.is_armed or self.is_profile or self.digests_at is not None:
            raise FaultInvalid("the record has no fault that is put in", "the record was altered")
        for injection, occurrence in ((self.injection, self.occurrence), *self.also):
            injection.check()
            if occurrence < 0:
                raise FaultInvalid(f"a fault in run {occurrence} of {injection.site!r}", "the record was altered")
        if not 0 < self.duty <= 1 or not 0 <= self.duty_seed < 1 << 64:
            raise FaultInvalid(f"an intermittent fault in {self.duty} of its steps", "the record was altered")
        if min(self.steps, self.least, *self.at) < 0 or self.digests_every < 1:
            raise FaultInvalid(f"a fault in {self.steps} steps from {written(self.at)} on", "the record was altered")
        if (self.until is not None and self.until < self.at) or (self.count is not None and self.count < 1):
            raise FaultInvalid(f"a run that ends before its fault, which is at {written(self.at)}", "the record was altered")

    def may_hit(self, address: Address) -> bool:
        """Return whether a step is one of those from the fault on, and of its phase."""
        return self.injection is not None and address[0] == self.at[0] and address >= self.at

    def is_due(self, turn: int) -> bool:
        """Return whether a step is hit of those that may be, by its number: 0 is the first, which is."""
        return not turn or self.duty >= 1 or bool(trial_rng(self.duty_seed, turn).random() < self.duty)


def refuse_several(count: int) -> None:
    """Raise FaultInvalid for more than one op to be hit at once: not where sites are a part of the step."""
    if count > 1:
        raise FaultInvalid(
            f"faults in {count} tensors of a step at once: they are put into steps of PyTorch, and into memory",
            "give --among tensor, or --mode RF",
        )


def of_environment() -> list[Experiment]:
    """Return the experiments of this process, if it is one of some."""
    path = os.environ.get(VARIABLE, "")
    if not path:
        return []
    with io.FileIO(path) as file:  # not `open`, by which the program's own files are followed
        return msgspec.json.decode(file.readall(), type=list[Experiment])
