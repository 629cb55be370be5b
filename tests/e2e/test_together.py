"""Many trials in one process: each is, bit for bit, what it is in a process of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.runs import detrain
from tests.e2e.test_inject import FIT, MANY, PLAIN, PROGRAM, XLA

pytest.importorskip("tensorflow")

OPTIONS = ("--seed", "4", "--after", "2", "-n")

COUNTS = """
import random
import numpy as np, keras, tensorflow as tf
rng = np.random.default_rng(0)
x, y = rng.normal(size=(80, 6)).astype("float32"), rng.integers(0, 3, 80)
model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, name="one"), keras.layers.Dropout(0.3),
    keras.layers.Dense(3, name="two")])
optimizer = keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.9), momentum=0.9)
loss = keras.losses.SparseCategoricalCrossentropy(True)
accuracy = keras.metrics.SparseCategoricalAccuracy()
losses, weights, best = [], np.ones(8, "float32"), None
@tf.function
def step(x, y, w):
    with tf.GradientTape() as tape:
        out = model(x, training=True)
        value = tf.reduce_mean(w) * loss(y, out)
    optimizer.apply_gradients(zip(tape.gradient(value, model.trainable_variables), model.trainable_variables))
    accuracy.update_state(y, out)
    return value
for epoch in range(2):
    accuracy.reset_state()
    for batch, (a, b) in enumerate(tf.data.Dataset.from_tensor_slices((x, y)).shuffle(80).batch(8)):
        value = float(step(a * random.choice([1.0, 2.0]), b, tf.constant(weights)))
        weights *= np.float32(1 + np.random.rand() / 8)  # Python state that the next step takes
        losses.append(value)
        best = value if best is None else min(best, value)
    print(epoch, best, len(losses))
"""

EAGER = """
import numpy as np, keras, tensorflow as tf
rng = np.random.default_rng(0)
x, y = rng.normal(size=(64, 6)).astype("float32"), rng.integers(0, 3, 64)
layer, weights = keras.layers.Dense(8, activation="tanh", name="one"), tf.Variable(rng.normal(size=(8, 3)).astype("float32"))
layer.build((8, 6))
optimizer = keras.optimizers.Adam(1e-2)
for epoch in range(2):
    for batch, (a, b) in enumerate(tf.data.Dataset.from_tensor_slices((x, y)).shuffle(64).batch(8)):
        with tf.GradientTape() as tape:
            out = tf.nn.dropout(layer(a), 0.2) @ weights
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(b, out))
        variables = [*layer.trainable_variables, weights]
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        if batch % 3 == 1:
            accuracy = float(np.mean(np.argmax(out, 1) == b))
            print(float(loss), accuracy)
"""


def _records(folder: Path, name: str, *command: object) -> tuple[list[dict[str, object]], str]:
    done = detrain("random", "--out", name, *command, cwd=folder).ok()
    return [json.loads(path.read_text()) for path in sorted((folder / name).glob("*.json"))], done.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "arguments", "count"),
    [
        pytest.param(COUNTS, (), 2, id="python state"),
        pytest.param(EAGER, (), 2, id="eager", marks=pytest.mark.slow),
        pytest.param(PROGRAM, PLAIN, 5, id="loop", marks=pytest.mark.slow),
        pytest.param(PROGRAM, FIT, 5, id="fit", marks=pytest.mark.slow),
        pytest.param(PROGRAM, XLA, 4, id="XLA", marks=pytest.mark.slow),
        pytest.param(PROGRAM, MANY, 4, id="fit of two replicas", marks=pytest.mark.slow),
    ],
)
def test_trials_in_one_process_are_those_of_processes_of_their_own(
    text: str, arguments: tuple[object, ...], count: int, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(text)
    alone, _ = _records(tmp_path, "alone", *OPTIONS, count, "--engine", "process", "program.py", *arguments)
    together, said = _records(tmp_path, "together", *OPTIONS, count, "program.py", *arguments)

    assert len(alone) >= count - 1
    assert any(record["outcome"] for record in alone)
    assert together == alone
    assert ("in a process of its own" in said) is (arguments == MANY)
    first = next((tmp_path / "alone").glob("*.json"))
    assert detrain("replay", first, "program.py", *arguments, cwd=tmp_path).out.startswith("IDENTICAL")
