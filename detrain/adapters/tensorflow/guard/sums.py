"""Small compiled functions over variables, and the sums of their squares."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.eager.polymorphic_function import atomic_function
from tensorflow.python.framework import func_graph
from tensorflow.python.ops import gen_resource_variable_ops

_EXECUTOR: Final = "SINGLE_THREADED_EXECUTOR"
"""For functions of many small operations: handing each to another thread takes longer than doing it."""
_numbers: Final = itertools.count()


class Compiled:
    """A function over variables, one call a device. `make` gets a device's variables and returns a list of tensors."""

    def __init__(self, variables: Mapping[str, Any], make: Callable[[list[Any]], list[Any]]) -> None:
        by_device: dict[str, dict[str, Any]] = {}
        for key, variable in variables.items():
            by_device.setdefault(variable.handle.device, {})[key] = variable
        self.keys = [key for group in by_device.values() for key in group]
        self._calls: list[tuple[str, tuple[Any, list[Any], int]]] = []
        for device, group in by_device.items():
            self._calls.append((device, _compiled(device, list(group.values()), make)))

    def __call__(self) -> list[list[Any]]:
        """Return the tensors of each device."""
        runtime = context.context()
        # The one thread of that executor would wait for itself where a function goes over devices.
        with context.function_executor_type(_EXECUTOR if len(self._calls) == 1 else None):
            found = []
            for device, (function, captures, count) in self._calls:
                with tf.device(device):
                    found.append(runtime.call_function(function.name, captures, count))
            return found


def _compiled(device: str, variables: list[Any], make: Callable[[list[Any]], list[Any]]) -> tuple[Any, list[Any], int]:
    def body() -> list[Any]:
        with tf.device(device):
            return make(variables)

    with tf.init_scope():
        graph = func_graph.func_graph_from_py_func("detrain_own", body, (), {})
        function = atomic_function.from_func_graph(f"__detrain_{next(_numbers)}", graph, {})
        return function, [outer for outer, _inner in graph.captures], len(graph.outputs)


def sums_of_squares(variables: list[Any]) -> list[Any]:
    """Return one tensor, half the sum of the squares of each variable: what is not a number in
    it makes its sum none.
    """
    return [tf.stack([half_of_squares(variable) for variable in variables])]


def half_of_squares(variable: Any) -> Any:
    """Return half the sum of the squares of a variable, or of what stands for one: `handle` and `dtype`."""
    return tf.cast(tf.nn.l2_loss(wide(gen_resource_variable_ops.read_variable_op(variable.handle, variable.dtype))), tf.float32)


def wide(value: Any) -> Any:
    """Return a tensor whose squares do not overflow where the tensor itself is sound."""
    return tf.cast(value, tf.float32) if value.dtype in (tf.float16, tf.bfloat16) else value


def norms(sums: list[list[Any]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the Euclidean norms [variable] for what `sums_of_squares` returned."""
    parts = [np.asarray(tensors[0]._numpy(), np.float64) for tensors in sums]
    return np.sqrt(2.0 * (np.concatenate(parts) if len(parts) != 1 else parts[0])) if parts else np.zeros(0)
