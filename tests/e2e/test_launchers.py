"""Jobs whose ranks `srun` or `mpirun` starts: what these set in the environment, and no `RANK`."""

from __future__ import annotations

from pathlib import Path

import pytest

from detrain.base import errors
from tests.e2e.forkserver import Server
from tests.e2e.programs import DIE

PROGRAM = DIE("""\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, distributed

of_slurm = "SLURM_PROCID" in os.environ
rank = int(os.environ["SLURM_PROCID" if of_slurm else "OMPI_COMM_WORLD_RANK"])
world = int(os.environ["SLURM_NTASKS" if of_slurm else "OMPI_COMM_WORLD_SIZE"])
os.environ["MASTER_ADDR"] = os.environ["MASTER_ADDR"] or "127.0.0.1"
torch.distributed.init_process_group("gloo", rank=rank, world_size=world)
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Linear(16, 2)))
optimizer = torch.optim.Adam(model.parameters(), 0.01)
data = TensorDataset(torch.randn(48, 8))
sampler = distributed.DistributedSampler(data)
loader = DataLoader(data, 4, sampler=sampler)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for step, (x,) in enumerate(loader):
        die(f"{epoch}:{step}")
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(rank, epoch, loss.item())
print(rank, [each.tolist() for each in model.parameters()])
torch.distributed.destroy_process_group()
""")
OF = {
    "srun": {
        "SLURM_PROCID": "{rank}",
        "SLURM_LOCALID": "{rank}",
        "SLURM_NTASKS": "2",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_TASKS_PER_NODE": "2",
    },
    "mpirun": {
        "OMPI_COMM_WORLD_RANK": "{rank}",
        "OMPI_COMM_WORLD_LOCAL_RANK": "{rank}",
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    },
}


def started_by(launcher: str, **changes: str) -> list[dict[str, str]]:
    of_torchrun = dict.fromkeys(("RANK", "WORLD_SIZE", "LOCAL_RANK"), "")
    return [
        {**of_torchrun, **{name: text.format(rank=rank) for name, text in OF[launcher].items()}, **changes} for rank in range(2)
    ]


@pytest.mark.parametrize("launcher", OF)
def test_the_tasks_of_a_launcher_are_the_ranks_of_a_job(ranks_server: Server, tmp_path: Path, launcher: str) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    bare = ranks_server.job("program.py", cwd=tmp_path, ranks=started_by(launcher), is_bare=True)
    command = ("run", "--every", "2b", "program.py")
    died = ranks_server.job(*command, cwd=tmp_path, ranks=started_by(launcher, DIE_AT="1:3"))
    last = ranks_server.job(*command, cwd=tmp_path, ranks=started_by(launcher))

    assert [each.status for each in died] == [-9, -9]
    assert "resuming program at 1:" in last[0].err
    assert [each.last_line() for each in last] == [each.ok().last_line() for each in bare]


def test_tasks_without_an_address_are_runs_of_their_own(ranks_server: Server, tmp_path: Path) -> None:
    """One that joins a group is refused, and is told of the address."""
    (tmp_path / "program.py").write_text(PROGRAM)
    tasks = started_by("srun", MASTER_ADDR="")
    found = ranks_server.job(
        "run", "program.py", cwd=tmp_path, ranks=[{**each, "CKPT_DIR": f"ckpt-{n}"} for n, each in enumerate(tasks)]
    )

    assert {each.status for each in found} == {errors.FrameworkUnsupported.exit_code}
    assert "one of 2 processes that srun has started, each a run of its own" in found[0].err
    assert "export MASTER_ADDR and MASTER_PORT" in found[0].err
