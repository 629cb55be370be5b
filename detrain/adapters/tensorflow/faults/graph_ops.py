"""One op of one graph: its inputs and outputs (operands by name, which one is the weight, which dtypes may have
faults), the records that sites, measures and gradients keep of it, and the notes taken while the graph runs: the number
of runs, shapes that the trace does not show, digests of outputs.

TensorFlow does not tell a product's input from its weight: the factor that is a variable counts as the weight. Each
note of a run is an assignment to a hidden variable, put before an output of the op, so that it happens whenever the op
runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, Final

import msgspec
import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from detrain.adapters.tensorflow.values.tensors import hidden_variable, linked
from detrain.faults.experiment import BITS
from detrain.faults.sites import CONTRACTIONS, INDEX_PLACES, Role, Stage, places_of

NO_ARITHMETIC: Final = frozenset(
    {
        *("Assert", "Case", "Const", "Enter", "Exit", "EnsureShape", "ExpandDims", "Identity", "IdentityN", "If", "Merge"),
        *("NextIteration", "NoOp", "PartitionedCall", "Placeholder", "PlaceholderWithDefault", "PreventGradient", "Rank"),
        *("ReadVariableOp", "Reshape", "Shape", "ShapeN", "Size", "Snapshot", "Squeeze", "StatefulPartitionedCall"),
        *("StatelessCase", "StatelessIf", "StatelessWhile", "StopGradient", "Switch", "VarHandleOp", "VarIsInitializedOp", "While"),
    }
)
"""Ops that compute nothing. Gradients of loops and branches look for the op behind their outputs: no other op
may stand between."""
READ: Final = "ReadVariableOp"
NO_SITES: Final = NO_ARITHMETIC - {READ}
"""Ops whose outputs are no sites."""
PREDICATE_OF_LOOP: Final = "While"
"""The op type, in the names of sites, of a loop's question whether it goes on."""
_STORES: Final = ("Assign*VariableOp", "Resource*Apply*", "ResourceScatter*", "ResourceStridedSliceAssign", "TensorListSetItem")
_BRANCHES: Final = ("If", "StatelessIf", "Case", "StatelessCase")
_TAKEN: Final = ("value", "updates", "grad", "delta", "item", "cond", "branch_index")
_DTYPES: Final = frozenset(tf.dtypes.as_dtype(name) for name in BITS if not name.startswith("float8") and "int4" not in name)
"""TensorFlow's `Bitcast` takes no others."""
ATTRIBUTES: Final = (
    *("strides", "padding", "explicit_paddings", "dilations", "data_format"),
    *("transpose_a", "transpose_b", "adj_x", "adj_y", "equation"),
)
_PRODUCTS: Final = ("MatMul", "BatchMatMulV2", "BatchMatMulV3")
"""The products in which either factor may be the weight."""
_FACTORS: Final = 2
_RESHAPED: Final = ("Identity", "Cast", "Reshape", "Transpose", "Squeeze", "ExpandDims")

_MOST_AXES: Final = 8
_NO_SHAPE: Final = np.array([-1] + [0] * _MOST_AXES)
"""The note of a shape that has not been seen yet: rank -1, then zeros in place of sizes."""


@lru_cache(maxsize=4096)
def taken_by(op_type: str) -> tuple[int, str] | None:
    """Return the index and name of the input that an op stores (writes, adds to a variable, updates it by) or decides
    by; None if it does neither.
    """
    definition = op_def_registry.get(op_type)
    if definition is None or not (op_type in _BRANCHES or any(fnmatchcase(op_type, each) for each in _STORES)):
        return None
    names = [argument.name for argument in definition.input_arg]
    return next(((names.index(name), name) for name in _TAKEN if name in names), None)


def numbers_of(outputs: Sequence[Any]) -> list[int]:
    """Return the numbers of an op's outputs whose dtypes can have faults."""
    return [number for number, output in enumerate(outputs) if output.dtype in _DTYPES]


