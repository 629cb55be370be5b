"""Keras on PyTorch and on JAX, whose weights no checkpoint holds: a run says so before it trains, whichever way the
program trains and whatever it gives to `fit`; `--bare` runs it.

A process is what sets Keras's backend, once and for all.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from detrain.base import errors
from tests.e2e.forkserver import Server

MADE = """\
import random
import keras, numpy as np
random.seed(3)
np.random.seed(3)
x, y = np.random.normal(size=(40, 6)).astype("float32"), np.random.randint(0, 2, 40)
model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dropout(0.2),
    keras.layers.Dense(2)])
"""
FIT = """\
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
history = model.fit({data}, epochs=2, verbose=0, {more})
print({name: [float(each) for each in values] for name, values in history.history.items()})
"""
DATA = {
    "arrays": "x, y, batch_size=10",
    "a DataLoader": "__import__('torch').utils.data.DataLoader([(row, kind) for row, kind in zip(x, y)], batch_size=10)",
    "a generator": "((x[n % 4 * 10 :][:10], y[n % 4 * 10 :][:10]) for n in range(8)), steps_per_epoch=4",
}
MORE = {
    "arrays": "validation_data=(x[:10], y[:10]), class_weight={0: 1.0, 1: 2.0}",
    "a DataLoader": "callbacks=[keras.callbacks.EarlyStopping('loss', patience=3)]",
    "a generator": "validation_data=(x[:10], y[:10]), callbacks=[keras.callbacks.ReduceLROnPlateau('loss')]",
}
TORCH_LOOP = """\
import torch
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(2):
    for start in range(0, 40, 10):
        rows, kinds = torch.from_numpy(x[start : start + 10]), torch.from_numpy(y[start : start + 10])
        loss = torch.nn.functional.cross_entropy(model(rows, training=True), kinds)
        model.zero_grad()
        loss.backward()
        optimizer.step()
    print(loss.item())
"""
JAX_LOOP = """\
import jax
optimizer = keras.optimizers.Adam()
optimizer.build(model.trainable_variables)
def loss_of(weights, others, rows, kinds):
    logits, others = model.stateless_call(weights, others, rows, training=True)
    return keras.ops.mean(keras.losses.sparse_categorical_crossentropy(kinds, logits, from_logits=True)), others
gradients_of = jax.jit(jax.value_and_grad(loss_of, has_aux=True))
weights, others, kept = ([each.value for each in some]
    for some in (model.trainable_variables, model.non_trainable_variables, optimizer.variables))
for epoch in range(2):
    for start in range(0, 40, 10):
        (loss, others), gradients = gradients_of(weights, others, x[start : start + 10], y[start : start + 10])
        weights, kept = optimizer.stateless_apply(kept, gradients, weights)
    print(float(loss))
"""
_FITS = {f"fit on {name}": FIT.replace("{data}", DATA[name]).replace("{more}", MORE[name]) for name in DATA}
CASES = [
    *(("torch", name, _FITS[name]) for name in _FITS),
    ("torch", "a loop of its own", TORCH_LOOP),
    *(("jax", name, _FITS[name]) for name in _FITS if "DataLoader" not in name),
    ("jax", "a loop of its own", JAX_LOOP),
]


@pytest.mark.parametrize(
    ("backend", "name", "training"),
    [
        pytest.param(*case, id=f"{case[0]}, {case[1]}", marks=[pytest.mark.slow] if number else [])
        for number, case in enumerate(CASES)
    ],
)
def test_it_is_refused_before_it_trains_and_runs_bare(
    backend: str, name: str, training: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server: Server = request.getfixturevalue(f"{backend}_server")
    seeded = "import torch\ntorch.manual_seed(3)\n" if backend == "torch" else ""  # `fit` shuffles by it
    (tmp_path / "program.py").write_text(MADE + seeded + training)

    refused = server.detrain("run", "program.py", cwd=tmp_path, KERAS_BACKEND=backend)

    assert refused.status == errors.FrameworkUnsupported.exit_code, (name, refused.err)
    assert f"Keras runs on {backend!r} here" in refused.err
    assert "--bare" in refused.err
    assert refused.out == ""
    assert not list(tmp_path.glob("ckpt/*.h5"))
    bare = server.detrain("run", "--bare", "program.py", cwd=tmp_path, KERAS_BACKEND=backend)
    plain = server.bare("program.py", cwd=tmp_path, KERAS_BACKEND=backend)
    assert (bare.status, plain.status) == (0, 0), bare.err + plain.err
    assert bare.out == plain.out != ""
