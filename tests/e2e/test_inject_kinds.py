"""Faults in kinds of programs: recurrent layers, steps unlike the first, later phases, functions that make their
variables.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.runs import ROOT, detrain, environment

pytest.importorskip("tensorflow")

pytestmark = pytest.mark.slow  # several minutes: with `./run.sh test --slow`

PRELUDE = """
import sys
import numpy as np, keras, tensorflow as tf
keras.utils.set_random_seed(3)
rng = np.random.default_rng(0)
x, y = rng.normal(size=(44, 7, 5)).astype("float32"), rng.normal(size=(44, 2)).astype("float32")
"""

RECURRENT = """
model = keras.Sequential([keras.Input((7, 5)), keras.layers.LSTM(6, name="lstm"), keras.layers.Dense(2, name="head")])
model.compile("adam", "mse")
model.fit(x, y, batch_size=16, epochs=2, verbose=0)
"""

EVERY_SECOND = """
dense, optimizer = keras.layers.Dense(2, name="dense"), keras.optimizers.Adam(1e-2)
dense.build((None, 35))
optimizer.build(dense.trainable_variables)
sums = [tf.Variable(tf.zeros_like(v)) for v in dense.trainable_variables]
@tf.function
def step(a, b, is_last):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((dense(tf.reshape(a, [-1, 35])) - b) ** 2)
    for each, gradient in zip(sums, tape.gradient(loss, dense.trainable_variables)):
        each.assign_add(gradient)
    if is_last:
        optimizer.apply_gradients(zip([tf.convert_to_tensor(each) / 2 for each in sums], dense.trainable_variables))
        for each in sums:
            each.assign(tf.zeros_like(each))
    return loss
for epoch in range(2):
    for batch in range(4):
        loss = step(tf.constant(x[batch * 11:][:11]), tf.constant(y[batch * 11:][:11]), tf.constant(batch % 2 == 1))
"""

SMALLER = """
model = keras.Sequential([keras.Input((7, 5)), keras.layers.Flatten(), keras.layers.Dense(2, name="dense")])
optimizer = keras.optimizers.Adam(1e-2)
@tf.function
def step(a, b):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(a) - b) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss
for epoch in range(2):
    for a, b in tf.data.Dataset.from_tensor_slices((x, y)).batch(32):
        step(a, b)
"""

PHASES = """
encoder = keras.Sequential([keras.Input((7, 5)), keras.layers.Flatten(), keras.layers.Dense(6, name="encoder")])
first = keras.Sequential([encoder, keras.layers.Dense(35, name="decoder")])
first.compile("adam", "mse")
first.fit(x, x.reshape(44, 35), batch_size=16, epochs=1, verbose=0)
second = keras.Sequential([encoder, keras.layers.Dense(2, name="head")])
second.compile("adam", "mse")
second.fit(x, y, batch_size=16, epochs=2, verbose=0)
"""

KERAS_2 = """
import tf_keras
model = tf_keras.Sequential([tf_keras.Input((7, 5)), tf_keras.layers.Flatten(), tf_keras.layers.Dense(2, name="head")])
optimizer, accuracy = tf_keras.optimizers.Adam(1e-2, name="adam"), tf_keras.metrics.BinaryAccuracy()
@tf.function
def step(a, b):
    with tf.GradientTape() as tape:
        guess = model(a)
        loss = tf.reduce_mean((guess - b) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    accuracy.update_state(tf.cast(b > 0, tf.float32), guess)
for epoch in range(2):
    accuracy.reset_state()
    for a, b in tf.data.Dataset.from_tensor_slices((x, y)).batch(16):
        step(a, b)
    print(float(accuracy.result()))
"""

LAZY = """
class Layer(tf.Module):
    def __init__(self, size):
        super().__init__()
        self.size, self.w = size, None
    @tf.function
    def __call__(self, x):
        if self.w is None:
            self.w = tf.Variable(tf.random.stateless_normal((x.shape[-1], self.size), (1, 2)))
        return tf.tanh(x @ self.w)
layer = Layer(2)
for epoch in range(2):
    for batch in range(4):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((layer(tf.reshape(x[batch * 11:][:11], [-1, 35])) - y[batch * 11:][:11]) ** 2)
        for variable, gradient in zip(layer.variables, tape.gradient(loss, layer.variables)):
            variable.assign_sub(0.1 * gradient)
"""


EPOCH_IN_GRAPH = """
w = tf.Variable(tf.zeros((35, 2)))
@tf.function
def train(rows):
    total = 0.0
    for a, b in rows:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.nn.dropout(tf.reshape(a, [-1, 35]), 0.2) @ w - b) ** 2)
        w.assign_sub(0.1 * tape.gradient(loss, w))
        total += loss
    return total
for epoch in range(5):
    print(float(train(tf.data.Dataset.from_tensor_slices((x, y)).shuffle(44).batch(11))))
