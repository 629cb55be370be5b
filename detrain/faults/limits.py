"""The outputs that see a limited fault: a value that is wrong in the datapath only while 16 outputs are computed.

An accelerator of this kind computes 16 output channels together from one input, and keeps a weight for 16 output
positions. So a wrong input reaches 16 consecutive output channels at one position, and a wrong weight reaches 16
consecutive positions of its output channel. A *position* is an index of the output without its last axis, which is the
channel.

If a fault hits 64 elements, it still reaches 16 outputs: those at one position, drawn from the positions that read one
of the elements, or those of one output channel, drawn from the elements' channels. Groups of 16 are aligned, as
everywhere; an axis shorter than 16 is one group.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from math import prod
from typing import Final, NamedTuple, Protocol

import msgspec
import numpy as np

from detrain.base.errors import FaultInvalid
from detrain.faults.bits import Positions
from detrain.faults.plan import Operand, Plan

OUTPUTS: Final = 16
Shape = tuple[int, ...]


class ConvPass(enum.StrEnum):
    """The three computations of a layer, of which an op is one."""

    FORWARD = "forward"  # Y from X and W
    GRAD_IN = "grad_in"  # dX from dY and W
    GRAD_WT = "grad_wt"  # dW from X and dY


class Column(NamedTuple):
    """The positions of an output channel for which a weight is used: `length` of them from `first` on."""

    channel: int
    first: int
    length: int


class LinearOp(Protocol):
    """An op that multiplies an input by a weight; it knows which outputs read an element."""

    @property
    def output(self) -> Shape:
        """The shape of the output, channels last."""

    def readers(self, elements: Positions) -> Positions:
        """Return the output positions that read any of the input's elements; ascending."""

    def columns(self, elements: Positions) -> list[Column]:
        """Return the output channels to which the weight's elements belong."""


def limited_outputs(op: LinearOp, operand: Operand, elements: Positions, rng: np.random.Generator) -> Positions:
    """Draw the outputs (flat, ascending) that see a limited fault at `elements` (flat) of an operand.

    There are none if no output reads any of the elements, as happens to inputs between the strides of a convolution. If
    the operand is a weight, some may read it only against padding. Raises FaultInvalid for an operand that is the
    output.
    """
    channels = op.output[-1]
    if operand is Operand.OUTPUT:
        raise FaultInvalid("a fault in an output cannot be limited to some of its readers")
    if operand is Operand.INPUT:
        readers = op.readers(elements)
        if not len(readers):
            return readers
        return int(rng.choice(readers)) * channels + _group(channels, rng)
    columns = op.columns(elements)
    column = columns[int(rng.integers(len(columns)))]
    return (column.first + _group(column.length, rng)) * channels + column.channel


