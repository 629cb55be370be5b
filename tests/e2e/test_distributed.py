"""Distributed sets that live on from epoch to epoch: drawn from in Python they come back, by a compiled function they
are named.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from detrain.base.errors import NotCapturable
from tests.e2e.forkserver import Server
from tests.e2e.runs import after_deaths, compared
from tests.e2e.test_tensorflow import PRELUDE

PROGRAM = (
    PRELUDE.replace(
        "\nx = ",
        """
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
x = """,
    )
    + """
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    weights, optimizer = tf.Variable(tf.ones([5, 3])), keras.optimizers.Adam(0.1)
    optimizer.build([weights])

def replica_step(a, b):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((a @ weights - b) ** 2)
    optimizer.apply_gradients([(tape.gradient(loss, weights), weights)])
    return loss

@tf.function
def step(a, b):
    return strategy.reduce("mean", strategy.run(replica_step, (a, b)), None)

@tf.function
def step_from(batches):
    return strategy.reduce("mean", strategy.run(replica_step, next(batches)), None)

batches = iter(strategy.experimental_distribute_dataset(DATA))
for epoch in range(4):
    losses = []
    for i in range(6):
        losses.append(float(STEP))
        die(f"{epoch}:{i}")
    print(epoch, sum(losses).hex(), flush=True)
show(weights, *optimizer.variables)
"""
)
ENDLESS = "tf.data.Dataset.from_tensor_slices((x, y)).shuffle(24).batch(6).repeat()"
ENDING = "tf.data.Dataset.from_tensor_slices((x[:23], y[:23])).shuffle(24).batch(6).repeat(7)"
"""What may end with a part for some devices only is drawn from by `get_next_as_optional`."""


@pytest.mark.parametrize("data", [ENDLESS, ENDING], ids=["endless", "ending"])
@pytest.mark.parametrize(("every", "place"), [("2b", "2:5"), ("1", "2:1")])
def test_one_that_python_draws_from_comes_back(data: str, every: str, place: str, server: Server, tmp_path: Path) -> None:
    text = PROGRAM.replace("DATA", data).replace("STEP", "step(*next(batches))")
    expected, _, again = compared(server, tmp_path, text, every=every, at=place, whole="bare")

    assert "resuming program at 2:" in again.err
    assert again.out.splitlines() == expected.out.splitlines()[2:]


def test_one_that_a_compiled_function_draws_from_is_named_and_no_run_goes_on_without_it(server: Server, tmp_path: Path) -> None:
    text = PROGRAM.replace("DATA", ENDLESS).replace("STEP", "step_from(batches)")
    killed, again = after_deaths(server, tmp_path, text, at="2:1")

    assert "a tf.data iterator that a tf.function advances; it takes one device's part of a distributed set" in killed.err
    assert again.status == NotCapturable.exit_code, again.err


@pytest.mark.slow
def test_optionals_are_counted_as_elements(server: Server, tmp_path: Path) -> None:
    text = PRELUDE("""
weights, optimizer, rows = tf.Variable(tf.ones([5, 3])), keras.optimizers.Adam(0.1), iter(data.repeat())
for epoch in range(3):
    for i in range(4):
        a, b = rows.get_next_as_optional().get_value()
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((a @ weights - b) ** 2)
        optimizer.apply_gradients([(tape.gradient(loss, weights), weights)])
        die(f"{epoch}:{i}")
show(weights, *optimizer.variables)
""")
    for loader in ("auto", "forward"):
        options = ("--ckpt", loader, "--loader", loader)
        expected, _, again = compared(server, tmp_path, text, *options, every="2b", at="1:2", whole="bare")

        assert again.out == expected.out


BUILT_IN_THE_LOOP = """
from KERAS import layers, Sequential
from KERAS.optimizers import *
from KERAS.optimizers import legacy
strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(REPLICAS)])
with strategy.scope():
    model = Sequential([layers.Dense(8), layers.Dropout(0.3), layers.BatchNormalization(), layers.Dense(3)])
    optimizer = OPTIMIZER(0.05)

def replica_step(a, b):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(a, training=True) - b) ** 2) * tf.random.uniform([], 1, 2, seed=3)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss

for epoch in range(4):
    with strategy.scope():
        for i, (a, b) in enumerate(strategy.experimental_distribute_dataset(data)):
            losses = strategy.experimental_local_results(strategy.run(replica_step, (a, b)))
            die(f"{epoch}:{i}")
    print(epoch, [float(loss).hex() for loss in losses], flush=True)
show(*model.variables)
"""


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize(("library", "optimizer"), [("tf_keras", "legacy.Adam"), ("tf_keras", "Adam"), ("keras", "Adam")])
def test_what_replicas_build_in_the_loop_is_built_for_their_strategy(
    library: str, optimizer: str, replicas: int, server: Server, tmp_path: Path
) -> None:
    body = BUILT_IN_THE_LOOP.replace("KERAS", library).replace("OPTIMIZER", optimizer).replace("REPLICAS", str(replicas))
    text = PROGRAM.partition("\nstrategy")[0] + body
    expected, _, again = compared(server, tmp_path, text, at="2:3", every="2b", whole="bare")

    assert "resuming program at 2:" in again.err, again.err
    assert again.out.splitlines() == expected.out.splitlines()[2:]
