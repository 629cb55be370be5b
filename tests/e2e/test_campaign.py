"""A campaign of faults against the guard: what does harm is seen within two steps, what does nothing is no alarm."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from detrain.campaign.engine.ledger import Ledgers
from tests.e2e.runs import detrain

pytest.importorskip("tensorflow")

PROGRAM = """
import numpy as np, keras, tensorflow as tf
keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x, y = rng.normal(size=(240, 6, 6, 2)).astype("float32"), rng.integers(0, 3, 240)
model = keras.Sequential([
    keras.Input((6, 6, 2)), keras.layers.Conv2D(16, 3, name="conv"), keras.layers.BatchNormalization(), keras.layers.ReLU(),
    keras.layers.Flatten(), keras.layers.Dense(16, "relu", name="one"), keras.layers.Dense(3, name="two")])
optimizer, loss = keras.optimizers.Adam(1e-3), keras.losses.SparseCategoricalCrossentropy(True)
accuracy = keras.metrics.SparseCategoricalAccuracy()
@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        out = model(x, training=True)
        value = loss(y, out)
    optimizer.apply_gradients(zip(tape.gradient(value, model.trainable_variables), model.trainable_variables))
    accuracy.update_state(y, out)
    return value
for epoch in range(1):
    for x, y in tf.data.Dataset.from_tensor_slices((x, y)).batch(8):
        if not np.isfinite(float(step(x, y))):
            raise SystemExit(0)
"""
AFTER = 4


@pytest.mark.slow
def test_the_guard_sees_what_does_harm_and_nothing_else_also_in_the_step_with_which_the_program_ends(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    done = detrain("random", "--guard", "-n", 44, "--seed", 3, "--after", AFTER, "--json", "program.py", cwd=tmp_path)
    assert done.status == 0, done.err
    records = json.loads(done.out)
    golden = next((tmp_path / "ckpt").glob("program.faults/*/golden-guarded/log"))
    steps = [line["step"] for line in map(json.loads, golden.open()) if "step" in line]
    state = {(step["phase"], step["epoch"], step["batch"]): step["state"] for step in steps}

    assert len(records) >= 40
    seen = [record for record in records if record["alarm"] is not None]
    broken = [record for record in records if any(not _is_finite(step) for step in record["steps"])]
    unharmed = [
        record for record in records if all(step["state"] in ("", state.get(tuple(step["at"]))) for step in record["steps"])
    ]
    assert len(broken) >= 2
    assert len(unharmed) >= 2
    assert all(record["alarm"] is not None and record["alarm"]["steps"] < 2 for record in broken)
    assert not any(record in seen for record in unharmed)
    assert all(record["alarm"]["steps"] < 2 for record in seen)
    assert all(record["outcome"] == "masked" for record in unharmed)

    options = ("--model", "SET:nan", "--site", "two", "--stage", "forward", "--at", "0:9", "--until", "+5", "--json")
    done = detrain("inject", "--guard", *options, "program.py", cwd=tmp_path)
    assert done.status == 0, done.err
    record = json.loads(done.out)
    assert (record["end"], record["outcome"]) == ("program", "immediate INF/NaN")
    assert record["alarm"]["steps"] == 0


OVERLOOKED = """
import numpy as np, tensorflow as tf
rng = np.random.default_rng(0)
x, y = rng.normal(size=(52, 6)).astype("float32"), rng.normal(size=(52, 1)).astype("float32")
w, unused = (tf.Variable(rng.normal(size=(6, 1)).astype("float32")) for _ in range(2))
@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        with tf.name_scope("unused"):
            nothing = tf.stop_gradient(tf.clip_by_value(x @ unused, 0.0, 0.0))
        out = tf.cond(tf.reduce_sum(x) > 0.0, lambda: tf.tanh(x @ w), lambda: x @ w)
        loss = tf.reduce_mean((out + nothing - y) ** 2)
    w.assign_sub(0.1 * tape.gradient(loss, w))
for epoch in range(2):
    for a, b in tf.data.Dataset.from_tensor_slices((x, y)).batch(4):
        step(a, b)
