"""Notebooks: a real kernel is killed, started again, and runs the cells again; all bits are those of a plain script.

A kernel is what is killed, so each test starts some, each of a few seconds.
"""

from __future__ import annotations

import os
import queue
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.runs import ORACLES, ROOT, _finish, environment

PAGE = (ROOT / "docs" / "how-to" / "notebooks.md").read_text()
CELLS = re.findall(r"^```none\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
"""The cells of the documentation: it is what is tried."""
SAID = re.findall(r"^```text\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.slow


@dataclass
class Kernel:
    """A kernel in a folder. `shown` is what its cells have printed."""

    manager: Any
    client: Any
    shown: str = ""

    def run(self, cells: Sequence[str], *, kill_at: str = "") -> bool:
        """Run cells until one fails; SIGKILL the kernel once this text has been printed. Returns whether all ran."""

        for cell in cells:
            mine = self.client.execute(cell)
            while True:
                try:
                    message = self.client.get_iopub_msg(timeout=1)
                except queue.Empty:
                    if not self.manager.is_alive():
                        return False
                    continue
                if message["parent_header"].get("msg_id") != mine:
                    continue
                content = message["content"]
                self.shown += content.get("text", "") + content.get("evalue", "")
                if kill_at and kill_at in self.shown and self.manager.is_alive():
                    os.kill(self.manager.provisioner.pid, signal.SIGKILL)
                if content.get("execution_state") == "idle":
                    break
            replies = iter(lambda: self.client.get_shell_msg(timeout=10), None)
            reply = next(each for each in replies if each["parent_header"].get("msg_id") == mine)
            if reply["content"]["status"] != "ok":
                return False
        return True

    def end(self) -> None:
        """End it."""
        self.client.stop_channels()
        if self.manager.is_alive():
            self.manager.shutdown_kernel(now=True)


@pytest.fixture
def kernels(tmp_path: Path) -> Iterator[Any]:
    """Starts kernels in a folder."""
    client = pytest.importorskip("jupyter_client")
    pytest.importorskip("ipykernel")
    made = []

    def start(**changes: str) -> Kernel:
        manager = client.KernelManager()
        manager.start_kernel(env=environment(**{"PYTHONPATH": str(ROOT), **changes}), cwd=str(tmp_path))
        channels = manager.client()
        channels.start_channels()
        channels.wait_for_ready(timeout=60)
        made.append(Kernel(manager, channels))
        return made[-1]

    yield start
    for kernel in made:
        kernel.end()


def test_a_kernel_that_is_killed_again_and_again_ends_with_the_bits_of_a_plain_script(kernels: Any, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("".join(cell for cell in CELLS[1:]).replace("%%detrain --every 5b\n", ""))
    whole = _finish([sys.executable, "-c", ORACLES["torch"], str(script)], cwd=tmp_path).out

    assert not kernels().run(CELLS, kill_at="epoch 0")
    second = kernels()
    assert not second.run(CELLS, kill_at="epoch 2")
    last = kernels()
    assert last.run(CELLS)

    assert "detrain: resuming notebook at " in second.shown
    assert re.search(r"detrain: resuming notebook at [23]:", last.shown)
    assert whole.splitlines()[-1] == last.shown.splitlines()[-1]
    assert whole.endswith(last.shown[last.shown.index("epoch ") :])
    assert [line for text in SAID[1:3] for line in text.splitlines()] == whole.splitlines()


FIT = [
    "%load_ext detrain",
    """import hashlib
import keras
import numpy as np
rng = np.random.default_rng(4)
x = rng.normal(size=(240, 6)).astype("float32")
y = (x.sum(1) > 0).astype("int32")
""",
    """hidden = keras.layers.Dense(16, "relu")
model = keras.Sequential([keras.Input((6,)), hidden, keras.layers.Dropout(0.3), keras.layers.Dense(2)])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
seen = []
def end(epoch, logs):
    seen.append(logs["val_loss"])
    print(f"epoch {epoch}: {logs['loss']:.6f} {logs['val_loss']:.6f}", flush=True)
""",
    """%%detrain --every 4b
say = keras.callbacks.LambdaCallback(on_epoch_end=end)
slower = keras.callbacks.ReduceLROnPlateau(factor=0.5, patience=1)
history = model.fit(x, y, batch_size=20, epochs=5, validation_split=0.1, callbacks=[say, slower], verbose=0)
""",
    """rates = history.history["learning_rate"]
print(len(seen), rates[-1], hashlib.sha256(b"".join(np.asarray(each).tobytes() for each in model.variables)).hexdigest())
""",
]


def test_a_cell_with_keras_fit_resumes_to_the_bits_of_a_plain_script(kernels: Any, tmp_path: Path) -> None:
    pytest.importorskip("keras")
    script = tmp_path / "script.py"
    script.write_text("".join(FIT[1:]).replace("%%detrain --every 4b\n", ""))
    whole = _finish([sys.executable, "-c", ORACLES["tensorflow"], str(script)], cwd=tmp_path).out

    assert not kernels().run(FIT, kill_at="epoch 0")
    second = kernels()
    assert not second.run(FIT, kill_at="epoch 3")
    last = kernels()
    assert last.run(FIT)

    assert "detrain: resuming notebook at " in second.shown
    assert re.search(r"detrain: resuming notebook at [34]:", last.shown)
    assert len(whole.splitlines()) == 6
    assert whole.splitlines()[-1] == last.shown.splitlines()[-1]


def test_another_cell_before_the_training_is_refused_and_named(kernels: Any) -> None:
    assert not kernels().run(CELLS, kill_at="epoch 1")
    edited = [*CELLS[:2], CELLS[2].replace("0.01", "0.02"), *CELLS[3:]]

    kernel = kernels()

    assert not kernel.run(edited)
    assert "the cells that have run are not those of the checkpoint: .notebook.cells.py, cell 2" in kernel.shown


def test_what_cannot_be_exact_is_refused_beforehand(kernels: Any) -> None:
    function = "def train():\n" + "".join(f"    {line}\n" for line in CELLS[3].splitlines()[1:])
    for cells, said in [
        (["import torch", CELLS[0]], "torch was imported before detrain"),
        (["lr = 1", CELLS[0]], "code has run before detrain came"),
        ([*CELLS[:3], function, "%%detrain\ntrain()"], "there is one in an earlier one (train)"),
        ([*CELLS[:3], "%%detrain --evry 2\n1"], "it takes --every, --keep"),
    ]:
        kernel = kernels()
        assert not kernel.run(cells)
        assert said in kernel.shown
        kernel.end()


def test_behind_a_training_cell_that_failed_nothing_trains(kernels: Any) -> None:
    kernel = kernels()

    assert not kernel.run([*CELLS[:3], CELLS[3].replace("total += loss.item()", "1 / (epoch - 1)")])
    assert not kernel.run([CELLS[3]])

    assert "division by zero" in kernel.shown
    assert "was left by an error or by hand" in kernel.shown


def test_a_kernel_without_a_hash_seed_is_refused(kernels: Any) -> None:
    kernel = kernels(PYTHONHASHSEED="random")

    assert not kernel.run(CELLS[:1])
    assert "started without PYTHONHASHSEED" in kernel.shown
