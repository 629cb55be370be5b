"""A check of which computations TensorFlow repeats bit for bit (see `detrain.adapters.repeated_cases`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import tensorflow as tf

from detrain.adapters import repeated_cases
from detrain.adapters.repeated_cases import RNG, Case

_ON_CPUS: Final = ("two replicas", "random numbers")
"""The beginnings of the names of cases that run on CPUs only."""


def _normal(*shape: int) -> Any:
    return tf.constant(repeated_cases.normal(*shape))


def _gradients(function: Callable[..., Any], *inputs: Any) -> list[Any]:
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        result = tf.reduce_sum(tf.square(function(*inputs)))
    return [tf.convert_to_tensor(gradient) for gradient in tape.gradient(result, inputs)]


def cases() -> dict[str, Case]:
    """Return the computations by name. Their sizes are so large that TensorFlow splits the work among threads."""
    left, right = _normal(384, 512), _normal(512, 256)
    images, filters = _normal(8, 32, 32, 16), _normal(3, 3, 16, 32)
    rows, where = _normal(20_000, 16), tf.constant(RNG.integers(0, 50, 20_000))
    sequence, kernel, recurrent = _normal(16, 20, 8), _normal(8, 64), _normal(16, 64)
    scale, offset = _normal(16), _normal(16)

    def convolve(x: Any, w: Any) -> Any:
        return tf.nn.conv2d(x, w, 1, "SAME")

    def recur(x: Any, w: Any, u: Any) -> Any:
        state = tf.zeros((16, 16))
        for step in range(20):
            gates = tf.matmul(x[:, step], w) + tf.matmul(state, u)
            state = tf.tanh(gates[:, :16]) * tf.sigmoid(gates[:, 16:32])
        return state

    compiled = tf.function(lambda x, y: _gradients(lambda a, b: tf.nn.softmax(tf.matmul(a, b)), x, y), jit_compile=True)
    return {
        "matmul": lambda: tf.matmul(left, right),
        "matmul, bfloat16": lambda: tf.cast(tf.matmul(tf.cast(left, tf.bfloat16), tf.cast(right, tf.bfloat16)), tf.float32),
        "matmul, gradients": lambda: _gradients(tf.matmul, left, right),
        "convolution": lambda: convolve(images, filters),
        "convolution, gradients": lambda: _gradients(convolve, images, filters),
        "depthwise convolution, gradients": lambda: _gradients(
            lambda x, w: tf.nn.depthwise_conv2d(x, w, [1, 1, 1, 1], "SAME"), images, filters[..., :1]
        ),
        "max pooling, gradient": lambda: _gradients(lambda x: tf.nn.max_pool2d(x, 3, 2, "SAME"), images),
        "batch normalisation, gradients": lambda: _gradients(
            lambda x, s, o: tf.compat.v1.nn.fused_batch_norm(x, s, o)[0], images, scale, offset
        ),
        "sum over all": lambda: tf.reduce_sum(rows),
        "mean over rows": lambda: tf.reduce_mean(rows, 0),
        "softmax cross-entropy, gradient": lambda: _gradients(
            lambda x: tf.nn.sparse_softmax_cross_entropy_with_logits(where % 16, x), rows
        ),
        "scatter, added": lambda: tf.tensor_scatter_nd_add(tf.zeros((50, 16)), where[:, None], rows),
        "segment sum": lambda: tf.math.unsorted_segment_sum(rows, where, 50),
        "embedding, gradient": lambda: _gradients(lambda table: tf.gather(table, where % 500), rows[:500]),
        "bias, gradient": lambda: _gradients(tf.nn.bias_add, images, offset),
        "resizing of images, gradient": lambda: _gradients(lambda x: tf.image.resize(x, (45, 45)), images),
        "recurrent steps, gradients": lambda: _gradients(recur, sequence, kernel, recurrent),
        "XLA": lambda: compiled(left, right),
        "random numbers in a parallel map": _parallel_map,
        "two replicas, all-reduced": _replicas(left, right),
    }


def _parallel_map() -> Any:
    def draw(number: Any) -> Any:
        return tf.random.uniform(()) + tf.cast(number, tf.float32)

    tf.random.set_seed(1)
    return tf.stack(list(tf.data.Dataset.range(64).map(draw, num_parallel_calls=8)))


def _replicas(left: Any, right: Any) -> Case:
    devices = tf.config.list_logical_devices("CPU")
    if len(devices) < 2:
        return lambda: tf.zeros(())
    strategy = tf.distribute.MirroredStrategy([device.name for device in devices[:2]])

    def step() -> Any:
        def one() -> Any:
            number = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32)
            return tf.distribute.get_replica_context().all_reduce("SUM", tf.matmul(left + number, right))

        return strategy.experimental_local_results(strategy.run(one))[0]

    compiled: Case = tf.function(step)
    return compiled


def main() -> None:
    """Repeat the cases on every kind of device, as the command line's arguments say, and print the results."""
    is_deterministic, repeats = repeated_cases.asked()
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    tf.random.set_seed(0)
    if is_deterministic:
        tf.config.experimental.enable_op_determinism()
    found = {}
    for kind in ("CPU", "GPU", "TPU"):
        if tf.config.list_physical_devices(kind):
            with tf.device(f"/device:{kind}:0"):
                there = {name: case for name, case in cases().items() if kind == "CPU" or not name.startswith(_ON_CPUS)}
                found[kind] = repeated_cases.repeated(there, repeats, _arrays, tf.errors.OpError, ValueError, RuntimeError)
    repeated_cases.say(tf.__version__, found)


def _arrays(result: Any) -> list[Any]:
    return [np.asarray(part) for part in tf.nest.flatten(result)]


if __name__ == "__main__":
    main()
