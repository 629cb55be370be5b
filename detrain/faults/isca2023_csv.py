"""Reads the fault files (CSV) of the ISCA 2023 artifact, finds their elements in the tensors of our ops, and writes the
artifact's text output (`replay_*.txt`), line for line, so that tools made for it can read ours.

A file names a layer of one of six networks, a computation of that layer, an epoch, a step and a replica, the positions
of elements in a tensor, and a value for each. Positions and values are taken as they are; `fmodel` only tells the
operand.

The artifact computes `grad_in` as a convolution of its own making. Its input is dY, with zeros between the elements if
the stride is above 1, padded until every output is reached; its kernel is turned by 180 degrees, with its channels
exchanged. Positions in these two operands are in that layout. One that falls on an added zero has no element in dY.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Final, TextIO, TypeVar

import msgspec
import numpy as np

from detrain.base.errors import FaultInvalid
from detrain.faults.bits import DType, Patterns
from detrain.faults.limits import Convolution, ConvPass, Shape
from detrain.faults.models import PUBLISHED
from detrain.faults.plan import Kind, Operand, Plan

WORKLOADS: Final = {
    "resnet18": "resnet18",
    "resnet18_sgd": "resnet18_sgd",
    "resnet18_nobn": "resnet18_nobn",
    "effnet": "efficientnet_b0",
    "densenet": "densenet121",
    "nfnet": "nf_resnet",
}
"""The artifact's names of networks, and those of our examples (examples/workloads)."""

_RESNET: Final = r"conv1|basicblock_[1-4]_basic_[01]_(conv1|conv2|downsample)"
LAYERS: Final = {
    "resnet18": _RESNET,
    "resnet18_sgd": _RESNET,
    "resnet18_nobn": _RESNET,
    "effnet": r"conv[12]|block[1-7]_mbconv_\d+_(conv1|conv2|se_reduce_conv|se_expand_conv)",
    "densenet": r"densenet_conv|densenet_dense_block_\d+_bottleneck_\d+_conv[12]|densenet_transition_[1-3]_conv",
    "nfnet": r"NF_ResNet_block_\d+_(conv[012]|conv_shortcut)",
}
_STAGES: Final = {"fwrd_inject": ("",), "bkwd_inject": ("_grad_in", "_grad_wt")}
_REQUIRED: Final = (
    "model",
    "stage",
    "fmodel",
    "target_worker",
    "target_layer",
    "target_epoch",
    "target_step",
    "inj_pos",
    "inj_values",
)
_KNOWN: Final = (*_REQUIRED, "learning_rate", "seed")
_NUMBER: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?|[+-]?inf|nan", re.IGNORECASE)
_T = TypeVar("_T")


class ArtifactFault(msgspec.Struct, frozen=True):
    """A fault file: `positions` are indices into the tensor of one replica, `values` are put there, in the file's
    order.

    `layer` is without the suffix of its stage, as our example of the network names it; `ignored` are the names of rows
    that have no meaning.
    """

    workload: str
    fmodel: str
    stage: ConvPass
    worker: int
    layer: str
    epoch: int
    step: int
    positions: tuple[Shape, ...]
    values: tuple[float, ...]
    learning_rate: float | None = None
    seed: int | None = None
    ignored: tuple[str, ...] = ()

    @property
    def operand(self) -> Operand:
        """The tensor of the op that is hit."""
        return PUBLISHED[self.fmodel].operand

    @property
    def target(self) -> str:
        """The layer as the file names it."""
        return self.layer if self.stage is ConvPass.FORWARD else f"{self.layer}_{self.stage.value}"


def read_fault(path: Path) -> ArtifactFault:
    """Read a fault file.

    Raises FaultInvalid for any mistake in it, with the file and, if there is one, the row.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return parse_fault(list(csv.reader(file, strict=True)), str(path))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise FaultInvalid(f"the fault file {path} cannot be read: {error}") from error


def parse_fault(lines: Sequence[Sequence[str]], where: str) -> ArtifactFault:
    """Return the fault in the cells of a file; `where` is the file's name for messages. Raises FaultInvalid."""
    rows, ignored = _rows(lines, where)
    model = _one(rows, "model", where, _one_of(WORKLOADS))
    stage = _one(rows, "stage", where, _one_of(_STAGES))
    target = _one(rows, "target_layer", where, str)
    suffix = next((suffix for suffix in _STAGES[stage] if target.endswith(suffix)), None)
    layer = target.removesuffix(suffix or "")
    if suffix is None or not re.fullmatch(LAYERS[model], layer):
        ending = ", then _grad_in or _grad_wt" if stage == "bkwd_inject" else ""
        raise FaultInvalid(f"{where}: {target!r} is not a layer of {model} in {stage}", f"one is {LAYERS[model]}{ending}")
    positions = _many(rows, "inj_pos", where, _position)
    values = _many(rows, "inj_values", where, _number)
    if len(positions) != len(values):
        counts = f"{len(positions)} positions in inj_pos and {len(values)} values in inj_values"
        raise FaultInvalid(f"{where}: {counts}", "give one value a position")
    if len(set(positions)) < len(positions):
        twice = next(position for position in positions if positions.count(position) > 1)
        raise FaultInvalid(f"{where}: position {joined(twice)} is in inj_pos twice")
    return ArtifactFault(
        workload=WORKLOADS[model],
        fmodel=_one(rows, "fmodel", where, _one_of(PUBLISHED)),
        stage=ConvPass(suffix[1:]) if suffix else ConvPass.FORWARD,
        worker=_one(rows, "target_worker", where, _index),
        layer=layer,
        epoch=_one(rows, "target_epoch", where, _index),
        step=_one(rows, "target_step", where, _index),
        positions=positions,
        values=values,
        learning_rate=_one(rows, "learning_rate", where, _number) if "learning_rate" in rows else None,
        seed=_one(rows, "seed", where, _index) if "seed" in rows else None,
        ignored=ignored,
    )


