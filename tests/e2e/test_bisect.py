"""`detrain diff --bisect`: it names the step and the op in which two runs part."""

from __future__ import annotations

from pathlib import Path

import pytest

from detrain.base.errors import AnotherProgram
from tests.e2e.forkserver import Server
from tests.e2e.runs import detrain, plain

pytest.importorskip("tensorflow")

PROGRAM = """
import numpy as np, keras, tensorflow as tf
rng = np.random.default_rng(0)
x, y = rng.normal(size=(64, 9, 9, 8)).astype("float32"), rng.integers(0, 3, 64)
model = keras.Sequential([keras.Input((9, 9, 8)), keras.layers.Conv2D(16, 3, name="conv1"), keras.layers.Flatten(),
    keras.layers.Dense(3)])
optimizer = keras.optimizers.SGD(1e-2)
loss = keras.losses.SparseCategoricalCrossentropy(True)
@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        value = loss(y, model(x, training=True))
    optimizer.apply_gradients(zip(tape.gradient(value, model.trainable_variables), model.trainable_variables))
    return value
for epoch in range(2):
    for batch in range(4):
        step(tf.constant(x[batch * 16:][:16]), tf.constant(y[batch * 16:][:16]))
"""


OF_TORCH = """
import sys, torch
net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.01 * len(sys.argv))
for epoch in range(2):
    for x in torch.arange(18.0).reshape(3, 2, 3):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
"""


CONVOLUTION = """
import hashlib
import numpy as np, tensorflow as tf
x = np.random.default_rng(0).normal(size=(64, 9, 9, 8)).astype("float32")[:16]
k = np.random.default_rng(1).normal(size=(3, 3, 8, 16)).astype("float32")
print(hashlib.sha256(tf.function(lambda x, k: tf.nn.conv2d(x, k, 1, "VALID"))(x, k).numpy().tobytes()).hexdigest())
"""
"""Two libraries compute it otherwise on most processors, on some not: then the matrix product is the first that
differs."""


@pytest.mark.slow
def test_the_first_op_that_another_library_computes_otherwise_is_named(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    for home, setting in (("a", "1"), ("b", "0")):
        assert detrain("run", "--ckpt", home, "program.py", cwd=tmp_path, TF_ENABLE_ONEDNN_OPTS=setting).status == 0

    run = detrain("diff", "--bisect", "a", "b", "program.py", cwd=tmp_path)

    assert run.status == 1
    convolutions = {plain("-c", CONVOLUTION, TF_ENABLE_ONEDNN_OPTS=setting).last_line() for setting in "01"}
    first = "conv1/Conv2D" if len(convolutions) == 2 else "dense/MatMul"
    assert f"they part in step 0:0, at step/forward/sequential/{first}" in run.out, run.out + run.err


@pytest.mark.parametrize("other", ["source", "arguments", "seed"])
def test_runs_of_two_programs_are_not_bisected(other: str, torch_server: Server, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    for home in ("a", "b"):
        is_other = home == "b"
        program.write_text(OF_TORCH.replace("0.01", "0.02") if is_other and other == "source" else OF_TORCH)
        options = ["--ckpt", home, *(["--seed", "7"] if is_other and other == "seed" else [])]
        words = ["more"] if is_other and other == "arguments" else []
        torch_server.detrain("run", *options, program, *words, cwd=tmp_path).ok()
    program.write_text(OF_TORCH)

    run = detrain("diff", "--bisect", "a", "b", program, cwd=tmp_path)

    assert run.status == AnotherProgram.exit_code, run.out + run.err
    assert "'b' is a run of another program" in run.err


def test_bisecting_needs_the_program(tmp_path: Path) -> None:
    run = detrain("diff", "--bisect", "a", "b", cwd=tmp_path)

    assert run.status == 64
    assert "--bisect and PROGRAM go together" in run.err
