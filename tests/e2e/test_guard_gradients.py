"""`--guard-gradients`: a gradient far too large is seen where neither slots nor weights show it; bits stay what they
are.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from detrain.base.errors import UsageError
from tests.e2e.programs import Head
from tests.e2e.runs import alarms, bare, detrain, ran

pytestmark = pytest.mark.slow
"""The fast lane has others of their kind."""

pytest.importorskip("tensorflow")

PRELUDE = Head("""
import hashlib, os
import numpy as np, keras, tensorflow as tf
x = np.random.default_rng(0).normal(size=(60, 5)).astype("float32")
y = np.random.default_rng(1).normal(size=(60, 3)).astype("float32")
def net():
    return keras.Sequential([keras.Input((5,)), keras.layers.Dense(8, "relu"), keras.layers.BatchNormalization(),
                             keras.layers.Dropout(0.3), keras.layers.Dense(3, dtype="float32")])
def show(model):
    print("weights", hashlib.sha256(b"".join(np.asarray(v).tobytes() for v in model.variables)).hexdigest())
""")

LOOP = PRELUDE("""
model, optimizer, turn = net(), keras.optimizers.SGD(1e-12), 0
@tf.function
def step(a, b, more):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(a, training=True) - b) ** 2)
    gradients = tape.gradient(loss, model.trainable_variables)
    gradients[2] = gradients[2] + more
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss
for epoch in range(2):
    for a, b in tf.data.Dataset.from_tensor_slices((x, y)).shuffle(60).batch(5):
        step(a, b, tf.constant(1e9 if os.environ.get("FAULT") == str(turn) else 0.0))
        turn += 1
show(model)
""")

FIT = PRELUDE("""
keras.mixed_precision.set_global_policy("mixed_float16")  # scaled gradients overflow in the first steps
model = net()
model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(), initial_scale=2.0**30, dynamic_growth_steps=5), "mse")
model.fit(x, y, batch_size=6, epochs=3, verbose=0)
show(model)
""")


def test_a_gradient_that_only_its_norm_shows_is_seen(tmp_path: Path) -> None:
    without = ran(detrain, tmp_path, LOOP, "--ckpt", "without", "--guard", "detect", FAULT="15").ok()
    asked = detrain("run", "--ckpt", "asked", "--guard", "detect", "--guard-gradients", "program.py", cwd=tmp_path, FAULT="15").ok()

    assert alarms(tmp_path / "without") == []
    (alarm,) = alarms(tmp_path / "asked")
    assert alarm["at"] == "1:4"
    assert alarm["variable"].startswith("gradients for")
    assert asked.out == without.out


@pytest.mark.parametrize(
    "text", [pytest.param(LOOP, id="loop"), pytest.param(FIT, id="fit in mixed precision", marks=pytest.mark.slow)]
)
def test_bits_are_those_of_the_bare_program_and_nothing_is_seen(text: str, tmp_path: Path) -> None:
    asked = ran(detrain, tmp_path, text, "--guard", "recover", "--guard-gradients").ok()

    assert "alarm" not in asked.err
    assert asked.out == bare(tmp_path / "program.py").out


def test_gradients_are_a_part_of_the_guard(tmp_path: Path) -> None:
    assert ran(detrain, tmp_path, LOOP, "--guard-gradients").status == UsageError.exit_code
