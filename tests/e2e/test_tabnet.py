"""pytorch-tabnet: its loops have probes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.runs import detrain, ran

PROGRAM = """
import hashlib
import os

import numpy as np
from pytorch_tabnet.callbacks import Callback
from pytorch_tabnet.tab_model import TabNetClassifier


class Die(Callback):
    def on_epoch_end(self, epoch, logs=None):
        print(epoch, logs["loss"], flush=True)
        if os.environ.get("DIE_BEHIND") == str(epoch):
            os.kill(os.getpid(), 9)


x = np.random.default_rng(0).normal(size=(128, 6)).astype("float32")
model = TabNetClassifier(n_d=4, n_a=4, n_steps=2, seed=7, verbose=0, device_name="cpu")
model.fit(x, (x[:, 0] > 0).astype(int), max_epochs=4, batch_size=32, virtual_batch_size=16, num_workers=0, callbacks=[Die()])
print("final", hashlib.sha256(b"".join(v.numpy().tobytes() for v in model.network.state_dict().values())).hexdigest())
"""


@pytest.mark.slow
def test_a_killed_fit_of_tabnet_ends_as_if_never_killed(tmp_path: Path) -> None:
    pytest.importorskip("pytorch_tabnet")
    whole = ran(detrain, tmp_path, PROGRAM, "--ckpt", "whole", "--every", "3b", name="train.py").ok()
    detrain("run", "--ckpt", "killed", "--every", "3b", "train.py", cwd=tmp_path, DIE_BEHIND="2").died()
    resumed = detrain("run", "--ckpt", "killed", "--every", "3b", "train.py", cwd=tmp_path).ok()

    assert "resuming" in resumed.err
    assert resumed.last_line() == whole.last_line()
