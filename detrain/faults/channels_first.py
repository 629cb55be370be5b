"""Convolutions with their channels first, as PyTorch has them: X [batch, in, *space], the kernel [out, in, *window].

Which outputs read an element is known of channels-last ones (detrain.faults.limits): positions are carried over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from detrain.faults.bits import Positions
from detrain.faults.limits import Convolution, ConvPass, Shape
from detrain.faults.plan import Operand, Plan


@dataclass(frozen=True, slots=True)
class ChannelsFirst:
    """A convolution, or one of its two gradients, by the same with its channels last."""

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
        """Return it by its shapes, channels first; `padding` is that before and behind, an axis.

        Raises FaultInvalid for grouped ones.
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
        """Return flat positions of an operand with its channels first as those with its channels last."""
        axes, shape = self._axes(operand), self.of_last.shape_of(operand)
        first = tuple(shape[axes.index(axis)] for axis in range(len(shape)))
        indices = np.unravel_index(positions, first)
        return np.ravel_multi_index([indices[axis] for axis in axes], shape).astype(np.int64)

    def to_first(self, operand: Operand, positions: Positions) -> Positions:
        """Return flat positions of an operand with its channels last as those with its channels first; ascending."""
        return np.sort(self._to_first(operand, positions))

    def moved(self, plan: Plan, operand: Operand) -> Plan:
        """Return a plan for an operand with its channels last as that for the same with its channels first."""
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
        """Return, of each axis with the channels last, which it is with the channels first."""
        of_kernel = {ConvPass.FORWARD: Operand.WEIGHT, ConvPass.GRAD_IN: Operand.WEIGHT, ConvPass.GRAD_WT: Operand.OUTPUT}
        rank = len(self.of_last.x)
        return _kernel_axes(rank) if operand is of_kernel[self.of_last.stage] else _image_axes(rank)


def _image_axes(rank: int) -> list[int]:
    return [0, *range(2, rank), 1]


def _kernel_axes(rank: int) -> list[int]:
    return [*range(2, rank), 1, 0]


def _last(shape: Shape, axes: Sequence[int]) -> Shape:
    return tuple(shape[axis] for axis in axes)
