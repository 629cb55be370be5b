"""Shuffled tf.data sets: however often, and by whatever path, something goes over one anew, a resumed run finds its
next order.

TensorFlow gives a seed to each iterator that it makes over a shuffled set: for `iter`, for each path of a `zip`, and
while the outer iterator is drawn from: at each turn of a `repeat`, at the second part of a `concatenate`, at each call
of a stage's function.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.forkserver import Server
from tests.e2e.runs import ran

PROGRAM = """
import os
import numpy as np
import tensorflow as tf
Data = tf.data.Dataset
rows = Data.range(24)
shuffled = rows.shuffle(24)
def build():
    {build}
data = build()
del shuffled
class Optimizer:
    def __init__(self):
        self.weights = np.ones(24)
    def apply_gradients(self, batch):
        self.weights[: len(batch)] += self.weights.sum() * batch
optimizer = Optimizer()
for epoch in range(4):
    for batch in data:
        {inside}
        optimizer.apply_gradients(np.ravel(batch) / 1000)
    print(epoch, optimizer.weights.sum(), flush=True)
    {after}
"""
SETS = {
    "two paths": "return Data.zip((shuffled.map(lambda v: v), shuffled.map(lambda v: -v))).map(lambda a, b: a + 50 * b).batch(6)",
    "resampled": "return shuffled.rejection_resample(lambda v: v % 2, [0.5, 0.5], seed=3).map(lambda c, v: v).batch(5)",
    "mixed with itself": "return Data.sample_from_datasets([shuffled, shuffled.map(lambda v: -v)], [0.4, 0.6]).batch(9)",
    "chosen from": "return Data.choose_from_datasets([shuffled, shuffled.skip(1)], Data.range(2).repeat(24)).batch(9)",
    "chosen by a shuffled set": """which = rows.map(lambda v: v % 2).shuffle(24)
    return Data.choose_from_datasets([rows, rows.map(lambda v: -v)], which).batch(9)""",
    "concatenated with itself": "return shuffled.concatenate(shuffled).batch(9)",
    "taken and skipped": "return Data.zip((shuffled.take(12), shuffled.skip(12))).map(lambda a, b: a - b).batch(4)",
    "repeated, and drawn to its end": "return shuffled.repeat(2).batch(9)",
    "repeated and cut off": "return shuffled.repeat().batch(5).take(8)",
    "called by a stage": "return Data.range(3).interleave(lambda i: shuffled.map(lambda v: v + i), cycle_length=2).batch(12)",
    "shuffled twice": "return shuffled.batch(4).shuffle(6)",
    "numbers drawn anew": "return Data.random(seed=4, rerandomize_each_iteration=True).take(20).map(lambda v: v % 99).batch(5)",
    "cached in its first order": "return shuffled.map(lambda v: v * 2).cache().batch(6)",
    "cached, and looked at before": "data = shuffled.cache().batch(6); next(iter(data)); list(data.take(1)); return data",
    "cached and repeated": "return shuffled.cache().repeat(2).batch(9)",
    "files": """os.makedirs("rows", exist_ok=True)
    for i in range(6):
        with tf.io.TFRecordWriter(f"rows/{i}") as file:
            for row in range(4):
                file.write(str(9 * i + row))
    files = Data.list_files("rows/*").interleave(tf.data.TFRecordDataset, cycle_length=2, num_parallel_calls=2)
    return files.shuffle(5).map(lambda text: tf.strings.to_number(text)).batch(6).prefetch(1)""",
}
FIT = """
import keras
import numpy as np
import tensorflow as tf
x = np.random.normal(size=(32, 4)).astype("float32")
shuffled = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).shuffle(32)
data = {data}
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
say = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: print(epoch, logs, flush=True))
model.fit(data.batch(8).prefetch(1), epochs=4, verbose=0, callbacks=[say], validation_data=shuffled.take(9).batch(3))
print(np.concatenate([np.ravel(w) for w in model.get_weights()]))
"""
IN_A_MODEL = """
import keras
import numpy as np
import tensorflow as tf
class Trainer(keras.Model):
    def __init__(self):
        super().__init__()
        self.kernel = self.add_weight(shape=(3,), initializer="ones")
        self.sgd = keras.optimizers.SGD(0.01)
    def rows(self, data):
        return iter(data.shuffle(4))
    def run_epoch(self, data):
        for batch in self.rows(data):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum((batch * self.kernel - 1) ** 2)
            self.sgd.apply([tape.gradient(loss, self.kernel.value)], [self.kernel])
        print(np.ravel(self.kernel), flush=True)
data = tf.data.Dataset.from_tensor_slices(np.random.normal(size=(12, 3)).astype("float32")).shuffle(12).batch(3)
trainer = Trainer()
for epoch in range(4):
    trainer.run_epoch(data)
"""
FITTED = {
    "two paths": "tf.data.Dataset.zip((shuffled.map(lambda a, b: a), shuffled.map(lambda a, b: b)))",
    "concatenated with itself": "shuffled.concatenate(shuffled)",
    "cached": "shuffled.cache()",
}


def check(server: Server, text: str, tmp_path: Path, kills: list[int], *options: str) -> None:
    """A run that is killed before its n-th, m-th ... batch, and run again each time, ends as the whole run does."""
    whole = ran(server, tmp_path, text, "--ckpt", "whole", *options).ok()
    assert "not captured" not in whole.err
    for kill in kills:
        trial = json.dumps({"states": "states", "kill_at": kill})
        killed = server.detrain("run", "--ckpt", "killed", *options, "program.py", cwd=tmp_path, DETRAIN_TRIAL=trial)
        assert killed.status == -9, killed.err
    last = server.detrain("run", "--ckpt", "killed", *options, "program.py", cwd=tmp_path).ok()

    assert "resuming" in last.err
    lines = last.out.splitlines()
    assert lines
    assert lines == whole.out.splitlines()[-len(lines) :]


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
def test_a_shuffled_set_goes_on_with_its_next_order(name: str, server: Server, tmp_path: Path) -> None:
    text = PROGRAM.format(build=SETS[name], inside="pass", after="pass")
    (tmp_path / "seek").mkdir()
    check(server, text, tmp_path / "seek", [9, 11], "--every", "2b")
    check(server, text, tmp_path, [6, 10])


@pytest.mark.slow
def test_a_set_that_the_program_iterates_elsewhere_too_goes_on_with_its_next_order(server: Server, tmp_path: Path) -> None:
    text = PROGRAM.format(
        build="return shuffled.batch(6)",
        inside="sum(int(value[0]) for value in data.take(1 + epoch % 2))",
        after="print(*(int(value[0]) for value in data.repeat(2)))",
    )
    check(server, text, tmp_path, [5, 9, 14], "--every", "3b", "--loader", "forward")


@pytest.mark.slow
@pytest.mark.parametrize("name", FITTED)
def test_a_shuffled_set_that_fit_trains_on_goes_on_with_its_next_order(name: str, server: Server, tmp_path: Path) -> None:
    check(server, FIT.format(data=FITTED[name]), tmp_path, [7, 9])


@pytest.mark.slow
def test_a_loop_in_a_method_of_a_model_finds_its_iterators(server: Server, tmp_path: Path) -> None:
    """They were the model's own, whose counts do not come back: the epoch began anew, in silence where it was killed at
    the cut.
    """
    check(server, IN_A_MODEL, tmp_path, [10, 11, 14], "--every", "2b")
