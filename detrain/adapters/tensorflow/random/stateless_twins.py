"""For each stateful random op its stateless twin, which draws by a seed that it is given and keeps no state.

What is drawn is not what the stateful op would have drawn, but of the same distribution, shape and type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import tensorflow as tf

Draw = Callable[..., Any]


def _uniform(shape: Any, dtype: Any, seed: Any) -> Any:
    return tf.random.stateless_uniform(shape, seed, dtype=dtype)


def _uniform_int(shape: Any, minval: Any, maxval: Any, seed: Any) -> Any:
    minval = tf.convert_to_tensor(minval)
    return tf.random.stateless_uniform(shape, seed, minval, maxval, dtype=minval.dtype)


def _normal(shape: Any, dtype: Any, seed: Any) -> Any:
    return tf.random.stateless_normal(shape, seed, dtype=dtype)


def _truncated_normal(shape: Any, dtype: Any, seed: Any) -> Any:
    return tf.random.stateless_truncated_normal(shape, seed, dtype=dtype)


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


TWINS: Final[dict[str, Draw]] = {
    "random_uniform": _uniform,
    "random_uniform_int": _uniform_int,
    "random_standard_normal": _normal,
    "truncated_normal": _truncated_normal,
    "random_shuffle": tf.random.experimental.stateless_shuffle,
    "multinomial": _categorical,
    "random_gamma": _gamma,
    "random_poisson_v2": _poisson,
}
"""By the names that the ops have in `gen_random_ops`."""
