"""With `--after-batches` a run that is killed behind the batches of an epoch goes on there: no body runs again, and all
ends as in a run that nothing interrupted.
"""

from __future__ import annotations

import importlib.util
import signal
from pathlib import Path

import pytest

from tests.e2e.runs import detrain

EPOCHS = """
for epoch in range(3):
    for step, batch in {loop}:
        {update}
        print("body", epoch, step)
    {evaluates}
    if (epoch, len(os.environ.get("DIES", ""))) == (1, 1):
        os.kill(os.getpid(), 9)
    print("epoch", epoch, {told})
print("end", {told})
"""
TORCH = """
import os, random, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
class Stream(IterableDataset):
    def __iter__(self):
        yield from (torch.tensor([random.random(), float(number)]) for number in range(12))
def batches():
    yield from DataLoader(data, 4, shuffle=True)
model = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.5), nn.Linear(4, 1))
optimizer = torch.optim.Adam(model.parameters(), 0.01)
data = torch.randn(20, 2)
def update(batch):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
"""
OF_TORCH = {
    "update": "update(batch)",
    "evaluates": "held = torch.rand(2)",
    "told": "held.tolist(), float(sum(p.sum() for p in model.parameters()))",
}
JAX = """
import os
import jax, jax.numpy as jnp, numpy as np, optax
key = jax.random.key(0)
weights = {"w": jax.random.normal(key, (4,)), "b": jnp.zeros(())}
optimizer = optax.adam(0.01)
state = optimizer.init(weights)
data = np.random.default_rng(0).normal(size=(5, 8, 4)).astype(np.float32)
@jax.jit
def update(weights, state, x):
    grads = jax.grad(lambda w: jnp.mean((x @ w["w"] + w["b"] - 1) ** 2))(weights)
    updates, state = optimizer.update(grads, state)
    return optax.apply_updates(weights, updates), state
"""
FIT = """
import os
import numpy as np, tensorflow as tf
class Last(tf.keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print("epoch", epoch, logs["loss"], np.random.rand())
        if (epoch, len(os.environ.get("DIES", ""))) == (1, 1):
            os.kill(os.getpid(), 9)
    def on_train_batch_end(self, batch, logs=None):
        print("body", batch)
model = tf.keras.Sequential([tf.keras.layers.Dense(4), tf.keras.layers.Dropout(0.5), tf.keras.layers.Dense(1)])
model.compile("adam", "mse")
data = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
model.fit(data, data[:, :1], batch_size=4, epochs=3, verbose=0, callbacks=[Last()])
print("end", [float(tf.reduce_sum(each)) for each in model.weights])
"""
PROGRAMS = {
    "torch": TORCH + EPOCHS.format(loop="enumerate(DataLoader(data, 4, shuffle=True, num_workers=2))", **OF_TORCH),
    "torch, a stream": TORCH + EPOCHS.format(loop="enumerate(DataLoader(Stream(), 4))", **OF_TORCH),
    "torch, a generator": TORCH + EPOCHS.format(loop="zip(range(9), batches())", **OF_TORCH),
    "jax": JAX
    + EPOCHS.format(
        loop="enumerate(np.random.permutation(data))",
        update="weights, state = update(weights, state, batch)",
        evaluates="held = np.random.rand(2)",
        told="held, float(weights['w'].sum())",
    ),
    "tensorflow": FIT,
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=() if kind == "torch" else pytest.mark.slow) for kind in PROGRAMS])
def test_a_run_that_is_killed_behind_the_batches_goes_on_there(kind: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(kind.partition(",")[0]) is None:
        pytest.skip("not installed")
    (tmp_path / "program.py").write_text(PROGRAMS[kind])
    whole = detrain("run", "--fresh", "--ckpt", "whole", "program.py", cwd=tmp_path)
    assert whole.status == 0, whole.err

    killed = detrain("run", "--after-batches", "program.py", cwd=tmp_path, DIES="1")
    assert killed.status == -signal.SIGKILL
    resumed = detrain("run", "--after-batches", "program.py", cwd=tmp_path)

    assert resumed.status == 0, resumed.err
    count = 3 if "stream" in kind else 5
    assert f"resuming program at 1:{count} " in resumed.err
    bodies = [line for line in whole.out.splitlines() if line.startswith("body")]
    assert [line for line in resumed.out.splitlines() if line.startswith("body")] == bodies[2 * count :]
    assert resumed.out.splitlines() == whole.out.splitlines()[-len(resumed.out.splitlines()) :]
