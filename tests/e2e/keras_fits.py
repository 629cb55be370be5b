"""Programs that train by Keras's `fit` on PyTorch and on JAX: its documented arguments, in pairs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.e2e.choices import DIE, Row, pairs
from tests.e2e.ordinary import LOADED, arguments

PRELUDE: Final = (
    f"""\
import hashlib, os, random, signal, sys
import keras
import numpy as np

{DIE}"""
    + """\
class Die(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        starts.append(turns + 1)
    def on_train_batch_end(self, batch, logs=None):
        die()

"""
    + LOADED
    + """
x = np.random.default_rng(0).normal(size=(46, 6)).astype("float32")
y = (x.sum(1) > 0).astype("int32")
layers = keras.layers
"""
)

_GIVEN: Final = {
    "arrays": "x, y",
    "DataLoader": "DataLoader(TensorDataset(torch.from_numpy(x), torch.from_numpy(y)), 10, shuffle=True)",
    "DataLoader, workers": "DataLoader(TensorDataset(torch.from_numpy(x), torch.from_numpy(y)), 10, num_workers=2)",
    "PyDataset": "Data()",
    "PyDataset that draws": "Data(draws=True)",
    "endless generator": "batches(1000)",
}
_MODELS: Final = {
    "dense": "layers.Dense(8, activation='relu'), layers.Dropout(0.2), layers.BatchNormalization(), layers.Dense(2)",
    "recurrent": "layers.Reshape((3, 2)), layers.LSTM(4, dropout=0.2), layers.Dense(2)",
    "convolution": "layers.Reshape((6, 1)), layers.Conv1D(4, 3), layers.GaussianNoise(0.1), layers.Flatten(), layers.Dense(2)",
    "attention": "layers.Dense(12), layers.Reshape((3, 4)), layers.LayerNormalization(), layers.GRU(4), "
    "layers.Dense(2, kernel_regularizer='l2')",
}
_OPTIMIZERS: Final = {
    "adam": "'adam'",
    "momentum": "keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True)",
    "schedule": "keras.optimizers.AdamW(keras.optimizers.schedules.CosineDecay(0.01, 20), clipnorm=1.0)",
    "averages": "keras.optimizers.RMSprop(0.01, use_ema=True, ema_overwrite_frequency=4)",
    "accumulation": "keras.optimizers.Lion(0.001, gradient_accumulation_steps=2)",
}
FIT: Final[dict[str, list[object]]] = {
    "data": list(_GIVEN),
    "every": ["2b", "1"],
    "steps_per_epoch": [None, 7],
    "model": list(_MODELS),
    "optimizer": list(_OPTIMIZERS),
    "validation": [None, "arrays", "split", "PyDataset"],
    "validation_steps": [None, 1],
    "validation_freq": [1, 2],
    "initial_epoch": [0, 1],
    "shuffle": [True, False, "batch"],
    "weights": [None, "class", "sample"],
    "callbacks": ["", "EarlyStopping", "ReduceLROnPlateau", "ModelCheckpoint", "schedule"],
    "run": ["", "run_eagerly", "steps_per_execution"],
}


_SHOWS: Final = """\
def show(found, *more):
    digest = hashlib.sha256(b"".join(np.ascontiguousarray(keras.ops.convert_to_numpy(each)).tobytes() for each in found))
    print("starts", starts)
    print(digest.hexdigest(), np.random.rand(), random.random(), *more)
"""

_MADE: Final = (
    PRELUDE
    + _SHOWS
    + """\
keras.utils.set_random_seed(5)
model = keras.Sequential([keras.Input((6,)), layers.Dense(8, activation="relu"), layers.Dropout(0.2), layers.BatchNormalization(),
                          layers.Dense(2)])
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
order = np.random.default_rng(7)
"""
)
_ON_BATCHES: Final = """\
model.compile("adam", loss_of, metrics=["accuracy"])
for epoch in range(3):
    starts.append(turns + 1)
    rows = order.permutation(46)
    for start in range(0, 46, 10):
        die()
        chosen = rows[start : start + 10]
        logs = model.train_on_batch(x[chosen], y[chosen], return_dict=True)
    print(epoch, logs, model.evaluate(x[:20], y[:20], verbose=0))
show([*model.variables, *model.optimizer.variables])
"""
LOOPS: Final = {
    ("torch", "train_on_batch"): _MADE + _ON_BATCHES,
    ("jax", "train_on_batch"): _MADE + _ON_BATCHES,
    ("torch", "PyTorch's optimizer"): _MADE
    + """\
import torch
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(3):
    starts.append(turns + 1)
    for start in range(0, 46, 10):
        die()
        a, b = torch.from_numpy(x[start : start + 10]), torch.from_numpy(y[start : start + 10]).long()
        loss = torch.nn.functional.cross_entropy(model(a, training=True), b)
        model.zero_grad()
        loss.backward()
        optimizer.step()
    print(loss.item())
show([*model.variables, *(each for state in optimizer.state.values() for each in state.values())])
""",
    ("torch", "Keras's optimizer"): _MADE
    + """\
import torch
optimizer = keras.optimizers.AdamW(1e-3)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y)), 10, shuffle=True)
for epoch in range(3):
    starts.append(turns + 1)
    for a, b in data:
        die()
        loss = loss_of(b, model(a, training=True))
        model.zero_grad()
        weights = [each for each in model.trainable_weights]
        loss.backward()
        with torch.no_grad():
            optimizer.apply([each.value.grad for each in weights], weights)
    print(float(loss))
