"""Faults on single ranks of a PyTorch job: with the guard all ranks go back together, and the job ends with the bits of
the bare one without faults. A job has several processes, so each test takes some; a server forks them.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from detrain.base.errors import FaultPersists
from detrain.store.node_folder import PREFIX
from tests.e2e.forkserver import Server
from tests.e2e.runs import ROOT, Result, actions

PROGRAM = ROOT / "tests" / "programs" / "ranks" / "struck.py"
FAULTS = "5@1:weight,9@0:loss,13@1:slot"


def job(server: Server, folder: Path, kind: str, world: int, *options: object, **changes: str) -> list[Result]:
    return server.job("run", *options, PROGRAM, kind, cwd=folder, ranks=[changes] * world)


def bare(server: Server, folder: Path, kind: str, world: int) -> list[Result]:
    folder.mkdir()
    return server.job(PROGRAM, kind, cwd=folder, ranks=[{}] * world, is_bare=True)


def all_actions(folder: Path, world: int) -> list[list[str]]:
    return [actions(folder / "ckpt" / "struck" / f"rank-{rank}") for rank in range(world)]


@pytest.mark.parametrize(
    ("kind", "world"),
    [
        pytest.param("ddp", 2, id="ddp", marks=pytest.mark.fast),
        pytest.param("ddp", 3, id="ddp, three ranks", marks=pytest.mark.slow),
        pytest.param("fsdp2", 2, id="fsdp2", marks=pytest.mark.slow),
    ],
)
def test_a_fault_on_one_rank_is_undone_on_all(kind: str, world: int, ranks_server: Server, tmp_path: Path) -> None:
    done = job(ranks_server, tmp_path, kind, world, "--guard", "recover", FAULTS=FAULTS)
    wanted = bare(ranks_server, tmp_path / "bare", kind, world)

    assert [each.status for each in done] == [0] * world, done[0].err
    assert [each.out for each in done] == [each.out for each in wanted]
    assert all_actions(tmp_path, world) == [["went back", "recovered"] * 3] * world
    logs = [log.read_text() for log in tmp_path.glob("ckpt/struck/rank-*/*.changes")]
    assert len(logs) == world
    assert not [log for log in logs if "/jit/" in log or PREFIX in log], "files of detrain count as the program's"


@pytest.mark.slow
def test_an_alarm_that_comes_again_ends_all_ranks(ranks_server: Server, tmp_path: Path) -> None:
    done = job(ranks_server, tmp_path, "ddp", 2, "--guard", "recover", FAULTS="5@1:weight", again="1")

    assert [each.status for each in done] == [FaultPersists.exit_code] * 2, done[0].err
    assert all_actions(tmp_path, 2) == [["went back"], ["went back", "stopped"]]
    assert "another rank has met its alarm" in done[0].err


@pytest.mark.slow
def test_where_there_is_no_exact_way_back_the_job_ends_and_goes_on_from_before(ranks_server: Server, tmp_path: Path) -> None:
    """With three ranks the order of sums follows from DDP's buckets, which it makes behind the first step."""
    ended = job(ranks_server, tmp_path, "ddp", 3, "--guard", "recover", FAULTS="1@2:weight")
    done = job(ranks_server, tmp_path, "ddp", 3, "--guard", "recover", FAULTS="1@2:weight")

    assert [each.status for each in ended] == [FaultPersists.exit_code] * 3, ended[0].err
    assert "has made its buckets since" in ended[0].err
    assert [each.out for each in done] == [each.out for each in bare(ranks_server, tmp_path / "bare", "ddp", 3)]


@pytest.mark.slow
def test_a_job_that_is_struck_and_killed_ends_as_one_that_never_was(ranks_server: Server, tmp_path: Path) -> None:
    kill = {"DETRAIN_TRIAL": json.dumps({"states": str(tmp_path / "states"), "kill_at": 10})}
    options = ("--guard", "recover", "--every", "4b")
    killed = ranks_server.job("run", *options, PROGRAM, "ddp", cwd=tmp_path, ranks=[{"FAULTS": FAULTS, **kill}, {"FAULTS": FAULTS}])
    done = job(ranks_server, tmp_path, "ddp", 2, *options, FAULTS=FAULTS)

    assert killed[0].status == -9, killed[0].err
    assert [each.status for each in done] == [0] * 2, done[0].err
    wanted = bare(ranks_server, tmp_path / "bare", "ddp", 2)
    assert [each.out.splitlines()[-1] for each in done] == [each.out.splitlines()[-1] for each in wanted]


@pytest.mark.slow
def test_detect_changes_nothing(ranks_server: Server, tmp_path: Path) -> None:
    done = job(ranks_server, tmp_path, "fsdp2", 2, "--guard", "detect", "--guard-gradients")

    assert [each.out for each in done] == [each.out for each in bare(ranks_server, tmp_path / "bare", "fsdp2", 2)]
    assert "alarm" not in done[0].err
