"""`tf.timestamp`, which TensorFlow refuses beside deterministic ops, though programs ask it for no more than a line of
a log.
"""

from __future__ import annotations

import time
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import gen_logging_ops

from detrain.base.in_place import in_place_of


def fix_clock() -> None:
    """Have the moment come from Python: at once, and inside a traced function each time that it runs."""

    @in_place_of(gen_logging_ops, "timestamp", tf, tf.compat.v1, tf.compat.v2)
    def timestamp(name: str | None = None) -> Any:
        if tf.executing_eagerly():
            return tf.constant(time.time(), tf.float64)
        now = tf.numpy_function(time.time, [], tf.float64, name=name)
        now.set_shape([])
        return now
