"""Finds the elements that a fault file of the ISCA 2023 artifact means, in the tensors of our ops.

The artifact computes `grad_in` as a convolution of its own making: of dY, with zeros between its elements where the
stride is above 1 and padded until every output is reached, by the kernel turned by 180 degrees and with its channels
exchanged. Positions in these two operands are in that layout. One that falls on an added zero has no element in dY.
"""

from __future__ import annotations

import numpy as np

from detrain.base.errors import FaultInvalid
from detrain.faults.bits import DType
from detrain.faults.isca2023_csv import ArtifactFault, joined
from detrain.faults.limits import Convolution, ConvPass, Shape
from detrain.faults.plan import Kind, Operand, Plan


def plan_of(fault: ArtifactFault, op: Convolution, dtype: DType, *, takes_nearest: bool = False) -> Plan:
    """Return a fault as a plan for its operand of `op`, which is the op of its layer and stage.

    Raises FaultInvalid for a position outside of the tensor, and for one that falls on padding, unless `takes_nearest`:
    then the nearest element of dY is hit in its place.
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
    """Return the shape in which the artifact has an operand: that of the tensor, but for two of `grad_in`."""
    if op.stage is ConvPass.GRAD_IN and operand is Operand.INPUT:
        around = [(window - 1) * dilation for window, dilation in zip(op.kernel[:-2], op.dilations, strict=True)]
        return (op.y[0], *(size + added for size, added in zip(op.x[1:-1], around, strict=True)), op.y[-1])
    if op.stage is ConvPass.GRAD_IN and operand is Operand.WEIGHT:
        return (*op.kernel[:-2], op.kernel[-1], op.kernel[-2])
    return op.shape_of(operand)


def mapped_back(op: Convolution, operand: Operand, position: Shape) -> tuple[Shape | None, Shape]:
    """Return the element at a position of the artifact's layout, None where that is padding;
    and the nearest element.
    """
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