def _rows(lines: Sequence[Sequence[str]], where: str) -> tuple[dict[str, list[str]], tuple[str, ...]]:
    """Return the known rows, and the names of the others; a name that looks misspelt is refused (FaultInvalid)."""
    rows: dict[str, list[str]] = {}
    ignored = []
    for number, line in enumerate(lines, 1):
        name, *cells = [cell.strip() for cell in line] or [""]
        while cells and not cells[-1]:  # spreadsheets fill all rows up to the longest
            cells.pop()
        if name in rows:
            raise FaultInvalid(f"{where}, row {number}: a second row {name!r}")
        if name in _KNOWN:
            rows[name] = cells
        elif near := get_close_matches(name.lower(), _KNOWN, n=1, cutoff=0.8):
            raise FaultInvalid(f"{where}, row {number}: there is no field {name!r}", f"write it {near[0]!r}")
        elif name or cells:
            ignored.append(name)
    if missing := [name for name in _REQUIRED if name not in rows]:
        raise FaultInvalid(f"{where}: no row {', '.join(map(repr, missing))}", f"a fault file has the rows {', '.join(_REQUIRED)}")
    return rows, tuple(ignored)


def _one(rows: dict[str, list[str]], name: str, where: str, read: Callable[[str], _T]) -> _T:
    found = _many(rows, name, where, read)
    if len(found) > 1:
        raise FaultInvalid(f"{where}: {name} has {len(found)} values, expected one")
    return found[0]


def _many(rows: dict[str, list[str]], name: str, where: str, read: Callable[[str], _T]) -> tuple[_T, ...]:
    if not rows[name]:
        raise FaultInvalid(f"{where}: {name} has no value")
    try:
        return tuple(read(cell) for cell in rows[name])
    except ValueError as error:
        raise FaultInvalid(f"{where}: {name}: {error}") from error


def _one_of(names: Sequence[str] | dict[str, _T]) -> Callable[[str], str]:
    def read(cell: str) -> str:
        if cell not in names:
            raise ValueError(f"{cell!r} is none of {', '.join(names)}")
        return cell

    return read


def _index(cell: str) -> int:
    if not (cell.isascii() and cell.isdigit()):
        raise ValueError(f"{cell!r} is not a whole number from 0 on")
    return int(cell)


def _number(cell: str) -> float:
    if not _NUMBER.fullmatch(cell):
        raise ValueError(f"{cell!r} is not a number")
    if math.isinf(number := float(cell)) and "inf" not in cell.lower():
        raise ValueError(f"{cell!r} is larger than any number of 64 bits")
    return number


def _position(cell: str) -> Shape:
    try:
        return tuple(_index(index.strip()) for index in cell.split("/"))
    except ValueError as error:
        raise ValueError(f"{cell!r} is not a position such as 107/3/3/85") from error


def joined(position: Shape) -> str:
    """Return a position as the artifact's files write it."""
    return "/".join(map(str, position))


def plan_of(fault: ArtifactFault, op: Convolution, dtype: DType, *, takes_nearest: bool = False) -> Plan:
    """Return a fault as a plan for its operand of `op`, which is the op of its layer and stage.

    Raises FaultInvalid for a position outside of the tensor, and for one on padding, unless `takes_nearest`: then the
    nearest element of dY is hit instead.
    """
    elements = [_element(fault, op, position, takes_nearest=takes_nearest) for position in fault.positions]
    flat = np.array([np.ravel_multi_index(element, op.shape_of(fault.operand)) for element in elements], np.int64)
    order = np.argsort(flat, kind="stable")
    return Plan(flat[order], Kind.SET, dtype.patterns(fault.values)[order])


