"""Words before it is too late: what a run says, and finds, where people would otherwise learn of it at the resume.

What is killed is a process; a server that has imported the framework forks it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.forkserver import Server

TENSORS = """\
import hashlib, os, signal
import tensorflow as tf

made = tf.random.Generator.from_seed(3)
x = made.normal((96, 3))
y = tf.sin(x @ tf.constant([[1.0], [-0.5], [0.3]]))
weights = {"inner": 0.5 * made.normal((3, 8)), "outer": 0.5 * made.normal((8, 1))}
speed = {name: tf.zeros_like(value) for name, value in weights.items()}

STEP
def step(weights, speed, x, y):
    with tf.GradientTape() as tape:
        tape.watch(weights)
        loss = tf.reduce_mean((tf.tanh(x @ weights["inner"]) @ weights["outer"] - y) ** 2)
    gradients = tape.gradient(loss, weights)
    speed = {name: 0.9 * speed[name] + gradients[name] for name in speed}
    return {name: weights[name] - 0.05 * speed[name] for name in weights}, speed, loss

for epoch in range(5):
    order = tf.argsort(made.uniform((96,)))
    for start in range(0, 96, 32):
        chosen = order[start : start + 32]
        weights, speed, loss = step(weights, speed, tf.gather(x, chosen), tf.gather(y, chosen))
        if os.environ.get("DIE_AT") == f"{epoch}:{start}":
            os.kill(os.getpid(), signal.SIGKILL)
    print(f"epoch {epoch} {float(loss):.8f}", flush=True)
print("final", hashlib.sha256(b"".join(each.numpy().tobytes() for _, each in sorted(weights.items()))).hexdigest())
"""


@pytest.mark.parametrize("compiled", [pytest.param(False, marks=pytest.mark.slow), True])
def test_weights_that_are_plain_tensors_are_found_and_exact(compiled: bool, server: Server, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(TENSORS.replace("STEP", "@tf.function" if compiled else ""))
    whole = server.bare("program.py", cwd=tmp_path)

    died = server.detrain("run", "--every", "2b", "program.py", cwd=tmp_path, DIE_AT="3:64")
    resumed = server.detrain("run", "--every", "2b", "program.py", cwd=tmp_path)

    assert (died.status, resumed.status) == (-9, 0), died.err + resumed.err
    assert "resuming program at 3:" in resumed.err
    assert whole.status == 0
    assert resumed.last_line() == whole.last_line()
