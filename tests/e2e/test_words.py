"""Words before it is too late: what a run says, and finds, where people would otherwise learn of it at the resume.

What is killed is a process; a server that has imported the framework forks it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from detrain.base.errors import last_printed
from tests.e2e.forkserver import Server
from tests.e2e.programs import PRELUDE
from tests.e2e.refused import goes_back

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


@pytest.mark.slow
def test_the_loop_of_weights_that_are_plain_tensors_is_found(server: Server, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(TENSORS.replace("STEP", "@tf.function"))

    found = server.detrain("trace", "program.py", cwd=tmp_path)

    assert found.status == 0, found.err
    assert f"program.py:{TENSORS[: TENSORS.index('for start')].count(chr(10)) + 1}" in found.err


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [False, True])
def test_weights_that_are_plain_tensors_are_found_and_exact(compiled: bool, server: Server, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(TENSORS.replace("STEP", "@tf.function" if compiled else ""))
    whole = server.bare("program.py", cwd=tmp_path)

    died = server.detrain("run", "--every", "2b", "program.py", cwd=tmp_path, DIE_AT="3:64")
    resumed = server.detrain("run", "--every", "2b", "program.py", cwd=tmp_path)

    assert (died.status, resumed.status) == (-9, 0), died.err + resumed.err
    assert "resuming program at 3:" in resumed.err
    assert whole.status == 0
    assert resumed.last_line() == whole.last_line()


GENERATOR = (
    PRELUDE
    + """
rows = np.random.default_rng(0).normal(size=(6, 3))
importance = np.ones(6)

def batches():
    while True:
        for at in range(0, 6, 2):
            yield (rows[at : at + 2] * importance[at : at + 2, None]).sum(0)

def reweigh(weights):
    CHANGE

source = batches()
optimizer = Optimizer(np.ones(3))
for epoch in range(5):
    for step in range(3):
        x = next(source)
        optimizer.apply_gradients(x)
        if os.environ.get("DIE_AT") == f"{epoch}:{step}":
            os.kill(os.getpid(), signal.SIGKILL)
    reweigh(optimizer.weights)
show(optimizer.weights)
"""
)
CHANGE = "importance[:] = 1 + np.abs(rows @ weights)"


def test_a_generator_that_reads_what_the_loop_changes_is_named_in_time_and_a_way_back_stays(server: Server, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(GENERATOR.replace("CHANGE", CHANGE))
    whole = server.detrain("run", "--bare", "program.py", cwd=tmp_path)

    foreseen = server.detrain("info", "program.py", cwd=tmp_path)
    died = server.detrain("run", "--every", "1", "--keep", "1", "program.py", cwd=tmp_path, DIE_AT="4:1")
    refused = server.detrain("run", "program.py", cwd=tmp_path)
    again = server.detrain("run", "program.py", cwd=tmp_path)
    back = goes_back(server.detrain, refused, cwd=tmp_path)

    assert (again.status, last_printed(again.err)) == (refused.status, last_printed(refused.err))
    assert back is not None
    assert "batches() reads importance, which reweigh() writes" in foreseen.out
    assert died.err.count("importance, which batches() reads and the loop has changed") == 1
    assert refused.status == 78, refused.err
    assert "`detrain run --from 1:0 program.py`" in refused.err
    assert "kept aside as NAME.stranded" in back.err
    assert back.last_line() == whole.last_line()


OF_FIT = """
import keras, numpy as np
keras.utils.set_random_seed(1)
rows, importance = np.random.default_rng(0).normal(size=(8, 3)).astype("float32"), np.ones(8, "float32")

def batches():
    while True:
        for at in range(0, 8, 2):
            yield rows[at : at + 2], rows[at : at + 2, :1], importance[at : at + 2]

class Reweigh(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        importance[:] = 1 + np.abs(self.model.predict(rows, verbose=0)[:, 0])

model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(batches(), steps_per_epoch=4, epochs=3, verbose=0, callbacks=[Reweigh()])
"""


@pytest.mark.slow
def test_a_generator_of_fit_that_reads_what_a_callback_changes_is_named_in_time(server: Server, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(OF_FIT)

    foreseen = server.detrain("info", "program.py", cwd=tmp_path)
    done = server.detrain("run", "--every", "1", "program.py", cwd=tmp_path)

    assert "batches() reads importance, which on_epoch_end() writes" in foreseen.out
    assert done.err.count("importance, which batches() reads and the loop has changed") == 1


def test_from_a_place_without_a_checkpoint_names_those_that_there_are(server: Server, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(GENERATOR.replace("CHANGE", "pass"))
    server.detrain("run", "program.py", cwd=tmp_path, DIE_AT="3:1")

    run = server.detrain("run", "--from", "9:9", "program.py", cwd=tmp_path)
    both = server.detrain("run", "--from", "2:0", "--fresh", "program.py", cwd=tmp_path)

    assert run.status == both.status == 64
    assert "there are 1:0, 2:0, 3:0" in run.err


LIBRARY = """\
import threading

class Guide:
    def __init__(self):
        self.lock, self.asked = threading.Lock(), 0

    def ask(self):
        self.asked += 1
        return self.asked
"""
LATE = (
    PRELUDE
    + """
import guide
advisor = guide.Guide()
optimizer = Optimizer(np.ones(3))
for epoch in range(6):
    for step in range(3):
        rate = advisor.ask() if epoch >= 2 else 1
        optimizer.apply_gradients(np.random.normal(size=3) * rate)
        die(f"{epoch}:{step}")
show(optimizer.weights)
"""
)


def test_a_run_goes_back_by_itself_before_what_no_checkpoint_holds(server: Server, tmp_path: Path) -> None:
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "guide.py").write_text(LIBRARY)
    (tmp_path / "program.py").write_text(LATE)
    path = {"PYTHONPATH": str(tmp_path / "site-packages")}
    whole = server.detrain("run", "--bare", "program.py", cwd=tmp_path, **path)

    died = server.detrain("run", "--keep", "1", "program.py", cwd=tmp_path, DIE_AT="5:1", **path)
    resumed = server.detrain("run", "program.py", cwd=tmp_path, **path)

    assert "REFUSED from here on: advisor (guide.Guide" in died.err
    assert "going back from 5:0 to 2:0: later ones lack advisor (guide.Guide" in resumed.err
    assert resumed.last_line() == whole.last_line()
