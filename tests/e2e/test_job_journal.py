"""What a job writes of each batch: no random streams where a resumed run would not need them, and all where it would.

The jobs are real ones, as what is looked at is the journal of a rank that is killed, and how the job goes on; a server
forks them.
"""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from detrain.base.errors import CannotSeek
from detrain.runtime.ranks.watcher import EXIT_CODE
from detrain.store.journal import read_batches
from tests.e2e.forkserver import Server

PROGRAM = """
import hashlib
import random
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

LOOPS, EPOCHS, BATCHES = map(int, sys.argv[1:])


class Noisy(Dataset):
    def __len__(self):
        return 4 * BATCHES

    def __getitem__(self, index):
        return torch.full((8,), index / 100 + random.random()) + torch.randn(8)


dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 1)))
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
random.seed(dist.get_rank())
torch.manual_seed(dist.get_rank())
for epoch in range(EPOCHS):
    for batch in DataLoader(Noisy(), 4, shuffle=True):
        optimizer.zero_grad()
        (model(batch) * random.random()).pow(2).mean().backward()
        optimizer.step()
    if LOOPS == 2:
        for batch in DataLoader(Noisy(), 4, shuffle=True):
            optimizer.zero_grad()
            (model(batch) * random.random()).abs().mean().backward()
            optimizer.step()
values = [*model.module.state_dict().values(), torch.rand(2), torch.tensor([random.random()])]
print("rank", dist.get_rank(), hashlib.sha256(b"".join(each.numpy().tobytes() for each in values)).hexdigest())
dist.barrier()
dist.destroy_process_group()
"""
RECORD_BYTES = 40
WORLD = 2


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "noisy.py"
    path.write_text(PROGRAM)
    return path


def journal(home: Path, rank: int) -> Path:
    return home / "noisy" / f"rank-{rank}" / "noisy-r1.journal"


@pytest.mark.slow
def test_two_thousand_batches_whose_bodies_draw_are_a_journal_of_their_digests(
    program: Path, ranks_server: Server, tmp_path: Path
) -> None:
    arguments = (program, 1, 2, 1000)
    results = ranks_server.job("run", "--ckpt", tmp_path / "home", *arguments, cwd=tmp_path, ranks=[{}] * WORLD)
    bare = ranks_server.job(*arguments, cwd=tmp_path, ranks=[{}] * WORLD, is_bare=True)

    assert [each.out for each in results] == [each.out for each in bare], results[0].err
    for rank in range(WORLD):
        path = journal(tmp_path / "home", rank)
        assert len(read_batches(path)) == 2000
        assert path.stat().st_size < 2000 * RECORD_BYTES + 40_000  # and the streams of a few, before the first hold


@pytest.mark.slow
def test_where_batches_must_be_loaded_again_their_streams_are_on_record(
    program: Path, ranks_server: Server, tmp_path: Path
) -> None:
    """The second loop of an epoch is loaded again. At that of the first epoch it is too late for its streams."""
    command = ("run", "--jit-every", "1", "--ckpt", tmp_path / "home", program, 2, 3, 6)
    whole = ranks_server.job(program, 2, 3, 6, cwd=tmp_path, ranks=[{}] * WORLD, is_bare=True)
    resumed, sizes = [], []
    for batches in (10, 12 + 9):
        fault = {"journal": str(journal(tmp_path / "home", 1)), "batches": batches, "later_s": 0.0, "signal": signal.SIGKILL}
        died = ranks_server.job(*command, cwd=tmp_path, ranks=[{}] * WORLD, faults={1: fault})
        assert [each.status for each in died] == [EXIT_CODE, -signal.SIGKILL]
        resumed.append(re.search(r"resuming noisy at (\d+):(\d+)", died[0].err))
        assert resumed[-1] is not None or "no state is taken at 0:7" in died[0].err
        sizes.append(journal(tmp_path / "home", 0).stat().st_size)
    again = ranks_server.job(*command, cwd=tmp_path, ranks=[{}] * WORLD)

    at = re.search(r"resuming noisy at 1:(\d+)", again[0].err)
    assert at is not None, again[0].err
    assert int(at[1]) > 6
    assert "are loaded again" in again[0].err
    assert sizes[0] < 1_000
    assert sizes[1] > 5_000
    assert [each.out for each in again] == [each.out for each in whole]


@pytest.mark.slow
def test_loading_again_is_refused_where_the_streams_are_not_on_record(program: Path, ranks_server: Server, tmp_path: Path) -> None:
    command = ("run", "--jit-every", "1", "--ckpt", tmp_path / "home")
    fault = {"journal": str(journal(tmp_path / "home", 1)), "batches": 9, "later_s": 0.0, "signal": signal.SIGKILL}
    ranks_server.job(*command, program, 1, 3, 6, cwd=tmp_path, ranks=[{}] * WORLD, faults={1: fault})

    refused = ranks_server.job(*command, "--loader", "forward", program, 1, 3, 6, cwd=tmp_path, ranks=[{}] * WORLD)

    assert [each.status for each in refused] == [CannotSeek.exit_code] * WORLD
    assert "has not written down the random streams" in refused[0].err