"""


@pytest.mark.slow
def test_a_fault_that_changes_nothing_is_masked_to_the_programs_end(tmp_path: Path) -> None:
    """The loops are found by the golden run alone; there is no accuracy; the program ends where no digest
    would be due.
    """
    (tmp_path / "program.py").write_text(OVERLOOKED)
    command = ("--seed", 2, "--models", "RBFLIP", "--site", "*unused*", "--stage", "forward", "-n", 2, "--json", "program.py")
    done = detrain("random", *command, cwd=tmp_path).ok()

    records = json.loads(done.out)
    assert [record["experiment"]["at"][1] for record in records] == [0, 1], "one trial starts at the golden run's checkpoint"
    assert [record["outcome"] for record in records] == ["masked", "masked"]


@pytest.mark.slow
def test_faults_are_drawn_where_a_program_trains_though_its_first_batches_only_fill_a_buffer(tmp_path: Path) -> None:
    source = (Path(__file__).parents[1] / "programs" / "dqn_replay.py").read_text()
    (tmp_path / "program.py").write_text(source)
    options = ("--model", "SET:3", "--site", "*/MatMul", "--stage", "forward")
    done = detrain("inject", *options, "--at", "0:1", "program.py", cwd=tmp_path)
    assert (done.status, "there is no step 0:1 that trains: the next is 2:1" in done.err) == (82, True), done.err
    done = detrain("inject", *options, "--at", "3:70", "program.py", cwd=tmp_path)
    assert (done.status, "there is no step 3:70 that trains: the last is 3:9" in done.err) == (82, True), done.err

    done = detrain("random", "-n", 1, "--after", 2, "--json", "program.py", cwd=tmp_path)

    assert done.status == 0, done.err
    assert [record["experiment"]["at"] >= [0, 2, 1] for record in json.loads(done.out)] == [True]


ENDS = """
import numpy as np, tensorflow as tf
rng = np.random.default_rng(0)
x, y = rng.integers(0, 6, (64, 2)), rng.normal(size=(64, 1)).astype("float32")
table = tf.Variable(rng.normal(size=(6, 3)).astype("float32"))
w = tf.Variable(rng.normal(size=(6, 1)).astype("float32"))
@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        rows = tf.gather(table, x + 0)
        loss = tf.reduce_mean((tf.reshape(rows, (-1, 6)) @ w - y) ** 2)
    for variable, gradient in zip((table, w), tape.gradient(loss, (table, w))):
        variable.assign_sub(0.1 * tf.convert_to_tensor(gradient))
    return loss
def main():
    for epoch in range(1):
        for a, b in tf.data.Dataset.from_tensor_slices((x, y)).batch(4):
            loss = float(step(a, b))
            print(loss)
            if not np.isfinite(loss):
                return
main()
"""


@pytest.mark.slow
def test_trials_with_which_a_program_ends_give_the_same_rows_beside_others_as_alone(tmp_path: Path) -> None:
    """It returns where its loss is no number, and ends with an exception where an index is outside."""
    (tmp_path / "program.py").write_text(ENDS)
    options = ("--mode", "IOV", "-n", 14, "--seed", 5, "--models", "RANDOM", "--after", 3)
    beside, alone = (rows_of(tmp_path, engine, *options) for engine in ("auto", "process"))

    assert beside == alone
    assert {"crash", "immediate INF/NaN"} <= {row[1] for row in beside}


@pytest.mark.slow
@pytest.mark.parametrize("coming", ["--permanent", "--duty 0.5", "--at-once 3", "--mode RF --steps 2"])
def test_faults_that_last_or_come_together_give_the_same_rows_beside_others_as_alone(tmp_path: Path, coming: str) -> None:
    (tmp_path / "program.py").write_text(OVERLOOKED)
    options = ("-n", 8, "--seed", 1, "--models", "FLIP:1", "--after", 4, *coming.split())
    beside, alone = (rows_of(tmp_path, engine, *options) for engine in ("auto", "process"))

    assert beside == alone
    assert len(beside) >= 6  # a branch of the program runs in some steps alone: faults in it do not fire in others

    (tmp_path / "program.py").write_text(OVERLOOKED + "print('another program')\n")
    status = detrain("campaign", "status", "--name", "auto", "program.py", cwd=tmp_path)
    report = detrain("campaign", "report", "--name", "auto", "program.py", cwd=tmp_path)
    more = detrain("campaign", "run", "--name", "auto", "program.py", cwd=tmp_path)
    assert (status.status, f"{len(beside)} of 8 trials are done" in status.out) == (0, True), status.err
    assert (report.status, report.out.startswith(f"{len(beside)} trials: ")) == (0, True), report.err
    assert "the program is another one now than that of the plan: source program.py" in report.err
    assert (more.status, "is of another program" in more.err) == (96, True), more.err


def rows_of(folder: Path, engine: str, *options: object) -> list[tuple[object, ...]]:
    """Run a campaign on an engine; return what its rows say of each trial."""
    assert detrain("campaign", "plan", "--name", engine, *options, "--json", "program.py", cwd=folder).status == 0
    run = ("campaign", "run", "--name", engine, "--workers", 1, "--engine", engine, "--json", "program.py")
    done = detrain(*run, cwd=folder).ok()
    ledgers = next(folder.glob(f"ckpt/*/*/campaign-{engine}/ledger"))
    rows = Ledgers(ledgers, json.loads(done.out)["plan"]).rows()
    return [(row.number, row.outcome, row.category, row.status, row.end, row.digest) for row in rows]


def _is_finite(step: dict[str, dict[str, float | str]]) -> bool:
    return all(math.isfinite(float(value)) for value in step["series"].values())
