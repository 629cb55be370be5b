"""Roles in a backward pass: which op of a gradient function gives the gradient of the input, which of the weight."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from detrain.adapters.tensorflow.faults.graph_ops import Op
from detrain.adapters.tensorflow.faults.op_operands import NO_ARITHMETIC
from detrain.faults.sites import CONTRACTIONS, Role, places_of


def maker_of(grad: Any, made: list[Op]) -> Op | None:
    """Return the op of a gradient function that a gradient comes from: the last contraction on its way,
    or the op itself."""
    by_name = {each.op.name: each for each in made}
    tensor, last = grad, None
    while tensor.op.name in by_name or tensor.op.type in ("Reshape", "Identity", "IdentityN", "Snapshot", "Sum", "Cast"):
        found = by_name.get(tensor.op.name)
        if found is not None and (last is None or found.op.type in CONTRACTIONS):
            last = found
        if (found is not None and found.op.type in CONTRACTIONS) or not tensor.op.inputs:
            break
        tensor = tensor.op.inputs[-1 if tensor.op.type == "IdentityN" else 0]
    return last


def is_turned(found: Op, role: Role, made: list[Op], upstream: Iterable[Any]) -> bool:
    """Return whether a gradient's op has its weight before its input: dY is the input of dX, and the weight of dW."""
    if found.op.type not in CONTRACTIONS or len(found.op.inputs) < 2:
        return False
    given = {(tensor.op.name, tensor.value_index) for tensor in upstream if isinstance(tensor, tf.Tensor)}
    names = {each.op.name for each in made}

    def is_given(tensor: Any) -> bool:
        if (tensor.op.name, tensor.value_index) in given:
            return True
        return (tensor.op.name in names or tensor.op.type in NO_ARITHMETIC) and any(map(is_given, tensor.op.inputs))

    first, second = (is_given(found.op.inputs[index]) for index in places_of(found.op.type))
    return (second and not first) if role == "grad_in" else (first and not second)