"""


@pytest.mark.parametrize(
    ("text", "site", "stage", "at"),
    [
        pytest.param(EPOCH_IN_GRAPH, "train:scan_body/backward/matmul/MatMul", "backward", "0:2", id="an epoch in a function"),
        pytest.param(RECURRENT, "*while_body_grad*MatMul#3", "backward", "1:1", id="gradient of a recurrent layer"),
        pytest.param(RECURRENT, "head_grad_wt", "backward", "1:2", id="a smaller last batch"),
        pytest.param(EVERY_SECOND, "*adam/Mul#1", "optimizer", "1:1", id="an update in every second step"),
        pytest.param(PHASES, "head_grad_wt", "backward", "1/1:1", id="the second training"),
        pytest.param(LAZY, "*MatMul*", "forward", "1:1", id="variables made in a function's first call"),
        pytest.param(LAZY, "eager/optimizer*", "optimizer", "1:2", id="an eager update behind a function"),
    ],
)
def test_a_fault_is_done_once_and_replays_to_the_bit(text: str, site: str, stage: str, at: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PRELUDE + text)
    options = ("--model", "SET:30", "--site", site, "--stage", stage, "--at", at, "--until", "+3", "--out", "record.json", "--json")
    run = detrain("inject", *options, "program.py", cwd=tmp_path).ok()
    record = json.loads(run.out)

    assert record["fired"] == 1
    assert record["elements"][0]["injected"] == "41f00000"
    log = next((tmp_path / "ckpt").glob("program.faults/*/golden/log"))
    steps = [line["step"] for line in map(json.loads, log.open()) if "step" in line]
    golden = {(step["phase"], step["epoch"], step["batch"]): step.get("state") for step in steps}
    assert all(golden[tuple(step["at"])] != step["state"] for step in record["steps"] if step["at"][2] >= 0)
    replay = detrain("replay", "record.json", "program.py", cwd=tmp_path)
    count = sum(step["at"][2] >= 0 for step in record["steps"])
    assert replay.out.startswith(f"IDENTICAL: the fault, {count} step{'s' * (count != 1)} from it on, "), replay.err
    again = detrain("inject", "record.json", "--ckpt", "fresh", "--until", "+3", "--json", "program.py", cwd=tmp_path)
    assert json.loads(again.out) == record, again.err


def test_layers_metrics_and_optimizers_of_keras_2_have_their_names(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PRELUDE + KERAS_2)
    options = ("--model", "SET:30", "--site", "head_grad_wt", "--at", "1:1", "--out", "record.json", "--json")
    run = detrain("inject", *options, "program.py", cwd=tmp_path).ok()
    record = json.loads(run.out)
    everything = json.loads(detrain("sites", "--match", "*", "--json", "program.py", cwd=tmp_path).out)

    accuracies = [step["series"]["binary_accuracy"] for step in record["steps"]]
    counts = [value * size for value, size in zip(accuracies, (32, 24), strict=False)]  # the last batch is smaller
    assert all(0 <= count == pytest.approx(round(count)) for count in counts)
    assert {site["layer"] for site in everything if site["stage"] == "optimizer"} == {"adam"}
    assert "no accuracy" not in record["outcome"]
    assert detrain("replay", "record.json", "program.py", cwd=tmp_path).out.startswith("IDENTICAL")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells children of their parent's end")
def test_a_killed_campaign_leaves_no_trial_behind_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PRELUDE + PHASES)
    command = ("random", "-n", "3", "--seed", "2", "--after", "1", "--models", "RD,WT", "--out")
    process = subprocess.Popen(
        [sys.executable, "-m", "detrain", *command, "killed", "program.py"], cwd=tmp_path, env=environment(PYTHONPATH=str(ROOT))
    )
    while not list(tmp_path.glob("ckpt/program.faults/*/trial-*/log*")) or not list(tmp_path.glob("ckpt/program.faults/*/sites-*")):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    time.sleep(1)

    assert [pid for pid in os.listdir("/proc") if pid.isdigit() and _works_in(pid, tmp_path)] == []
    for name in ("killed", "whole"):
        done = detrain(*command, name, "program.py", cwd=tmp_path)
        assert done.status == 0, done.err
    killed, whole = (sorted((tmp_path / name).glob("*.json")) for name in ("killed", "whole"))
    assert len(whole) == 3
    assert [path.read_bytes() for path in killed] == [path.read_bytes() for path in whole]
    assert len({json.loads(path.read_text())["experiment"]["at"][0] for path in whole}) == 2
    assert list(tmp_path.glob("ckpt/program.faults/*/trial-*")) == []


def test_trials_in_a_step_with_a_smaller_batch_are_drawn_among_its_own_sites(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PRELUDE + SMALLER)
    options = ("-n", "6", "--seed", "1", "--after", "1", "--models", "RD,WT,WT_16", "--out", "out", "--json")
    command = ("random", *options, "program.py")
    done = detrain(*command, cwd=tmp_path)
    assert done.status == 0, done.err
    records = json.loads(done.out)
    assert "finding the sites of program in step 0:1" in done.err
    assert len(records) == 6
    assert {record["experiment"]["at"][2] for record in records} == {0, 1}
    # Its weight has one shape, and its outputs two.
    limited = [record for record in records if record["model"] == "WT_16"]
    assert {record["experiment"]["at"][2] for record in limited} == {0, 1}
    assert {record["fired"] for record in records} == {1}
    assert not {"crash", "hang"} & {record["outcome"] for record in records}
    assert detrain(*command, cwd=tmp_path).out == done.out
    for path in (tmp_path / "out").glob("*.json"):
        assert detrain("replay", str(path), "program.py", cwd=tmp_path).out.startswith("IDENTICAL")

    done = detrain("campaign", "plan", "--mode", "ISCA", *options[:-3], "program.py", cwd=tmp_path)
    assert done.status == 0, done.err
    drawn_again = next(k for k, each in enumerate(records) if 12 in each["experiment"]["injection"]["shape"])
    done = detrain("campaign", "record", "--number", drawn_again, "--json", "program.py", cwd=tmp_path)
    assert done.status == 0, done.err
    assert json.loads(done.out)["experiment"] == records[drawn_again]["experiment"]


def _works_in(pid: str, folder: Path) -> bool:
    try:
        return Path(f"/proc/{pid}/cwd").resolve() == folder and b"detrain" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
