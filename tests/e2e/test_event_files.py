"""TensorBoard's event files go on after a kill: TensorBoard's own reader finds the points of a run that was never
killed.

What is killed is a process.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.runs import Result, detrain

pytestmark = pytest.mark.slow

PROGRAMS = {
    "SummaryWriter": """\
import os, signal
import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.tensorboard import SummaryWriter

torch.manual_seed(1)
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.01)
x = torch.randn(40, 4)
data = TensorDataset(x, x.sum(1, keepdim=True))
writer = SummaryWriter("logs")
writer.add_text("settings", "rate 0.01")
turn = 0
for epoch in range(5):
    for a, b in DataLoader(data, 8, shuffle=True):
        optimizer.zero_grad()
        loss = ((net(a) - b) ** 2).mean()
        loss.backward()
        optimizer.step()
        writer.add_scalar("loss", loss.item(), turn)
        turn += 1
        if os.environ.get("DIE_AT") == str(turn):
            writer.flush()
            os.kill(os.getpid(), signal.SIGKILL)
    writer.add_histogram("weights", net.weight, epoch)
writer.close()
""",
    "Keras": """\
import os, signal
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras
import numpy as np
import tensorflow as tf

x = np.random.default_rng(0).normal(size=(40, 4)).astype("float32")
own = tf.summary.create_file_writer("logs/own")
turn = 0

class Die(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        global turn
        with own.as_default():
            tf.summary.scalar("own loss", logs["loss"], step=turn)
        turn += 1
        if os.environ.get("DIE_AT") == str(turn):
            own.flush()
            os.kill(os.getpid(), signal.SIGKILL)

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
board = keras.callbacks.TensorBoard("logs/fit", update_freq=1, histogram_freq=1)
model.fit(x, x.sum(1), batch_size=8, epochs=5, verbose=0, validation_split=0.2, callbacks=[board, Die()])
""",
}


def points(folder: Path) -> dict[tuple[str, str], list[tuple[int, Any]]]:
    """(folder, tag) -> (step, value) of each point in event files, as TensorBoard reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found: dict[tuple[str, str], list[tuple[int, Any]]] = {}
    for logs in sorted({path.parent for path in folder.rglob("*tfevents*")}):
        read = EventAccumulator(str(logs), size_guidance={"tensors": 0, "scalars": 0, "histograms": 0}, purge_orphaned_data=False)
        read.Reload()
        where = logs.relative_to(folder).as_posix()
        for tag in read.Tags()["scalars"]:
            found[where, tag] = [(each.step, each.value) for each in read.Scalars(tag)]
        for tag in read.Tags()["histograms"]:
            found[where, tag] = [(each.step, each.histogram_value.bucket) for each in read.Histograms(tag)]
        for tag in read.Tags()["tensors"]:
            values = [(each.step, each.tensor_proto.SerializeToString()) for each in read.Tensors(tag)]
            is_before = tag.startswith(("settings", "keras"))  # what code before the loop writes, it writes again
            found[where, tag] = values[:1] if is_before and len(set(values)) == 1 else values
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_event_files_of_a_killed_run_have_the_points_of_one_that_was_not(name: str, tmp_path: Path) -> None:
    def run(folder: str, **changes: str) -> Result:
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "program.py").write_text(PROGRAMS[name])
        return detrain("run", "--every", "3b", "program.py", cwd=tmp_path / folder, **changes)

    assert run("whole").status == 0
    assert [run("killed", DIE_AT=at).status for at in ("8", "17", "")] == [-9, -9, 0]

    whole = points(tmp_path / "whole" / "logs")
    assert sum(map(len, whole.values())) > 20
    assert points(tmp_path / "killed" / "logs") == whole


def test_verify_compares_the_points(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAMS["SummaryWriter"])

    found = detrain("verify", "--every", "3b", "program.py", cwd=tmp_path).ok()

    assert ", 1 file" in found.out