def _element(fault: ArtifactFault, op: Convolution, position: Shape, *, takes_nearest: bool) -> Shape:
    shape = layout(op, fault.operand)
    if len(position) != len(shape) or any(index >= size for index, size in zip(position, shape, strict=True)):
        raise FaultInvalid(
            f"position {joined(position)} is outside of the {fault.operand.value} of {fault.target}, which is {joined(shape)}",
            "was the file made for another batch size or width?",
        )
    element, nearest = mapped_back(op, fault.operand, position)
    if element is None and not takes_nearest:
        raise FaultInvalid(
            f"position {joined(position)} of {fault.target} falls on a zero that the artifact pads dY with, {joined(shape)} in all",
            f"the nearest element of dY is {joined(nearest)}",
        )
    return nearest


def layout(op: Convolution, operand: Operand) -> Shape:
    """Return an operand's shape in the artifact's layout: the tensor's, but for two operands of `grad_in`."""
    if op.stage is ConvPass.GRAD_IN and operand is Operand.INPUT:
        around = [(window - 1) * dilation for window, dilation in zip(op.kernel[:-2], op.dilations, strict=True)]
        return (op.y[0], *(size + added for size, added in zip(op.x[1:-1], around, strict=True)), op.y[-1])
    if op.stage is ConvPass.GRAD_IN and operand is Operand.WEIGHT:
        return (*op.kernel[:-2], op.kernel[-1], op.kernel[-2])
    return op.shape_of(operand)


def mapped_back(op: Convolution, operand: Operand, position: Shape) -> tuple[Shape | None, Shape]:
    """Return the element at a position of the artifact's layout (None for padding), and the nearest element."""
    if op.stage is not ConvPass.GRAD_IN or operand is Operand.OUTPUT:
        return position, position
    if operand is Operand.WEIGHT:
        *taps, out, into = position
        element = (*(size - 1 - tap for size, tap in zip(op.kernel, taps, strict=False)), into, out)
        return element, element
    image, *places, channel = position
    nearest, is_padding = [], False
    for axis, place in enumerate(places):
        in_front = (op.kernel[axis] - 1) * op.dilations[axis] - op.before[axis]
        index, behind = divmod(place - in_front, op.strides[axis])
        is_padding |= behind > 0 or not 0 <= index < op.y[axis + 1]
        nearest.append(min(max(index + (2 * behind > op.strides[axis]), 0), op.y[axis + 1] - 1))
    element = (image, *nearest, channel)
    return (None if is_padding else element), element


class TextLog:
    """Writes the output of one run to a stream, and flushes each line. Epochs and steps are written as given."""

    def __init__(self, stream: TextIO, *, epochs: int, steps: int) -> None:
        self._stream = stream
        self._epochs = epochs
        self._steps = steps

    def starts(self, *, epoch: int, step: int, weights: str) -> None:
        """Write the fault's epoch and step, and the source of the weights."""
        self._write(f"Inject to epoch: {epoch}", f"Inject to step: {step}", f"Load weights from {weights}")

    def hits(
        self,
        *,
        worker: int,
        layer: str,
        shape: Shape,
        positions: Sequence[Shape],
        golden: Patterns,
        injected: Patterns,
        dtype: DType,
    ) -> None:
        """Write the fault, before the line of the step that it hits: one line for each element."""
        self._write(f"Inject worker: {worker}", f"Inject layer: {layer}", f"Shape for target layer is {shape}")
        for position, old, new in zip(positions, _shown(golden, dtype), _shown(injected, dtype), strict=True):
            self._write(f"Position is {position}, Golden data is {old}, inject data is {new}")

    def step(self, *, epoch: int, step: int, loss: float, accuracy: float) -> bool:
        """Write a step; return whether the run goes on: a loss that is not finite ends it."""
        self._write(f"Epoch: {epoch}/{self._epochs}, step: {step}/{self._steps}, loss: {loss:.5f}, accuracy: {accuracy:.5f}")
        return self._goes_on(loss)

    def ends_epoch(self, *, epoch: int, train_loss: float, train_accuracy: float, valid_loss: float, valid_accuracy: float) -> bool:
        """Write the end of an epoch; return whether the run goes on."""
        self._write(
            f"End of epoch: {epoch}/{self._epochs}, train loss: {train_loss:.5f}, train accuracy: {train_accuracy:.5f},"
            f" valid loss: {valid_loss:.5f}, valid accuracy: {valid_accuracy:.5f}"
        )
        return self._goes_on(train_loss, valid_loss)

    def _goes_on(self, *losses: float) -> bool:
        if all(math.isfinite(loss) for loss in losses):
            return True
        self._write("Encounter NaN! Terminate training!")
        return False

    def _write(self, *lines: str) -> None:
        self._stream.writelines(f"{line}\n" for line in lines)
        self._stream.flush()


def _shown(patterns: Patterns, dtype: DType) -> list[str]:
    """Return the numbers of patterns, in as many digits as distinguish them from all others of their dtype."""
    if not dtype.exponent:
        return [str(number) for number in dtype.integers(patterns).tolist()]
    numbers = dtype.numbers(patterns)
    return [str(number) for number in numbers.astype(np.float32 if dtype.bias else dtype.name)]
