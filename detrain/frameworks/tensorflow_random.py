"""Stateful random ops of traced functions, lifted to stateless ops on counters that a checkpoint holds.

The state of TensorFlow's stateful random ops lives in C++ kernels that Python can neither read nor set. Each such op in a traced
function becomes its stateless twin, seeded by (the op's own seeds, a counter), and the counter, a variable, goes up by one each
time the op runs. Counters are found again by (function, turn of the op in its trace), so that retraces share them.

Eager ops need nothing: each draws its seed from the eager context's generator, which is captured. The functions of tf.data stay
as they are: every iterator starts their kernels anew, and prefetching makes a counter's value at a cut meaningless.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import func_graph, ops
from tensorflow.python.ops import gen_random_ops
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

from detrain.frameworks.births import Births

Draw = Callable[..., Any]


class RandomCounters:
    """Replaces the stateful random ops while functions are traced."""

    def __init__(self, births: Births) -> None:
        self._births = births
        self._counters: dict[str, Any] = {}
        for name, draw in _STATELESS.items():
            self._lift(name, draw)

    @property
    def count(self) -> int:
        """How many random ops have been lifted."""
        return len(self._counters)

    def _lift(self, name: str, draw: Draw) -> None:
        original = getattr(gen_random_ops, name)

        @functools.wraps(original)
        def lifted(*args: Any, **kwargs: Any) -> Any:
            graph = _traced_function()
            if graph is None:
                return original(*args, **kwargs)
            seed, seed2 = kwargs.pop("seed", 0), kwargs.pop("seed2", 0)
            op_name = kwargs.pop("name", None)
            counter = self._counter(graph)
            with tf.name_scope(op_name or name):
                turn = counter.assign_add(1, read_value=True)
                first = tf.constant((int(seed) * 0x9E3779B97F4A7C15 + int(seed2)) % (1 << 63), tf.int64)
                return draw(*args, seed=tf.stack([first, tf.cast(turn, tf.int64)]), **kwargs)

        setattr(gen_random_ops, name, lifted)

    def _counter(self, graph: Any) -> Any:
        turn = getattr(graph, "detrain_random_ops", 0)
        graph.detrain_random_ops = turn + 1
        key = f"{graph.detrain_function} {turn}"
        if key not in self._counters:
            # Not tf.Variable: that asks the creators of the functions being traced, and a function that is traced again refuses.
            # Named by its key: functions of replicas are traced in threads of their own, where nobody on the stack owns them.
            with tf.init_scope(), self._births.naming(f"{key} random counter"):
                self._counters[key] = ResourceVariable(0, dtype=tf.int64, trainable=False, name=f"random counter {turn}")
        return self._counters[key]


def _traced_function() -> Any:
    """Return the outermost function graph being traced, or None in eager code and in the functions of tf.data."""
    graph = ops.get_default_graph()
    outermost = None
    while isinstance(graph, func_graph.FuncGraph):
        outermost = graph
        if str(graph.name).startswith("Dataset_"):
            return None
        graph = graph.outer_graph
    return outermost


def _uniform(shape: Any, dtype: Any, seed: Any) -> Any:
    return tf.random.stateless_uniform(shape, seed, dtype=dtype)


def _uniform_int(shape: Any, minval: Any, maxval: Any, seed: Any) -> Any:
    minval = tf.convert_to_tensor(minval)
    return tf.random.stateless_uniform(shape, seed, minval, maxval, dtype=minval.dtype)


def _normal(shape: Any, dtype: Any, seed: Any) -> Any:
    return tf.random.stateless_normal(shape, seed, dtype=dtype)


def _truncated_normal(shape: Any, dtype: Any, seed: Any) -> Any:
    return tf.random.stateless_truncated_normal(shape, seed, dtype=dtype)


def _shuffle(value: Any, seed: Any) -> Any:
    return tf.random.experimental.stateless_shuffle(value, seed)


def _categorical(logits: Any, num_samples: Any, output_dtype: Any = tf.int64, *, seed: Any) -> Any:
    return tf.random.stateless_categorical(logits, num_samples, seed, dtype=output_dtype)


def _gamma(shape: Any, alpha: Any, seed: Any) -> Any:
    alpha = tf.convert_to_tensor(alpha)
    full = tf.concat([tf.cast(shape, tf.int32), tf.shape(alpha)], 0)
    return tf.random.stateless_gamma(full, seed, alpha, dtype=alpha.dtype)


def _poisson(shape: Any, rate: Any, dtype: Any = tf.int64, *, seed: Any) -> Any:
    rate = tf.convert_to_tensor(rate)
    full = tf.concat([tf.cast(shape, tf.int32), tf.shape(rate)], 0)
    return tf.random.stateless_poisson(full, seed, rate, dtype=dtype)


_STATELESS: dict[str, Draw] = {
    "random_uniform": _uniform,
    "random_uniform_int": _uniform_int,
    "random_standard_normal": _normal,
    "truncated_normal": _truncated_normal,
    "random_shuffle": _shuffle,
    "multinomial": _categorical,
    "random_gamma": _gamma,
    "random_poisson_v2": _poisson,
}
