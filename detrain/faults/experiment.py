"""The experiment of one trial: the fault as numbers to put at a site, its steps, and the length of the run. It is drawn
before the run starts.

A value at a position becomes `(source & keep) ^ flip`, all on bit patterns; `source` is the value at another position
of the same tensor, or at the same one. Flips, stuck bits, set values and copied values all have this form, so the
compiled step needs one operation alone. Nothing is ever multiplied or added: other elements keep their bits, also INF
and NaN.
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
from detrain.faults.bits import DTYPES
from detrain.faults.plan import trial_rng

VARIABLE: Final = "DETRAIN_EXPERIMENT"
UNARMED: Final = -1
"""Stands in place of an execution's number if none is hit, and the site is only in place."""

BITS: Final[dict[str, type[np.signedinteger]]] = {
    name: np.dtype(f"i{dtype.unsigned.itemsize}").type for name, dtype in DTYPES.items()
}
"""The integer type that holds a dtype's bit pattern; signed, because TensorFlow's kernels are."""


class Injection(msgspec.Struct, frozen=True, kw_only=True):
    """The elements of one operand at a site that change, and how. Arrays are little-endian bytes."""

    site: str
    operand: str
    index: int | None = None
    """The operand's number among the op's inputs, or outputs; None in older records: its usual number."""
    worker: int
    """The replica that is hit, from 0."""
    dtype: str
    shape: tuple[int, ...]
    """Shape of the operand, per replica."""
    positions: bytes
    """Flat row-major positions that are hit, int64."""
    sources: bytes
    """For each position, the one whose value is taken, int64."""
    keep: bytes
    """For each position, the bits of that value that stay: integers of the dtype's width."""
    flip: bytes
    """For each position, the bits that are flipped afterwards."""
    limited: bytes = b""
    """Flat positions of the outputs that see a fault of an operand, int64; empty: all outputs do."""
    outputs: int = 0
    """If outputs are limited: the elements of the output that they were drawn for; 0 in older records."""
    signature: str = ""
    """Signature of the site; empty in older records, and for eager ops."""

    @property
    def elements(self) -> int:
        """Number of elements of the operand."""
        return prod(self.shape)

    @property
    def is_in_memory(self) -> bool:
        """True if a variable is hit before the step's body, and no op of the step."""
        return self.site.startswith("memory/")

    @property
    def place(self) -> tuple[object, ...]:
        """Key of the injections at one point of a step: equal where site, operand and tensor are equal, and either all
        outputs see the fault, or only some.
        """
        what = self.operand, self.index, self.dtype, self.shape, bool(self.limited), self.outputs
        return self.site, self.signature, self.worker, *what

    def check(self) -> None:
        """Raise FaultInvalid unless the arrays of a fault from a file fit each other, and the tensor."""
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
        """Change the bit patterns [element] of the operand; return the old and the new ones at its positions."""
        positions = self.array("positions")
        keep, flip = (self.array(name).view(bits.dtype) for name in ("keep", "flip"))
        golden = bits[positions]
        bits[positions] = (bits[self.array("sources")] & keep) ^ flip
        return golden, bits[positions]


class Firing(msgspec.Struct, frozen=True):
    """The effect of a fault on its positions."""

    count: int
    """How often the fault was put in."""
    golden: bytes
    """Bit patterns at its positions before the last time, little-endian integers of the dtype's width."""
    injected: bytes
    """Bit patterns at its positions after the last time."""
    misfits: int = 0
    """How often its site had another shape, and was not changed."""


class Alarm(msgspec.Struct, frozen=True):
    """The guard's first alarm."""

    steps: int
    """Steps done since the faulty one: 0 at the end of the faulty step."""
    variable: str
    norm: float | str
    bound: float | str
    kind: str


Bounds = tuple[str, str]
"""The lowest and the highest value, hexadecimal: JSON has no infinity."""


class Experiment(msgspec.Struct, frozen=True, kw_only=True):
    """One trial, or a golden run (no injection), or a run for the sites of a step (`is_profile`)."""

    log: str
    """Absolute path of the file for the run's log, one JSON object a line."""
    is_profile: bool = False
    """List the sites of the first step from `at` on, then end."""
    digests_at: Address | None = None
    """Log a digest of the results of each op of this step, then end."""
    injection: Injection | None = None
    at: Address = (0, 0, 0)
    """The first step that is hit."""
    steps: int = 1
    """How many steps in a row are hit; 0: all from there on."""
    duty: float = 1.0
    """Of an intermittent fault: the chance with which it hits each later step that it may hit; it hits the first."""
    duty_seed: int = 0
    """The seed that draws the steps which an intermittent fault hits, before the run."""
    occurrence: int = 0
    """Which of the site's executions in the step is hit, from 0."""
    also: tuple[tuple[Injection, int], ...] = ()
    """Other faults in the same steps, each at its own op or variable, with the execution that is hit."""
    until: Address | None = None
    """The last step; None: `count` decides."""
    count: int | None = None
    """How many steps are run from `at` on; None: all to the program's end."""
    ends_with_loop: bool = False
    """End with the training loop, if that comes first: nobody looks at the program's later work."""
    has_checkpoints: bool = False
    """True if the run takes checkpoints, as the golden run does."""
    is_armed: bool = True
    """True if the fault is armed; a golden run may have its site in place, not armed."""
    has_twin: bool = False
    """True if the trial is compared with its twin, which has the same site in place: the site may change bits."""
    stops_on_nonfinite: bool = False
    """End after a step whose loss is not finite, as the artifact does."""
    least: int = 0
    """The fewest steps from `at` on before a loss that is not finite ends the run."""
    has_digests: bool = True
    """Log digests of all variables after steps; in a run with a fault, from the fault on."""
    digests_every: int = 1
    """The steps from `at` on between two of these digests; the last step always has one."""
    is_inference: bool = False
    """True if steps are forward passes without gradients, and their predictions are logged."""
    notes_ranges: bool = False
    """Log the lowest and highest output values of each module."""
    ranges: dict[str, Bounds] = {}
    """The bounds to which each module's outputs are clipped."""
    seeds_by: int = 0
    """Added to each seed that the program sets itself."""

    def check(self) -> None:
        """Raise FaultInvalid unless an experiment from a file is a trial with a possible fault."""
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
        """Return whether a step is in the fault's phase, and not before the fault."""
        return self.injection is not None and address[0] == self.at[0] and address >= self.at

    def is_due(self, turn: int) -> bool:
        """Return whether the fault hits a step, given its number among those that it may hit; it always hits step 0."""
        return not turn or self.duty >= 1 or bool(trial_rng(self.duty_seed, turn).random() < self.duty)


def refuse_several(count: int) -> None:
    """Raise FaultInvalid if several ops are to be hit at once: a step that has its sites compiled in cannot do it."""
    if count > 1:
        raise FaultInvalid(
            f"faults in {count} tensors of a step at once: they are put into steps of PyTorch, and into memory",
            "give --among tensor, or --mode RF",
        )


def of_environment() -> list[Experiment]:
    """Return the experiments of this process; empty if it has none."""
    path = os.environ.get(VARIABLE, "")
    if not path:
        return []
    with io.FileIO(path) as file:  # not `open`, through which the program's own files are tracked
        return msgspec.json.decode(file.readall(), type=list[Experiment])