def _group(count: int, rng: np.random.Generator) -> Positions:
    start = int(rng.integers(max(1, count // OUTPUTS))) * OUTPUTS
    return np.arange(start, min(start + OUTPUTS, count), dtype=np.int64)


class Convolution(msgspec.Struct, frozen=True):
    """A convolution over any number of spatial axes, or one of its two gradients.

    `x` is [batch, *space, in], `kernel` [*window, in, out], `y` [batch, *space, out] at every stage; `before` is the
    padding in front of each axis. Raises FaultInvalid if these do not fit each other (grouped and depthwise
    convolutions).
    """

    stage: ConvPass
    x: Shape
    kernel: Shape
    y: Shape
    strides: Shape
    dilations: Shape
    before: Shape

    @classmethod
    def of(
        cls,
        stage: ConvPass,
        *,
        x: Shape,
        kernel: Shape,
        y: Shape,
        strides: Shape,
        dilations: Shape,
        padding: str | Sequence[tuple[int, int]],
    ) -> Convolution:
        """Return the convolution with an op's attributes, spatial axes alone; padding is SAME, VALID, or (before,
        after) for each axis.
        """
        extents = [(window - 1) * dilation + 1 for window, dilation in zip(kernel[:-2], dilations, strict=True)]
        if padding == "VALID":
            padding = [(0, 0)] * len(extents)
        elif padding == "SAME":
            totals = [
                max((-(-size // stride) - 1) * stride + extent - size, 0)
                for size, stride, extent in zip(x[1:-1], strides, extents, strict=True)
            ]
            padding = [(total // 2, total - total // 2) for total in totals]
        elif isinstance(padding, str):
            raise FaultInvalid(f"a convolution with padding {padding!r} cannot have a limited fault")
        space = tuple(
            (size + sum(pads) - extent) // stride + 1
            for size, pads, extent, stride in zip(x[1:-1], padding, extents, strides, strict=True)
        )
        expected = (x[0], *space, kernel[-1])
        if kernel[-2] != x[-1] or y != expected:
            raise FaultInvalid(
                f"no limited fault for a convolution of {list(x)} by {list(kernel)} to {list(y)}: it is grouped or depthwise",
                "choose another site, or a model without _16",
            )
        return cls(stage, x, kernel, y, strides, dilations, tuple(before for before, _ in padding))

    def shape_of(self, operand: Operand) -> Shape:
        """Return the shape of the input, the weight or the output."""
        return {
            ConvPass.FORWARD: {Operand.INPUT: self.x, Operand.WEIGHT: self.kernel, Operand.OUTPUT: self.y},
            ConvPass.GRAD_IN: {Operand.INPUT: self.y, Operand.WEIGHT: self.kernel, Operand.OUTPUT: self.x},
            ConvPass.GRAD_WT: {Operand.INPUT: self.x, Operand.WEIGHT: self.y, Operand.OUTPUT: self.kernel},
        }[self.stage][operand]

    @property
    def output(self) -> Shape:
        """The shape of Y, dX or dW."""
        return self.shape_of(Operand.OUTPUT)

    def readers(self, elements: Positions) -> Positions:
        """Return the output positions: (image, place) of Y or dX, or (tap, input channel) of dW; flat, ascending."""
        *leading, _ = self.output
        found = []
        batch, *spaces, channel = np.unravel_index(elements, self.shape_of(Operand.INPUT))
        places = np.stack([batch, *spaces, channel if self.stage is ConvPass.GRAD_WT else batch], axis=1)
        for image, *place, last in np.unique(places, axis=0).tolist():
            met = [self._met(axis, index) for axis, index in enumerate(place)]
            axes = [*met, np.array([last])] if self.stage is ConvPass.GRAD_WT else [np.array([image]), *met]
            found.append(np.ravel_multi_index(np.meshgrid(*axes, indexing="ij"), leading).ravel())
        return np.unique(np.concatenate(found)).astype(np.int64)

    def _met(self, axis: int, index: int) -> Positions:
        """Return the indices that an input axis's index meets: places of Y (forward) or X (grad_in), taps (grad_wt)."""
        outs, taps = np.arange(self.y[axis + 1])[:, None], np.arange(self.kernel[axis])[None, :]
        inside = outs * self.strides[axis] - self.before[axis] + taps * self.dilations[axis]
        if self.stage is ConvPass.GRAD_IN:
            met = inside[index][(inside[index] >= 0) & (inside[index] < self.x[axis + 1])]
        else:
            met = np.nonzero(inside == index)[0 if self.stage is ConvPass.FORWARD else 1]
        return np.unique(met).astype(np.int64)

    def columns(self, elements: Positions) -> list[Column]:
        """Return the channels of the last axis of W or dY; for dX the input channels of W, which are also dX's."""
        channels = np.unravel_index(elements, self.shape_of(Operand.WEIGHT))[-2 if self.stage is ConvPass.GRAD_IN else -1]
        return [Column(channel, 0, prod(self.output[:-1])) for channel in np.unique(channels).tolist()]


class MatMul(msgspec.Struct, frozen=True):
    """A product of matrices, for instance a dense layer or one of its two gradients.

    `a` [*batch, m, k] is the input and `b` [*batch, k, n], or [k, n] for all, the weight, with their shapes before they
    are transposed. Raises FaultInvalid if these do not fit each other.
    """

    a: Shape
    b: Shape
    is_a_transposed: bool = False
    is_b_transposed: bool = False

    def __post_init__(self) -> None:
        inner = self.a[-2 if self.is_a_transposed else -1], self.b[-1 if self.is_b_transposed else -2]
        if self.b[:-2] not in ((), self.a[:-2]) or inner[0] != inner[1]:
            raise FaultInvalid(
                f"no limited fault for a product of {list(self.a)} by {list(self.b)}: these shapes do not go together",
                "choose another site, or a model without _16",
            )

    @property
    def output(self) -> Shape:
        """[*batch, m, n]."""
        return (*self.a[:-2], self.a[-1 if self.is_a_transposed else -2], self.b[-2 if self.is_b_transposed else -1])

    def readers(self, elements: Positions) -> Positions:
        """Return the rows of the output, flat over the batch, ascending."""
        *batch, rows, columns = np.unravel_index(elements, self.a)
        read = np.ravel_multi_index((*batch, columns if self.is_a_transposed else rows), self.output[:-1])
        return np.unique(read).astype(np.int64)

    def columns(self, elements: Positions) -> list[Column]:
        """Return the columns of the output; for a weight with a batch axis, those of its own product."""
        *batch, rows, columns = np.unravel_index(elements, self.b)
        channels = rows if self.is_b_transposed else columns
        if not batch:
            return [Column(channel, 0, prod(self.output[:-1])) for channel in np.unique(channels).tolist()]
        rows_of_one = self.output[-2]
        products = np.ravel_multi_index(tuple(batch), self.b[:-2])
        pairs = np.unique(np.stack([products, channels], axis=1), axis=0).tolist()
        return [Column(channel, product * rows_of_one, rows_of_one) for product, channel in pairs]


class ChannelsFirst(msgspec.Struct, frozen=True):
    """A convolution, or one of its two gradients, with its channels first, as PyTorch has them: X [batch, in, *space],
    the kernel [out, in, *window]. It holds the same op with channels last, and converts positions.
    """

    of_last: Convolution

    @classmethod
    def of(
        cls,
        stage: ConvPass,
        *,
        x: Shape,
        kernel: Shape,
        y: Shape,
        strides: Shape,
        dilations: Shape,
        padding: Shape,
    ) -> ChannelsFirst:
        """Return the op by its shapes, channels first; `padding` is the same before and behind each axis.

        Raises FaultInvalid for a grouped convolution.
        """
        return cls(
            Convolution.of(
                stage,
                x=_last(x, _image_axes(len(x))),
                kernel=_last(kernel, _kernel_axes(len(kernel))),
                y=_last(y, _image_axes(len(y))),
                strides=strides,
                dilations=dilations,
                padding=[(each, each) for each in padding],
            )
        )

    def to_last(self, operand: Operand, positions: Positions) -> Positions:
        """Return flat positions of an operand, given with channels first, as those with channels last."""
        axes, shape = self._axes(operand), self.of_last.shape_of(operand)
        first = tuple(shape[axes.index(axis)] for axis in range(len(shape)))
        indices = np.unravel_index(positions, first)
        return np.ravel_multi_index([indices[axis] for axis in axes], shape).astype(np.int64)

    def to_first(self, operand: Operand, positions: Positions) -> Positions:
        """Return flat positions of an operand, given with channels last, as those with channels first; ascending."""
        return np.sort(self._to_first(operand, positions))

    def moved(self, plan: Plan, operand: Operand) -> Plan:
        """Return a plan for an operand with channels last as the plan for the same operand with channels first."""
        positions = self._to_first(operand, plan.positions)
        order = np.argsort(positions, kind="stable")
        return Plan(positions[order], plan.kind, plan.operands[order])

    def _to_first(self, operand: Operand, positions: Positions) -> Positions:
        axes, shape = self._axes(operand), self.of_last.shape_of(operand)
        indices = np.unravel_index(positions, shape)
        places = [axes.index(axis) for axis in range(len(shape))]
        first = [shape[place] for place in places]
        return np.ravel_multi_index([indices[place] for place in places], first).astype(np.int64)

    def _axes(self, operand: Operand) -> Sequence[int]:
        """Return, for each axis of the layout with channels last, its number in the layout with channels first."""
        of_kernel = {ConvPass.FORWARD: Operand.WEIGHT, ConvPass.GRAD_IN: Operand.WEIGHT, ConvPass.GRAD_WT: Operand.OUTPUT}
        rank = len(self.of_last.x)
        return _kernel_axes(rank) if operand is of_kernel[self.of_last.stage] else _image_axes(rank)


def _image_axes(rank: int) -> list[int]:
    return [0, *range(2, rank), 1]


def _kernel_axes(rank: int) -> list[int]:
    return [*range(2, rank), 1, 0]


def _last(shape: Shape, axes: Sequence[int]) -> Shape:
    return tuple(shape[axis] for axis in axes)
