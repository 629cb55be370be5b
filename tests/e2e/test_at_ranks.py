"""A rank of a job that is over: all ranks run again, and what is there is what an uninterrupted job had that knows
nothing of detrain.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.forkserver import Server
from tests.e2e.runs import detrain
from tests.e2e.test_at import digests
from tests.e2e.test_prompts import Terminal

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

PROGRAM = """
import os
import numpy as np, torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(5)
data = TensorDataset(torch.randn(48, 4), torch.randint(2, (48,)))
model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 2)))
torch.manual_seed(100 + rank)
shares = DistributedSampler(data, 2, rank)
optimizer = torch.optim.Adam(model.parameters(), 0.01)
for epoch in range(3):
    shares.set_epoch(epoch)
    for step, (x, y) in enumerate(DataLoader(data, 6, sampler=shares)):
        if os.environ.get("DUMP"):
            np.savez(f"{os.environ['DUMP']}-{rank}-{epoch}-{step}", x=x, weight=model.module[0].weight.detach())
        out = model(x)
        loss = nn.functional.cross_entropy(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if os.environ.get("DUMP"):
            np.savez(f"{os.environ['DUMP']}-{rank}-{epoch}-{step}-out", out=out.detach())
dist.destroy_process_group()
"""
HEX = {"x": "x.numpy().tobytes().hex()", "weight": "model.module[0].weight.detach().numpy().tobytes().hex()"}


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory, ranks_server: Server) -> Path:
    """A folder in which a job of two ranks is over, and beside it what one without detrain had before each step."""
    folder = tmp_path_factory.mktemp("at") / "work"
    for each in (folder, folder.parent / "bare"):
        each.mkdir()
        (each / "program.py").write_text(PROGRAM)
    done = ranks_server.job("run", "--every", "2b", "program.py", cwd=folder, ranks=[{}, {}])
    assert [each.status for each in done] == [0, 0], done
    dumped = [{"DUMP": str(folder.parent / "had")}] * 2
    bare = ranks_server.job("program.py", cwd=folder.parent / "bare", ranks=dumped, is_bare=True)
    assert [each.status for each in bare] == [0, 0], bare
    return folder


def had(job: Path, rank: int, at: str, name: str) -> str:
    """What a rank of the bare job had there, as hexadecimal bytes."""
    return np.load(job.parent / f"had-{rank}-{at.replace(':', '-')}.npz")[name].tobytes().hex()


@pytest.mark.parametrize(
    ("rank", "at", "since"), [(0, "2:2", "the checkpoint 2:"), (1, "2:3", "the checkpoint 2:"), (1, "0:1", "the start")]
)
def test_a_rank_is_as_it_was(job: Path, rank: int, at: str, since: str) -> None:
    before = digests(job)
    prints = [word for name, value in HEX.items() for word in ("--print", f"{value} == '{had(job, rank, at, name)}'")]

    done = detrain("at", "--rank", rank, *prints, at, "program.py", cwd=job).ok()

    assert f"from {since}" in done.out
    assert done.out.count(" bool  True") == 2, done.out
    assert digests(job) == before


def test_a_debugger_in_one_rank_steps_through_what_all_do_together(job: Path) -> None:
    prompt = "(Pdb) "
    terminal = Terminal("at", "--rank", 1, "--pdb", "2:3", "program.py", cwd=job)

    terminal.read_to(prompt)
    assert had(job, 1, "2:3", "x") in terminal.ask(f"p {HEX['x']}", prompt)
    while "-> loss = " not in terminal.ask("n", prompt):
        pass
    out = np.load(job.parent / "had-1-2-3-out.npz")["out"].tobytes().hex()
    assert out in terminal.ask("p out.detach().numpy().tobytes().hex()", prompt)
    while "-> if os" not in terminal.ask("n", prompt):
        pass
    terminal.ask("back 1", prompt)
    assert had(job, 1, "2:2", "weight") in terminal.ask(f"p {HEX['weight']}", prompt)
    os.write(terminal.file, b"q\n")

    assert terminal.end() == 0


@pytest.mark.parametrize(
    ("command", "words", "status", "said"),
    [
        ("at", ("1:0", "program.py"), 64, "is a job of 2 ranks"),
        ("at", ("--rank", "2", "1:0", "program.py"), 64, "--rank 2 of a job of 2 ranks"),
        ("at", ("--rank", "0", "3:0", "program.py"), 64, "the run has no step 3:0"),
        ("hindsight", ("program.py",), 64, "is a job of 2 ranks"),
    ],
)
def test_what_a_job_has_not_is_said(job: Path, command: str, words: tuple[str, ...], status: int, said: str) -> None:
    done = detrain(command, *words, cwd=job)

    assert (done.status, said in done.err, done.out) == (status, True, ""), done.err


def test_a_job_of_which_a_rank_is_missing_does_not_run(job: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    shutil.copytree(job, work)
    shutil.rmtree(work / "ckpt" / "program" / "rank-1")

    done = detrain("at", "--rank", "0", "1:0", "program.py", cwd=work)

    assert (done.status, "has checkpoints of 1 of 2 ranks only" in done.err) == (73, True), done.err
