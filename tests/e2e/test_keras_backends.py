"""Keras on PyTorch and on JAX: `fit` by its documented arguments and loops of a program's own, killed at the starts of
epochs and inside them, end as if nothing had been. Other backends are refused before they train.

A process is what sets Keras's backend, once and for all, and what is killed.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from detrain.base import errors
from tests.e2e.choices import Row, ends_as_if_never_killed, name_of
from tests.e2e.forkserver import Server
from tests.e2e.keras_fits import FIT, LOOPS, PRELUDE, lives_on, on, rows, text
from tests.e2e.programs import DIE
from tests.e2e.runs import compared, detrain, ran

FITS = [(backend, row) for backend in ("torch", "jax") for row in rows(backend)]
FIRST = FITS[0]


@pytest.mark.parametrize(
    ("backend", "row"),
    [
        pytest.param(
            backend, row, id=f"{backend}, {name_of(row, FIT)}", marks=[] if (backend, row) == FIRST else [pytest.mark.slow]
        )
        for backend, row in FITS
    ],
)
def test_a_fit_killed_again_and_again_ends_as_one_that_never_was(
    backend: str, row: Row, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server: Server = request.getfixturevalue(f"{backend}_server")
    (program := tmp_path / "program.py").write_text(text(row, backend))
    ends_as_if_never_killed(
        server,
        program,
        row["every"],
        request,
        lambda folder: server.detrain("run", "--bare", program, cwd=folder),
        refused=errors.NotCapturable.exit_code if lives_on(row, backend) else 0,
    )


@pytest.mark.parametrize(
    ("backend", "name"),
    [pytest.param(*each, id=", ".join(each), marks=pytest.mark.slow) for each in LOOPS],
)
def test_a_loop_of_the_programs_own_ends_as_one_that_never_was(
    backend: str, name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server: Server = request.getfixturevalue(f"{backend}_server")
    (program := tmp_path / "program.py").write_text(on(backend, LOOPS[backend, name]))
    ends_as_if_never_killed(server, program, "2b", request, lambda folder: server.detrain("run", "--bare", program, cwd=folder))


BEGINS = """
class Begins(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        DOES

model = keras.Sequential([keras.Input((6,)), layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(DATA, epochs=1, verbose=0, callbacks=[Begins()])
print("trained")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("does", "data", "said"),
    [
        ("np.random.rand()", "x, y", "it draws random numbers"),
        ("pass", "Data()", "code of the program loads the data"),
        ("self.model.optimizer.learning_rate = 0.01 / (1 + batch)", "x, y", ""),
    ],
    ids=["it draws", "Python loads", "it sets the rate"],
)
def test_on_jax_a_callback_before_the_load_is_refused_where_the_order_matters(
    does: str, data: str, said: str, jax_server: Server, tmp_path: Path
) -> None:
    program = PRELUDE + BEGINS.replace("DOES", does).replace("DATA", data)
    done = ran(jax_server, tmp_path, on("jax", program))

    assert done.status == (errors.FrameworkUnsupported.exit_code if said else 0), done.err
    assert said in done.err
    assert ("trained" in done.out) == (not said)


TF_DATA = """
import os
os.environ["KERAS_BACKEND"] = "jax"
import jax
import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(1)
rows = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)])
optimizer = keras.optimizers.Adam(1e-2)
optimizer.build(model.trainable_variables)
data = tf.data.Dataset.from_tensor_slices(rows).shuffle(64, seed=1).batch(8)

def loss_of(weights, others, batch):
    given, others = model.stateless_call(weights, others, batch)
    return ((given[:, 0] - batch.sum(1)) ** 2).mean(), others

@jax.jit
def step(state, batch):
    weights, others, slots = state
    (loss, others), gradients = jax.value_and_grad(loss_of, has_aux=True)(weights, others, batch)
    weights, slots = optimizer.stateless_apply(slots, gradients, weights)
    return loss, (weights, others, slots)

groups = model.trainable_variables, model.non_trainable_variables, optimizer.variables
state = [[variable.value for variable in group] for group in groups]
for epoch in range(3):
    for number, batch in enumerate(data):
        loss, state = step(state, batch.numpy())
        die(f"{epoch}:{number}")
    print(epoch, float(loss), flush=True)
print([np.asarray(each).tobytes().hex()[:64] for each in state[0]])
"""


@pytest.mark.slow
def test_keras_on_jax_takes_its_batches_from_tensorflow(tmp_path: Path) -> None:
    """TensorFlow's import behind Keras's ended the program, `--bare`, too: its adapter took Keras for its own.

    Which framework is imported first is what is tried, so a process is started.
    """
    _, died, _ = compared(detrain, tmp_path, DIE(TF_DATA), every="3b", at="1:5", whole="bare")

    assert "not captured" not in died.err


def test_another_backend_is_refused_as_keras_is_imported(torch_server: Server, tmp_path: Path) -> None:
    done = ran(torch_server, tmp_path, "import keras\nprint('imported')\n", KERAS_BACKEND="numpy")

    assert done.status == errors.FrameworkUnsupported.exit_code, done.err
    assert "Keras runs on 'numpy' here" in done.err
    assert "--bare" in done.err
    assert done.out == ""


MEASURED = """
class Means(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        print("mean", batch, float(logs["loss"]), float(logs["accuracy"]))

keras.utils.set_random_seed(5)
net = keras.Sequential([keras.Input((6,)), layers.Dense(8, activation="relu"), layers.Dense(2)])
net.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
net.fit(x[:40], y[:40], batch_size=10, epochs=2, shuffle=False, verbose=0, callbacks=[Means()])
print(net.count_params())
"""


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "layer"), [("torch", "net.dense_1"), ("jax", "dense_1")])
def test_a_fault_in_a_layer_is_replayed_and_told_by_loss_and_accuracy(
    backend: str, layer: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """What `fit` says behind each batch, its means, is the oracle of what each step is said to have."""
    server: Server = request.getfixturevalue(f"{backend}_server")
    (tmp_path / "program.py").write_text(on(backend, PRELUDE + MEASURED))
    fault = ("--model", "SET:3", "--site", layer, "--stage", "backward", "--at", "1:2", "--out", "record.json")

    whole = server.detrain("run", "--bare", "program.py", cwd=tmp_path)
    server.detrain("inject", *fault, "program.py", cwd=tmp_path).ok()
    again = server.detrain("replay", "record.json", "program.py", cwd=tmp_path)

    assert again.out.startswith("IDENTICAL"), again.err
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["experiment"]["injection"]["site"].split("/")[-2] == layer
    first = record["steps"][0]  # a fault in the backward pass shows in the steps behind it
    assert first["at"] == [0, 1, 2]
    means = np.array([line.split()[1:] for line in whole.out.splitlines() if line.startswith("mean")], np.float64)
    (_, *before), (_, *behind) = means[4 + 1], means[4 + 2]
    wanted = 3 * np.array(behind) - 2 * np.array(before)
    np.testing.assert_allclose([first["series"]["loss"], first["series"]["accuracy"]], wanted, atol=2e-5)
