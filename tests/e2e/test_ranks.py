"""Programs of several processes (PyTorch's DistributedDataParallel): one rank or all are killed, the job is run again,
and each rank is compared bit for bit with the job that was never killed, and with one that knows nothing of detrain.

A process is what is killed, and a job has several, so each case takes some; a server forks them.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from detrain.store import opened
from detrain.verify.state_diff import compare
from tests.e2e.forkserver import Server
from tests.e2e.runs import EXAMPLES, ROOT, Result, detrain

PROGRAM = ROOT / "tests" / "programs" / "ranks" / "modes.py"
BATCHES = 18
MODES = ("default", "views", "static", "one_bucket", "unused", "accumulated", "no_buffers")


def run(server: Server, folder: Path, world: int, kills: list[dict[int, int]], *command: object) -> list[Result]:
    """Run a job as often as it takes; each time these ranks are killed when they have done so many batches."""
    folder.mkdir()
    results: list[Result] = []
    for kill in [*kills, {}]:
        plans = [{"states": f"{folder}.states-{rank}", "kill_at": kill.get(rank)} for rank in range(world)]
        trials = [{"DETRAIN_TRIAL": json.dumps(plan)} for plan in plans]
        results = server.job("run", "--ckpt", f"{folder}.home", *command, cwd=folder, ranks=trials)
        statuses = [result.status for result in results]
        assert statuses == [0] * world if not kill else all(statuses[rank] == -9 for rank in kill), [each.err for each in results]
    return results


def last_of(home: Path, rank: int) -> Path:
    return max(home.glob(f"*/rank-{rank}/*.h5"), key=lambda path: path.stat().st_mtime)


def assert_ends_as_if_never_killed(
    server: Server, folder: Path, world: int, draw: random.Random, distances: Sequence[str], *command: object
) -> None:
    """Kill one rank of a job at a random batch, all at a later one, and assert that each ends as the same of a job that
    was never killed, and of one that knows nothing of detrain.
    """
    one, everyone = sorted(draw.sample(range(2, BATCHES), 2))
    kills = [{draw.randrange(world): one}, dict.fromkeys(range(world), everyone)]
    every = draw.choice(distances)

    killed = run(server, folder / "killed", world, kills, "--every", every, *command)
    whole = run(server, folder / "whole", world, [], "--every", every, *command)
    (folder / "bare").mkdir()
    bare = server.job(*command, cwd=folder / "bare", ranks=[{}] * world, is_bare=True)

    assert [each.last_line() for each in killed] == [each.last_line() for each in bare], (every, kills)
    assert [each.out for each in bare] == [each.out for each in whole]
    assert_equal_states(folder / "whole.home", folder / "killed.home", world)
    assert "resuming" in killed[0].err
    assert "captured" not in "".join(each.err for each in (*whole, *killed))


def assert_equal_states(one: Path, other: Path, world: int) -> None:
    for rank in range(world):
        files = [last_of(home, rank) for home in (one, other)]
        assert files[0].name == files[1].name
        with opened(files[0]) as first, opened(files[1]) as second:
            assert [str(each) for each in compare(first, second)] == [], rank


@pytest.mark.parametrize(
    ("mode", "world", "seed"),
    [
        pytest.param("default", 2, 0, marks=pytest.mark.fast),  # buckets, which three ranks need, are test_just_in_time's
        pytest.param("default", 3, 0, marks=pytest.mark.slow),
        *(pytest.param(mode, 3, 1, marks=pytest.mark.slow) for mode in MODES),
        *(pytest.param(mode, 4, 2, marks=pytest.mark.slow) for mode in ("default", "static", "accumulated")),
        pytest.param("views", 2, 3, marks=pytest.mark.slow),
    ],
)
def test_killed_at_random_batches_a_job_ends_as_if_never_killed(
    mode: str, world: int, seed: int, ranks_server: Server, tmp_path: Path
) -> None:
    draw = random.Random(f"{mode} {world} {seed}")
    assert_ends_as_if_never_killed(ranks_server, tmp_path, world, draw, ["1b", "2b", "1"] if seed else ["2b"], PROGRAM, mode)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_the_example_ends_as_if_never_killed(workers: int, ranks_server: Server, tmp_path: Path) -> None:
    command = ("--every", "4b", EXAMPLES / "digits" / "torch_ddp_train.py", "--epochs", 2, "--workers", workers)

    whole = run(ranks_server, tmp_path / "whole", 3, [], *command)
    killed = run(ranks_server, tmp_path / "killed", 3, [{1: 7}, {0: 12, 1: 12, 2: 12}, {2: 22}], *command)

    assert [each.out.splitlines()[-1] for each in whole] == [each.out.splitlines()[-1] for each in killed]
    assert_equal_states(tmp_path / "whole.home", tmp_path / "killed.home", 3)


@pytest.mark.slow
def test_what_is_no_job_of_the_same_kind_is_refused(ranks_server: Server, tmp_path: Path) -> None:
    run(ranks_server, tmp_path / "job", 2, [], "--every", "9b", PROGRAM, "default")
    home = tmp_path / "job.home"

    three = ranks_server.job("run", "--ckpt", home, PROGRAM, "default", cwd=tmp_path, ranks=[{}] * 3)
    assert three[0].status == 77
    assert "the checkpoints are of a job of 2 ranks; this one has 3" in three[0].err
    alone = ranks_server.detrain("run", "--ckpt", home, PROGRAM, "default", cwd=tmp_path)
    assert alone.status == 77
    assert "as a job of 2 ranks; this run is one process" in alone.err
    minutes = ranks_server.job("run", "--every", "5min", PROGRAM, "default", cwd=tmp_path, ranks=[{}] * 2)
    assert [each.status for each in minutes] == [64, 64]


SPREAD = {
    "FSDP": "from torch.distributed.fsdp import FullyShardedDataParallel as W\nmodel = W(net, device_id=torch.device('cpu'))",
    "ZeroRedundancyOptimizer(overlap_with_ddp=True)": (
        "from torch.distributed.optim import ZeroRedundancyOptimizer as Z\nmodel = torch.nn.parallel.DistributedDataParallel(net)\n"
        "kept = Z(model.parameters(), torch.optim.SGD, overlap_with_ddp=True, lr=0.1)"
    ),
    "the communication hook powerSGD_hook": (
        "from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as p\n"
        "model = torch.nn.parallel.DistributedDataParallel(net)\nmodel.register_comm_hook(p.PowerSGDState(None), p.powerSGD_hook)"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", sorted(SPREAD))
def test_states_that_are_spread_over_processes_are_refused(what: str, ranks_server: Server, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\nimport torch.distributed as dist\ndist.init_process_group('gloo')\nnet = torch.nn.Linear(4, 4)\n"
        f"{SPREAD[what]}\noptimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "for epoch in range(2):\n    for batch in [torch.ones(2, 4)] * 3:\n"
        "        model(batch).sum().backward()\n        optimizer.step()\n"
    )

    results = ranks_server.job("run", tmp_path / "train.py", cwd=tmp_path, ranks=[{}] * 2)

    assert [each.status for each in results] == [80, 80], [each.err for each in results]
    assert re.search(re.escape(f"the program trains with {what}"), results[0].err)


@pytest.mark.slow
def test_verify_kills_ranks_and_compares_each(tmp_path: Path) -> None:
    result = detrain("verify", "--nproc", 2, "--kills", 1, "--every", "3b", "--json", PROGRAM, "static", cwd=tmp_path).ok()

    found = json.loads(result.out)
    assert found["exact"]
    assert [rank["runs"][2]["comparison"]["batches"] for rank in found["ranks"]] == [BATCHES] * 2
    assert sum("with rank" not in rank["runs"][2]["kills"][0] for rank in found["ranks"]) == 1


@pytest.mark.slow
def test_loops_that_a_run_has_to_find_are_found_by_all_ranks(ranks_server: Server, tmp_path: Path) -> None:
    program = tmp_path / "hidden.py"
    program.write_text(HIDDEN)
    whole = ranks_server.job("run", "--every", "2b", "--ckpt", tmp_path / "a", program, cwd=tmp_path, ranks=[{}] * 2)
    assert [result.status for result in whole] == [0, 0], whole[0].err + whole[1].err
    assert "starting again with probes there" in whole[0].err
    again = ranks_server.job("run", "--every", "2b", "--ckpt", tmp_path / "a", program, cwd=tmp_path, ranks=[{}] * 2)
    assert "resuming hidden" in again[0].err
    bare = ranks_server.job(program, cwd=tmp_path, ranks=[{}] * 2, is_bare=True)
    assert [result.out for result in bare] == [result.out for result in whole]


HIDDEN = """
import hashlib
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

class Job:
    def __init__(self):
        dist.init_process_group("gloo")
        torch.manual_seed(1)
        self.net = DistributedDataParallel(torch.nn.Linear(8, 4))
        torch.manual_seed(dist.get_rank() + 5)
        self.optimizer = torch.optim.SGD(self.net.parameters(), 0.1)
        self.todo = {"a": self.learn}

    def learn(self, x):
        self.net(x).pow(2).sum().backward()
        getattr(self.optimizer, "st" + "ep")()
        self.optimizer.zero_grad()

    def go(self):
        for epoch in range(3):
            for batch in range(6):
                self.todo["a"](torch.randn(4, 8))

job = Job()
job.go()
print(dist.get_rank(), hashlib.sha256(job.net.module.weight.detach().numpy().tobytes()).hexdigest()[:16], flush=True)
dist.barrier()
dist.destroy_process_group()
"""
