"""What an op of a graph takes in and gives: operands by name, which is the weight, which dtypes may have faults.

For sites, injectors and eager ops alike. Of products, TensorFlow does not tell an input from a weight:
a variable is one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, Final

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from detrain.faults.experiment import BITS
from detrain.faults.sites import CONTRACTIONS, INDEX_PLACES, places_of

NO_ARITHMETIC: Final = frozenset(
    {
        *("Assert", "Case", "Const", "Enter", "Exit", "EnsureShape", "ExpandDims", "Identity", "IdentityN", "If", "Merge"),
        *("NextIteration", "NoOp", "PartitionedCall", "Placeholder", "PlaceholderWithDefault", "PreventGradient", "Rank"),
        *("ReadVariableOp", "Reshape", "Shape", "ShapeN", "Size", "Snapshot", "Squeeze", "StatefulPartitionedCall"),
        *("StatelessCase", "StatelessIf", "StatelessWhile", "StopGradient", "Switch", "VarHandleOp", "VarIsInitializedOp", "While"),
    }
)
"""Ops that compute nothing. Gradients of loops and branches look for the op behind their outputs:
nothing may stand between."""
READ: Final = "ReadVariableOp"
NO_SITES: Final = NO_ARITHMETIC - {READ}
"""Ops whose outputs are no sites."""
PREDICATE_OF_LOOP: Final = "While"
"""Stands in the names of sites where a loop asks whether it goes on."""
_STORES: Final = ("Assign*VariableOp", "Resource*Apply*", "ResourceScatter*", "ResourceStridedSliceAssign", "TensorListSetItem")
_BRANCHES: Final = ("If", "StatelessIf", "Case", "StatelessCase")
_TAKEN: Final = ("value", "updates", "grad", "delta", "item", "cond", "branch_index")
_DTYPES: Final = frozenset(map(tf.dtypes.as_dtype, BITS))
ATTRIBUTES: Final = (
    *("strides", "padding", "explicit_paddings", "dilations", "data_format"),
    *("transpose_a", "transpose_b", "adj_x", "adj_y", "equation"),
)
_PRODUCTS: Final = ("MatMul", "BatchMatMulV2", "BatchMatMulV3")
"""Those in which either factor may be the weight."""
_FACTORS: Final = 2
_RESHAPED: Final = ("Identity", "Cast", "Reshape", "Transpose", "Squeeze", "ExpandDims")


@lru_cache(maxsize=4096)
def taken_by(op_type: str) -> tuple[int, str] | None:
    """Return which input of an op is what it stores (writes, adds to a variable, updates it by) or decides by, by place
    and name; None: it does neither.
    """
    definition = op_def_registry.get(op_type)
    if definition is None or not (op_type in _BRANCHES or any(fnmatchcase(op_type, each) for each in _STORES)):
        return None
    names = [argument.name for argument in definition.input_arg]
    return next(((names.index(name), name) for name in _TAKEN if name in names), None)


def numbers_of(outputs: Sequence[Any]) -> list[int]:
    """Return which of an op's outputs are of dtypes that a fault can be in."""
    return [number for number, output in enumerate(outputs) if output.dtype in _DTYPES]


def operands_of(op: Any, output: int, *, is_turned: bool = False) -> dict[str, tuple[int, Any]]:
    """Return the operands of one output of an op, by name, with their place among the op's inputs or outputs.

    `is_turned`: its weight comes before its input.
    """
    operands = {}
    if op.type in CONTRACTIONS:
        places = places_of(op.type)
        for name, index in zip(("input", "weight"), places[::-1] if is_turned else places, strict=True):
            if index < len(op.inputs):
                operands[name] = (index, op.inputs[index])
    if op.type in INDEX_PLACES:
        operands["index"] = (INDEX_PLACES[op.type], op.inputs[INDEX_PLACES[op.type]])
    operands["output"] = (output, op.outputs[output])
    return operands


def attributes_of(op: Any) -> dict[str, list[int] | str | bool]:
    """Return those of an op's attributes that say which outputs an operand reaches."""
    found: dict[str, list[int] | str | bool] = {}
    for name in ATTRIBUTES if op.type in CONTRACTIONS else ():
        if name in op.node_def.attr:
            value = op.get_attr(name)
            found[name] = value.decode() if isinstance(value, bytes) else list(value) if isinstance(value, list | tuple) else value
    return found


def has_weight_first(op_type: str, inputs: Sequence[Any], original: Callable[[Any], Any] = lambda tensor: tensor) -> bool:
    """Return whether a product has a variable for its first factor, and none for its second.

    `original` returns what a tensor has been put in place of.
    """
    if op_type not in _PRODUCTS or len(inputs) < _FACTORS:
        return False
    first, second = (_is_variable(each, original) for each in inputs[:_FACTORS])
    return first and not second


def _is_variable(tensor: Any, original: Callable[[Any], Any]) -> bool:
    """Return whether a tensor of a graph is what a variable holds, in another shape or type perhaps."""
    tensor = original(tensor)
    while hasattr(tensor, "op") and tensor.op.type in _RESHAPED and tensor.op.inputs:
        tensor = original(tensor.op.inputs[0])
    return hasattr(tensor, "op") and tensor.op.type == READ
