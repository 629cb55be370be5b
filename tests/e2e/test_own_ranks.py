"""Programs that start their own ranks: exact under `detrain launch`, or refused before they train."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.e2e.forkserver import Server
from tests.e2e.runs import ROOT, detrain, plain, ran

PROGRAM = ROOT / "tests" / "programs" / "ranks" / "spawned.py"
LIGHTNING = """
import sys
import torch
import lightning


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(8, 1)

    def training_step(self, batch, number):
        return self.net(batch).pow(2).mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


if __name__ == "__main__":
    trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", devices=2, strategy=sys.argv[1], logger=False,
                                enable_checkpointing=False, enable_progress_bar=False)
    trainer.fit(Model(), torch.utils.data.DataLoader(torch.ones(8, 8), 2))
"""
ACCELERATE = """
import accelerate
import torch


def train():
    accelerator = accelerate.Accelerator(cpu=True)
    net = torch.nn.Linear(8, 1)
    net, optimizer = accelerator.prepare(net, torch.optim.Adam(net.parameters()))
    for epoch in range(2):
        for batch in torch.ones(3, 4, 8):
            accelerator.backward(net(batch).pow(2).mean())
            optimizer.step()


if __name__ == "__main__":
    accelerate.LAUNCHER(train, num_processes=2)
"""


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.mark.parametrize(
    ("how", "todo"),
    [("spawn", "--nproc-per-node 2`, as it is"), ("fork", "called by each rank"), ("forkserver", "called by each rank")],
)
def test_alone_such_a_program_is_refused_before_it_trains(how: str, todo: str, port: int, tmp_path: Path) -> None:
    result = detrain("run", PROGRAM, how, 2, port, cwd=tmp_path)

    assert result.status == 80, result.err
    assert todo in result.err
    assert "epoch" not in result.out
    assert result.err.count("detrain: error") == 1


@pytest.mark.slow
def test_launched_each_rank_calls_what_spawn_would_start(ranks_server: Server, port: int, tmp_path: Path) -> None:
    results = {}
    for name, kills in [("whole", []), ("killed", [{0: "1:2"}, {0: "2:4", 1: "2:4"}])]:
        (tmp_path / name).mkdir()
        for kill in [*kills, {}]:
            ranks = [{"DIE_AT": kill[rank]} if rank in kill else {} for rank in range(2)]
            results[name] = ranks_server.job("run", "--every", "2b", PROGRAM, "spawn", 4, port, cwd=tmp_path / name, ranks=ranks)
    oracle = plain(PROGRAM, "spawn", 4, port, OMP_NUM_THREADS="1")

    assert [each.status for each in (*results["whole"], *results["killed"])] == [0] * 4, results["killed"][0].err
    assert oracle.last_line().startswith("final")
    assert results["whole"][0].out == oracle.out
    assert results["killed"][0].last_line() == oracle.last_line()
    assert "resuming" in results["killed"][0].err


@pytest.mark.slow
def test_functions_that_join_no_group_are_not_the_ranks(ranks_server: Server, port: int, tmp_path: Path) -> None:
    results = ranks_server.job("run", PROGRAM, "idle", 2, port, cwd=tmp_path, ranks=[{}] * 2)

    assert [each.status for each in results] == [80, 80]
    assert "has joined no process group" in results[0].err


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "ddp_spawn", "ddp_notebook"])
def test_lightnings_own_processes_are_refused_at_once(strategy: str, tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    (tmp_path / "train.py").write_text(LIGHTNING)

    result = detrain("run", "train.py", strategy, cwd=tmp_path)

    assert result.status == 80, result.err
    assert "detrain launch --nproc-per-node 2" in result.err


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["debug_launcher", "notebook_launcher"])
def test_accelerates_own_processes_are_refused_at_once(launcher: str, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    result = ran(detrain, tmp_path, ACCELERATE.replace("LAUNCHER", launcher), name="train.py")

    assert result.status == 80, result.err
    assert "detrain launch --nproc-per-node 2" in result.err


def test_what_starts_programs_is_told_to_start_detrain(tmp_path: Path) -> None:
    result = detrain("run", "-m", "torch.distributed.run", "--nproc-per-node", 2, "train.py", cwd=tmp_path)

    assert result.status == 64
    assert "-m detrain run" in result.err


def test_info_says_where_a_program_starts_its_own_ranks(tmp_path: Path) -> None:
    result = detrain("info", PROGRAM, cwd=tmp_path).ok()

    assert "mp.spawn() may start processes that train together" in result.out