def operands_of(op: Any, output: int, *, is_turned: bool = False) -> dict[str, tuple[int, Any]]:
    """Return the operands of one output of an op, by name, each as (index among the op's inputs or outputs, tensor).

    `is_turned`: the op's weight comes before its input.
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
    """Return the attributes of a contraction that decide which outputs an operand reaches."""
    found: dict[str, list[int] | str | bool] = {}
    for name in ATTRIBUTES if op.type in CONTRACTIONS else ():
        if name in op.node_def.attr:
            value = op.get_attr(name)
            found[name] = value.decode() if isinstance(value, bytes) else list(value) if isinstance(value, list | tuple) else value
    return found


def has_weight_first(op_type: str, inputs: Sequence[Any], original: Callable[[Any], Any] = lambda tensor: tensor) -> bool:
    """Return whether a product's first factor is a variable, and its second is not.

    `original` returns the tensor that a given tensor has replaced.
    """
    if op_type not in _PRODUCTS or len(inputs) < _FACTORS:
        return False
    first, second = (_is_variable(each, original) for each in inputs[:_FACTORS])
    return first and not second


def _is_variable(tensor: Any, original: Callable[[Any], Any]) -> bool:
    """Return whether a tensor of a graph is the value of a variable, perhaps in another shape or type."""
    tensor = original(tensor)
    while hasattr(tensor, "op") and tensor.op.type in _RESHAPED and tensor.op.inputs:
        tensor = original(tensor.op.inputs[0])
    return hasattr(tensor, "op") and tensor.op.type == READ


class Taken(msgspec.Struct):
    """A value that an op is about to store or to decide by, treated like the output of a separate op that only this op
    reads. So it can be hit, though the op has no output, or must not run twice.
    """

    type: str
    graph: Any
    name: str
    """A name that no op has."""
    outputs: list[Any]

    @property
    def inputs(self) -> list[Any]:
        """The same value."""
        return self.outputs


class Op(msgspec.Struct):
    """One op of one graph, as it was made."""

    key: str
    """The site's name."""
    function: str
    replica: int
    layer: str
    stage: Stage
    op: Any
    """TensorFlow's op, or a `Taken`."""
    roles: dict[int, Role] = {}
    """The kind of gradient that each output is, by the output's number."""
    is_turned: bool = False
    """True if the op's weight comes before its input: because the program wrote it so (`W @ x`), or because TensorFlow
    exchanged them in the gradient of a product with a transposed matrix."""
    shapes: dict[str, Any] = {}
    """Hidden variables that take the operands' shapes when the graph runs, if tracing does not show them."""
    signature: str = ""
    """The site's signature, if sites are listed."""
    digest: Any = None
    """The hidden variable that takes a digest of the outputs when the graph runs."""


def maker_of(grad: Any, made: list[Op]) -> Op | None:
    """Return the op of a gradient function that made a gradient: the last contraction on its way, or its last op."""
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


class RunNotes:
    """The notes taken in the graphs of one process. Ops made inside `own_ops` belong to no site."""

    def __init__(self, own_ops: Callable[[Any], AbstractContextManager[None]]) -> None:
        self._own_ops = own_ops
        self._runs: dict[int, Any] = {}
        """Counters of the runs of graphs, by id."""

    def begin(self) -> None:
        """Set the counts of runs back to 0."""
        for counter in self._runs.values():
            counter.assign(0)

    def runs(self, graph: Any) -> int:
        """Return how often a graph has run since `begin`."""
        return int(self._runs[id(graph)].numpy())

    def measure(self, found: Op, given: list[Any]) -> None:
        """Have the runs of the op's graph counted, and shapes noted that tracing does not show."""
        graph = found.op.graph
        with self._own_ops(graph):
            notes = []
            if id(graph) not in self._runs:
                self._runs[id(graph)] = hidden_variable(0, tf.int64)
                notes.append(self._runs[id(graph)].assign_add(1, read_value=False))
            for number in numbers_of(given):
                for _index, tensor in operands_of(found.op, number).values():
                    if not tensor.shape.is_fully_defined() and tensor.name not in found.shapes:
                        noted = found.shapes[tensor.name] = hidden_variable(_NO_SHAPE, tf.int64)
                        notes.append(noted.assign(_padded_shape(tensor), read_value=False))
            if notes:
                first = numbers_of(given)[0]
                with tf.control_dependencies(notes):
                    given[first] = linked(given[first], tf.identity(given[first]))

    def take_digest(self, found: Op, given: list[Any]) -> None:
        """Have a digest of the op's outputs taken when its graph runs."""
        numbers = numbers_of(given)
        with self._own_ops(found.op.graph):
            found.digest = hidden_variable(0, tf.int64)
            digest = tf.add_n([_digest(given[number]) * (number + 1) for number in numbers])
            with tf.control_dependencies([found.digest.assign(digest, read_value=False)]):
                given[numbers[0]] = linked(given[numbers[0]], tf.identity(given[numbers[0]]))


def _digest(tensor: Any) -> Any:
    """Return the sum of an output's bit patterns, each times its place: integers, exact in any order of adding."""
    flat = tf.reshape(tensor, [-1])
    bits = (
        flat
        if tensor.dtype.is_integer
        else tf.cast(flat, tf.int8)
        if tensor.dtype == tf.bool
        else tf.bitcast(flat, BITS[tensor.dtype.name])
    )
    places = tf.range(tf.size(bits, out_type=tf.int64), dtype=tf.int64) % 65_521 + 1
    return tf.reduce_sum(tf.cast(bits, tf.int64) * places)


def _padded_shape(tensor: Any) -> Any:
    """Return the rank and sizes of a tensor in an array of fixed length, since XLA allows no other."""
    shape = tf.shape(tensor, out_type=tf.int64)
    rank = tf.size(shape, out_type=tf.int64)
    zeros = tf.fill([tf.maximum(_MOST_AXES - rank, 0)], tf.constant(0, tf.int64))
    return tf.ensure_shape(tf.concat([[rank], shape, zeros], 0)[: _MOST_AXES + 1], _NO_SHAPE.shape)


def shape_of(tensor: Any, noted: Any) -> tuple[int, ...]:
    """Return the sizes of a tensor, from the note of a run or else from its trace; -1 for unknown ones."""
    rank, *sizes = (-1,) if noted is None else (int(size) for size in noted.numpy())
    if 0 <= rank <= _MOST_AXES:
        return tuple(sizes[:rank])
    return tuple(-1 if size is None else int(size) for size in tensor.shape) if tensor.shape.rank is not None else (-1,)
