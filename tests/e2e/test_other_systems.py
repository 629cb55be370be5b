"""A system without the functions that Linux alone has: a run is as exact, and what needs them is refused in a sentence.

There is no such system where these tests run: Python's modules lose the functions before detrain is imported.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from detrain import cli
from detrain.base import errors
from tests.e2e.programs import DIE
from tests.e2e.refused import assert_refused
from tests.e2e.runs import EXAMPLES, compared, detrain, library

LOSES = """\
import os, select, signal, time
for module, names in {
    os: "copy_file_range eventfd getrandom memfd_create pidfd_open posix_fadvise posix_fallocate sched_getaffinity "
        "sched_setaffinity sched_setscheduler setns unshare O_DIRECT O_TMPFILE POSIX_FADV_WILLNEED SCHED_IDLE",
    select: "epoll EPOLLIN EPOLLOUT",
    signal: "pidfd_send_signal",
    time: "CLOCK_BOOTTIME",
}.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
"""
PROGRAM = DIE("""\
import random
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 2))
optimizer = torch.optim.Adam(net.parameters(), 0.01)
loader = DataLoader(TensorDataset(torch.randn(40, 4), torch.randint(0, 2, (40,))), 8, shuffle=True)
with open("log.csv", "w") as log:
    for epoch in range(3):
        for number, (x, y) in enumerate(loader):
            die(f"{epoch}:{number}")
            loss = nn.functional.cross_entropy(net(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            log.write(f"{epoch},{number},{loss.item()},{random.random()}\\n")
print([each.tolist() for each in net.parameters()])
""")


def test_without_what_linux_alone_has_a_run_is_as_exact(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    there = library(tmp_path, {"sitecustomize.py": LOSES})

    _whole, _died, last = compared(detrain, tmp_path, PROGRAM, at=["0:3", "1:4"], every="2b", whole="bare", **there)
    mirrored = detrain("run", "--fresh", "--mirror", f"file://{tmp_path / 'mirror'}", "program.py", cwd=tmp_path, **there)

    assert "resuming" in last.err
    assert_refused(mirrored, errors.UsageError, "--mirror needs Linux", "copy the home by other means")


@pytest.mark.slow
def test_ranks_go_without_just_in_time_checkpoints_where_there_is_no_linux(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    there = library(tmp_path, {"sitecustomize.py": LOSES})
    words = (EXAMPLES / "digits" / "torch_ddp_train.py", "--epochs", 1)

    plain = detrain("launch", "--nproc-per-node", 2, *words, cwd=tmp_path, **there)
    wanted = detrain("launch", "--nproc-per-node", 2, "--fresh", "--jit", *words, cwd=tmp_path, **there)

    assert plain.status == 0, plain.err
    assert "no just-in-time checkpoints: they need Linux" in plain.err
    assert "--jit needs Linux" in wanted.err
    assert wanted.status != 0


def test_windows_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cli, "_IS_POSIX", False)

    assert cli.main(["run", "program.py"]) == errors.UsageError.exit_code
    assert "detrain runs on Linux, and most of it on macOS" in capsys.readouterr().err