show([*model.variables, *optimizer.variables])
""",
    ("jax", "stateless calls"): _MADE
    + """\
import jax
optimizer = keras.optimizers.Adam()
optimizer.build(model.trainable_variables)
def loss_from(weights, others, rows, kinds):
    logits, others = model.stateless_call(weights, others, rows, training=True)
    return loss_of(kinds, logits), others
gradients_of = jax.value_and_grad(loss_from, has_aux=True)
@jax.jit
def step(state, rows, kinds):
    weights, others, kept = state
    (loss, others), gradients = gradients_of(weights, others, rows, kinds)
    weights, kept = optimizer.stateless_apply(kept, gradients, weights)
    return loss, (weights, others, kept)
state = tuple([each.value for each in some]
    for some in (model.trainable_variables, model.non_trainable_variables, optimizer.variables))
for epoch in range(3):
    starts.append(turns + 1)
    for start in range(0, 46, 10):
        die()
        loss, state = step(state, x[start : start + 10], y[start : start + 10])
    print(float(loss))
show(jax.tree.leaves(state))
""",
}
"""Loops of a program's own, by the backend and the kind of update."""


def on(backend: str, program: str) -> str:
    """Return a program that sets Keras's backend."""
    return f'import os\nos.environ["KERAS_BACKEND"] = "{backend}"\n{program}'


def lives_on(row: Row, backend: str) -> bool:
    """Return True if `fit` uses one iterator in all epochs, and no other process can make that iterator."""
    is_known = "DataLoader" in str(row["data"]) or (row["data"] == "arrays" and row["shuffle"] != "batch")
    return row["steps_per_epoch"] is not None and not (backend == "torch" and is_known)


def rows(backend: str) -> list[Row]:
    """Return calls of `fit` that Keras accepts on a backend."""
    return pairs(FIT, lambda row: _is_taken(row, backend))


def _is_taken(row: Mapping[str, object], backend: str) -> bool:
    data = str(row["data"])
    if backend == "torch" and row.get("run") == "steps_per_execution":
        return False
    if data == "endless generator" and row.get("steps_per_epoch", 1) is None:
        return False
    if data != "arrays" and (row.get("shuffle", True) is not True or row.get("validation") == "split"):
        return False
    if data != "arrays" and row.get("weights") == "sample":
        return False
    if data in ("endless generator", "DataLoader", "DataLoader, workers", "PyDataset") and row.get("weights"):
        return False
    if row.get("optimizer") == "schedule" and row.get("callbacks") in ("ReduceLROnPlateau", "schedule"):
        return False
    of_validation = row.get("validation_steps") or row.get("validation_freq", 1) != 1
    return not (of_validation and row["validation"] is None)


def text(row: Row, backend: str) -> str:
    """Return the program of a row."""
    run = {"": "", "run_eagerly": ", run_eagerly=True", "steps_per_execution": ", steps_per_execution=2"}[str(row["run"])]
    loader = "import torch\nfrom torch.utils.data import DataLoader, TensorDataset\n" if "DataLoader" in str(row["data"]) else ""
    program = f"""\
{PRELUDE}{_SHOWS}{loader}keras.utils.set_random_seed(5)
model = keras.Sequential([keras.Input((6,)), {_MODELS[str(row["model"])]}])
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile({_OPTIMIZERS[str(row["optimizer"])]}, loss_of, metrics=["accuracy"]{run})
history = model.fit({arguments(row, _GIVEN[str(row["data"])], "Die()")})
show([*model.variables, *model.optimizer.variables], int(model.optimizer.iterations), history.history)
"""
    return on(backend, program)
