"""What is noted while a graph runs: how often it does, the shapes that tracing does not tell, digests of what ops give.

Each note is an assignment to a hidden variable, hung before an output of the op, so that it is done whenever the op is.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final

import numpy as np
import tensorflow as tf

from detrain.adapters.tensorflow.faults.graph_ops import Op
from detrain.adapters.tensorflow.faults.op_operands import numbers_of, operands_of
from detrain.adapters.tensorflow.values.tensors import hidden_variable, linked
from detrain.faults.experiment import BITS

_MOST_AXES: Final = 8
_NO_SHAPE: Final = np.array([-1] + [0] * _MOST_AXES)
"""The note of a shape that has not been seen: rank, sizes, zeros."""


class RunNotes:
    """Notes of the graphs of one process. `own_ops` makes what is put into a graph a part of no site."""

    def __init__(self, own_ops: Callable[[Any], AbstractContextManager[None]]) -> None:
        self._own_ops = own_ops
        self._runs: dict[int, Any] = {}
        """Counters of the runs of graphs, by id."""

    def begin(self) -> None:
        """Count runs from here on."""
        for counter in self._runs.values():
            counter.assign(0)

    def runs(self, graph: Any) -> int:
        """Return how often a graph has run since."""
        return int(self._runs[id(graph)].numpy())

    def measure(self, found: Op, given: list[Any]) -> None:
        """Have the runs of the op's graph counted, and its shapes noted when it runs,
        where tracing does not tell them."""
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
        """Have a digest taken when the op's graph runs."""
        numbers = numbers_of(given)
        with self._own_ops(found.op.graph):
            found.digest = hidden_variable(0, tf.int64)
            digest = tf.add_n([_digest(given[number]) * (number + 1) for number in numbers])
            with tf.control_dependencies([found.digest.assign(digest, read_value=False)]):
                given[numbers[0]] = linked(given[numbers[0]], tf.identity(given[numbers[0]]))


def _digest(tensor: Any) -> Any:
    """Return a sum of an output's bit patterns, each times its place: exact integers,
    so that no order of adding changes it."""
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
    """Return the rank of a tensor and its shape, in a length that is always the same: XLA has no other."""
    shape = tf.shape(tensor, out_type=tf.int64)
    rank = tf.size(shape, out_type=tf.int64)
    zeros = tf.fill([tf.maximum(_MOST_AXES - rank, 0)], tf.constant(0, tf.int64))
    return tf.ensure_shape(tf.concat([[rank], shape, zeros], 0)[: _MOST_AXES + 1], _NO_SHAPE.shape)


def shape_of(tensor: Any, noted: Any) -> tuple[int, ...]:
    """Return the sizes of a tensor, as noted where a graph ran or as its trace tells; -1 for what nobody knows."""
    rank, *sizes = (-1,) if noted is None else (int(size) for size in noted.numpy())
    if 0 <= rank <= _MOST_AXES:
        return tuple(sizes[:rank])
    return tuple(-1 if size is None else int(size) for size in tensor.shape) if tensor.shape.rank is not None else (-1,)
