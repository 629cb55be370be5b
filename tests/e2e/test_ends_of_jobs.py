"""Jobs end: in PyTorch itself, a process may stand still for ever behind its last line
(see detrain/adapters/torch/distributed/ends.py), or where its launcher is gone.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.forkserver import Server
from tests.e2e.runs import ROOT, environment
from tests.e2e.test_mirror_ends import RANKS, kill_all_in, processes_in

PROGRAM = ROOT / "tests" / "programs" / "ranks" / "ends.py"


@pytest.mark.parametrize(
    ("world", "count", "options"),
    [
        (1, 30, ["--bare"]),  # a rank of a job of one: no other is waited for
        (2, 12, []),
        (2, 31, ["--no-jit"]),
        (3, 200, ["--bare"]),
    ],
)
def test_each_end_of_a_job_comes(world: int, count: int, options: list[str], ranks_server: Server, tmp_path: Path) -> None:
    results = ranks_server.job("run", *options, PROGRAM, count, cwd=tmp_path, ranks=[{}] * world)

    assert [result.status for result in results] == [0] * world, results[0].err
    assert len({result.last_line() for result in results}) == 1
    assert results[0].last_line().startswith("final")


BEFORE_THE_GROUP = """
import os, pathlib, time
import torch.distributed as dist
pathlib.Path(f"here-{os.environ['RANK']}").touch()
while not pathlib.Path("gone").exists():
    time.sleep(0.05)
dist.init_process_group("gloo")
"""
"""Waits in C++, for a store that the launcher had."""
LONG_BEFORE_THE_LOOP = f"import time; time.sleep(900)\n{RANKS}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "options", "signs", "saved"),
    [
        (BEFORE_THE_GROUP, [], "here-*", "nothing was saved"),
        pytest.param(RANKS, ["--no-jit", "--every", "2b"], "ckpt/*/*/*.h5", "nothing was saved", marks=pytest.mark.slow),
        pytest.param(RANKS, ["--jit"], "ckpt/*/*/*.h5", "saved, see ckpt", marks=pytest.mark.slow),
        pytest.param(LONG_BEFORE_THE_LOOP, [], "ckpt/*/rank-*", "nothing was saved", marks=pytest.mark.slow),
    ],
)
def test_ranks_end_with_a_message_when_their_launcher_is_killed(
    program: str, options: list[str], signs: str, saved: str, tmp_path: Path
) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "program.py").write_text(program)
    command = [sys.executable, "-m", "detrain", "launch", "--nproc-per-node", "2", *options, "program.py", "0.3"]
    with (tmp_path / "err").open("w") as err:
        launcher = subprocess.Popen(command, cwd=folder, env=environment(), stdout=err, stderr=err)
    try:
        until = time.monotonic() + 120
        while len(list(folder.glob(signs))) < 2:
            assert time.monotonic() < until, (tmp_path / "err").read_text()
            time.sleep(0.05)
        launcher.kill()
        launcher.wait()
        (folder / "gone").touch()
        since = time.monotonic()
        while processes_in(folder) and time.monotonic() - since < 60:
            time.sleep(0.05)
        left = processes_in(folder)
    finally:
        launcher.kill()
        kill_all_in(folder)
    said = [line for line in (tmp_path / "err").read_text().splitlines() if "launcher" in line]
    assert left == []
    assert [line.partition(": its ")[2].startswith(f"launcher (process {launcher.pid}) has ended: {saved}") for line in said] == [
        True
    ]
