"""Sums of three and more tensors, whose order TensorFlow leaves to timing where they are large, or others read the same
tensors.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.runs import detrain, plain, ran

pytestmark = pytest.mark.slow
"""The fast lane has others of their kind."""

PRELUDE = """\
import functools, json, os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np
import tensorflow as tf

def values(step, x, rounds):
    return sorted({int(step(x)) for _ in range(rounds)})

def digest(total):
    return tf.reduce_sum(tf.cast(tf.bitcast(total, tf.int32), tf.int64))
"""

SHARED = """
def step_of(combine, number):
    @tf.function
    def step(x):
        tensors = [tf.sin(x), tf.cos(x), tf.tanh(x), tf.sigmoid(x), tf.exp(-x * x)][:number]
        return digest(combine(*tensors)), [tf.reduce_sum(tensor) for tensor in tensors]  # each has a consumer beside the sum
    return lambda x: step(x)[0]

def two_sums_of_products(*tensors):
    products = [scale * tensor for tensor in tensors]
    return tf.concat([tf.add_n(products), products[2] + products[0] + products[1]], 0)

x = tf.constant(np.random.default_rng(0).normal(size=100_000).astype("float32"))
scale = tf.reverse(x, [0])
print(json.dumps({
    "from left to right": values(step_of(lambda a, b, c: a + b + c, 3), x, 500),
    "from right to left": values(step_of(lambda a, b, c: a + (b + c), 3), x, 500),
    "add_n": values(step_of(lambda *tensors: tf.add_n(tensors), 3), x, 500),
    "add_n of four": values(step_of(lambda *tensors: tf.add_n(tensors), 4), x, 500),
    "one tensor twice": values(step_of(lambda a, b, c: a + b + c + a, 3), x, 500),
    "times one": values(step_of(lambda a, b, c, d: 1.0 * a + 1.0 * b + 0.5 * c + 0.1 * d, 4), x, 500),
    "a common factor": values(step_of(lambda *tensors: tf.add_n([scale * tensor for tensor in tensors]), 3), x, 500),
    "factors of two sums": values(step_of(two_sums_of_products, 3), x, 200),
    "a long chain": values(step_of(lambda a, b: functools.reduce(lambda total, _: total + a, range(1500), b), 2), x[:8], 1),
    "two sums": values(step_of(lambda *tensors: tf.concat([tf.add_n(tensors), tf.add_n(tensors[:3])], 0), 4), x, 500),
}))
"""

LARGE = """
@tf.function
def step(x):
    return digest(tf.add_n([tf.sin(x), tf.cos(x), tf.tanh(x)]))

x = tf.constant(np.random.default_rng(0).normal(size=(2048, 8192)).astype("float32"))
print(json.dumps({"67 MB each": values(step, x, 25)}))
"""


@pytest.mark.parametrize("source", [SHARED, LARGE], ids=["shared", "large"])
def test_a_sum_has_one_value(source: str, tmp_path: Path) -> None:
    run = ran(detrain, tmp_path, PRELUDE + source, "--bare").ok()

    found = json.loads(run.out)
    assert found
    assert {name: len(values) for name, values in found.items()} == dict.fromkeys(found, 1)


KINDS = """
def body(x):
    a, b, c = tf.sin(x), tf.cos(x), tf.tanh(x)
    return tf.reduce_sum(tf.add_n([a, b, c])) + tf.reduce_sum(a * b * c)

def looped(x):
    total = tf.constant(0.0)
    for _ in tf.range(3):
        a, b, c = tf.sin(x), tf.cos(x), tf.tanh(x)
        total += tf.reduce_sum(tf.add_n([a, b, c])) + tf.reduce_sum(a * b * c)
    return total

def gradient_of(function):
    def found(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = function(x)
        return tape.gradient(loss, x)
    return found

def row(x):
    a, b, c = tf.sin(x), tf.cos(x), tf.tanh(x)
    return tf.add_n([a, b, c]) * a * b * c

x = tf.constant(np.random.default_rng(0).normal(size=100).astype("float32"))
traced = tf.function(body)
copies = [op for op in traced.get_concrete_function(x).graph.get_operations() if op.type == "Snapshot"]
want = gradient_of(body)(x)
found = {
    "a gradient in the same function": tf.function(gradient_of(body))(x),
    "through a function": gradient_of(traced)(x),
    "through a function in a function": tf.function(gradient_of(traced))(x),
    "through a graph": tf.function(lambda x: tf.gradients(body(x), x)[0])(x),
    "through XLA": gradient_of(tf.function(body, jit_compile=True))(x),
    "through a loop": gradient_of(tf.function(looped))(x) / 3,
    "through a loop in a function": tf.function(gradient_of(tf.function(looped)))(x) / 3,
}
print(json.dumps({name: float(np.abs(gradient - want).max()) for name, gradient in found.items()}))
print(float(np.abs(tf.vectorized_map(tf.function(row), x, fallback_to_while_loop=False) - row(x)).max()))
print(len(copies))
"""


def test_sums_keep_their_gradients(tmp_path: Path) -> None:
    run = ran(detrain, tmp_path, PRELUDE + KINDS, "--bare").ok()

    gradients, vectorized, copies = run.out.splitlines()
    assert int(copies) > 0
    assert float(vectorized) < 1e-6
    assert all(difference < 1e-5 for difference in json.loads(gradients).values()), gradients


NETWORKS = """
import hashlib
import keras

keras.utils.set_random_seed(3)
tf.config.experimental.enable_op_determinism()
tf.config.threading.set_intra_op_parallelism_threads(2)
tf.config.threading.set_inter_op_parallelism_threads(2)
L = keras.layers

def convolutions():
    x = inputs = keras.Input((8, 8, 3))
    for _ in range(2):
        x = L.Conv2D(16, 3, padding="same", activation="silu")(x)
        branches = [L.BatchNormalization()(L.DepthwiseConv2D(3, padding="same", activation=name)(x)) for name in ("silu", "tanh")]
        x = L.Add()([x, *branches]) + L.Multiply()([x, *branches])
    return keras.Model(inputs, L.Dense(10)(L.GlobalAveragePooling2D()(x)))

def attention():
    x = inputs = keras.Input((8, 16))
    for _ in range(2):
        h = L.LayerNormalization()(x)
        branches = [L.Dense(16, "tanh")(h), L.MultiHeadAttention(2, 8)(h, h), L.Conv1D(16, 3, padding="same")(h)]
        x = L.Add()([x, *branches]) + L.Multiply()(branches)
    return keras.Model(inputs, L.Dense(10)(L.GRU(8)(x)))

for make in (convolutions, attention):
    model, optimizer = make(), keras.optimizers.AdamW(1e-3, clipnorm=1.0)
    optimizer.build(model.trainable_variables)
    losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = losses(y, model(x, training=True))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))

    x = tf.constant(np.random.default_rng(0).normal(size=(16, *model.input_shape[1:])).astype("float32"))
    for _ in range(4):
        step(x, tf.range(16) % 10)
    print(hashlib.sha256(b"".join(variable.numpy().tobytes() for variable in model.variables)).hexdigest())
"""


def test_networks_have_the_bits_of_plain_python(tmp_path: Path) -> None:
    run = ran(detrain, tmp_path, PRELUDE + NETWORKS, "--bare")
    expected = plain("program.py", cwd=tmp_path)

    assert expected.status == run.status == 0, run.err
    assert len(run.out.splitlines()) == 2
    assert run.out == expected.out
