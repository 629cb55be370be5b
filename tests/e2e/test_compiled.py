"""Programs under `torch.compile`: what has been compiled, and for which sizes, is state. By Inductor where there is a
C++ compiler, else by the backend that runs graphs as they are, whose frames are compiled just so.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import pytest

from detrain.base.errors import Diverged
from tests.e2e.forkserver import Server
from tests.e2e.programs import DIE

PROGRAM: Final = DIE("""\
import hashlib
import torch
from torch import nn
from torch.nn import functional as F

WAY, BACKEND = sys.argv[1:]
torch.manual_seed(0)
if WAY == "int attribute":
    torch._dynamo.config.recompile_limit = 4

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.drop, self.last, self.calls = nn.Linear(6, 8), nn.Dropout(0.2), nn.Linear(8, 2), 0
    def forward(self, x):
        if WAY == "int attribute":
            self.calls += 1
        if WAY == "graph break":
            torch._dynamo.graph_break()
        if WAY == "disabled":
            x = apart(x)
        return self.last(self.drop(F.gelu(self.first(x)))) / (1 + 0.01 * self.calls)

@torch.compiler.disable
def apart(x):
    return x * torch.rand(())

def loss_of(x, y):
    return F.cross_entropy(model(x), y)

kinds = {"dynamic": {"dynamic": True}, "full graph": {"fullgraph": True}}
if BACKEND == "inductor":
    kinds |= {"reduce-overhead": {"mode": "reduce-overhead"}, "max-autotune": {"mode": "max-autotune"}}
else:
    kinds = {way: {**kinds.get(way, {}), "backend": BACKEND} for way in [WAY]}
options = kinds.get(WAY, {})
net = model = Net()
if WAY == "method":
    net.compile(**options)
elif WAY not in ("loss", "optimizer"):
    model = torch.compile(net, **options)
if WAY == "loss":
    loss_of = torch.compile(loss_of, **options)
optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
step = torch.compile(optimizer.step, **options) if WAY == "optimizer" else optimizer.step
x, y = torch.randn(86, 6), torch.randint(2, (86,))
batches = 0
for epoch in range(3):
    for rows in torch.randperm(86 if WAY == "last batch" else 80).split(8):
        if WAY == "lengths":
            rows = rows[: 3 + int(torch.randint(5, ()))]
        with torch.autocast("cpu", torch.bfloat16, enabled=WAY == "bf16"):
            loss = loss_of(x[rows], y[rows])
        optimizer.zero_grad()
        loss.backward()
        step()
        loss = loss.item()
        batches += 1
        die(str(batches))
    if WAY == "validation":
        net.eval()
        with torch.no_grad():
            print(epoch, model(x[:50]).sum().item())
        net.train()
    print(epoch, loss, flush=True)
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest()
print("last", digest, torch.rand(()).item())
""")
GAN: Final = DIE("""\
import hashlib
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
backend = {"backend": sys.argv[2]}
made = nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(0.2), nn.Linear(16, 6), nn.Tanh())
judge = nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(0.2), nn.Dropout(0.2), nn.Linear(16, 1))
generator, critic = torch.compile(made, **backend), torch.compile(judge, **backend)
of_generator = torch.optim.Adam(made.parameters(), 2e-3, betas=(0.5, 0.999))
of_critic = torch.optim.Adam(judge.parameters(), 2e-3, betas=(0.5, 0.999))
rows, batches = torch.randn(80, 6).tanh(), 0
for epoch in range(3):
    for chosen in torch.randperm(80).split(8):
        fake = generator(torch.randn(8, 4))
        of_critic.zero_grad()
        right = F.binary_cross_entropy_with_logits(critic(rows[chosen]), torch.ones(8, 1))
        wrong = F.binary_cross_entropy_with_logits(critic(fake.detach()), torch.zeros(8, 1))
        (right + wrong).backward()
        of_critic.step()
        of_generator.zero_grad()
        loss = F.binary_cross_entropy_with_logits(critic(fake), torch.ones(8, 1))
        loss.backward()
        of_generator.step()
        batches += 1
        die(str(batches))
    with torch.no_grad():
        print(epoch, right.item(), wrong.item(), loss.item(), generator(torch.randn(5, 4)).sum().item(), flush=True)
parts = [part.detach().numpy().tobytes() for net in (made, judge) for part in net.parameters()]
print("last", hashlib.sha256(b"".join(parts)).hexdigest(), torch.rand(()).item())
""")
MODERN: Final = DIE("""\
import hashlib
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, random_split
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

class Rows(Dataset):
    def __init__(self):
        self.x = np.random.default_rng(0).normal(size=(100, 6)).astype("f4")
    def __len__(self):
        return len(self.x)
    def __getitem__(self, index):
        noise = np.random.normal(scale=0.1, size=6).astype("f4")
        return torch.from_numpy(self.x[index] + noise), int(self.x[index, :3].sum() > 0)

@torch.no_grad()
def right(model, loader):
    model.eval()
    count = sum((model(x).argmax(-1) == y).sum().item() for x, y in loader)
    model.train()
    return count

def main():
    train, held_out = random_split(Rows(), [0.8, 0.2])
    loader = DataLoader(train, 8, shuffle=True, num_workers=2, persistent_workers=True, drop_last=True)
    model = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Dropout(0.1), nn.LayerNorm(16), nn.Linear(16, 2))
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    forward = torch.compile(model, backend=sys.argv[2])
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=16)
    writer, best, step, batches = SummaryWriter("runs"), 0, 0, 0
    for epoch in range(3):
        bar = tqdm(loader, desc=f"epoch {epoch}", disable=True)
        for index, (x, y) in enumerate(bar):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(forward(x), y, label_smoothing=0.05) / 2
            loss.backward()
            if (index + 1) % 2 == 0:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                schedule.step()
                average.update_parameters(model)
                step += 1
                writer.add_scalar("loss", loss.item(), step)
            bar.set_postfix(loss=loss.item())
            batches += 1
            die(str(batches))
        count = right(average.module, DataLoader(held_out, 64))
        print(epoch, loss.item(), count, schedule.get_last_lr(), flush=True)
        if count > best:
            best = count
            torch.save({"model": model.state_dict(), "epoch": epoch}, "best.pt")
    writer.close()
    parts = [part.detach().numpy().tobytes() for part in (*model.parameters(), *average.parameters())]
    print("last", hashlib.sha256(b"".join(parts)).hexdigest(), torch.rand(()).item())

if __name__ == "__main__":
    main()
""")
PROGRAMS: Final = {"gan": GAN, "modern": MODERN}
"""What is a program of its own."""
WAYS: Final = (
    *("model", "method", "loss", "optimizer", "dynamic", "full graph", "bf16", "graph break", "disabled"),
    *("last batch", "lengths", "validation", "reduce-overhead", "max-autotune", *PROGRAMS),
)
OF_THE_CACHE: Final = ("last batch", "lengths", "max-autotune")
"""Whose kernels follow from the size that came first, or from measured times: exact with the cache of the first run."""
CODE: Final = "inductor" if shutil.which("g++") else "aot_eager"
FAST: Final = ("validation", "aot_eager")
"""A row without a compiler of C++: nothing is compiled to machine code."""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A cache that is filled by all tests: compiling is what takes their time."""
    return str(tmp_path_factory.mktemp("kernels"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "backend", "death", "cache"),
    [
        (*FAST, "14", "the first run's"),
        *((way, CODE, "14", "the first run's") for way in WAYS),
        *((way, CODE, "7", "empty") for way in WAYS if way not in OF_THE_CACHE),
        *((way, CODE, "7", "the first run's") for way in OF_THE_CACHE),
    ],
)
def test_a_compiled_program_that_is_killed_ends_as_one_that_never_was(
    way: str, backend: str, death: str, cache: str, kernels: str, torch_server: Server, tmp_path: Path
) -> None:
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    (tmp_path / "program.py").write_text(PROGRAMS.get(way, PROGRAM))
    command = "run", "--every", "3b", tmp_path / "program.py", way, backend
    first, second = kernels, kernels if cache != "empty" else str(tmp_path / "second")

    whole = torch_server.bare(*command[3:], cwd=tmp_path / "whole", TORCHINDUCTOR_CACHE_DIR=first).ok()
    killed = torch_server.detrain(*command, cwd=tmp_path / "killed", DIE_AT=death, TORCHINDUCTOR_CACHE_DIR=first).died()
    resumed = torch_server.detrain(*command, cwd=tmp_path / "killed", TORCHINDUCTOR_CACHE_DIR=second).ok()

    assert "resuming" in resumed.err
    assert resumed.last_line() == whole.last_line()
    assert "not captured" not in killed.err + resumed.err


@pytest.mark.slow
@pytest.mark.skipif(CODE != "inductor", reason="there is no C++ compiler")
def test_kernels_that_are_others_with_another_cache_stop_the_resume_each_time(torch_server: Server, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = "run", "--every", "3b", "program.py", "last batch", "inductor"

    died = torch_server.detrain(*command, cwd=tmp_path, DIE_AT="14", TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "first"))
    info = torch_server.detrain("info", "program.py", cwd=tmp_path)
    other = [torch_server.detrain(*command, cwd=tmp_path, TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "second")) for _ in range(2)]

    assert died.err.count("Net.forward in program.py:15: its kernels follow from what was compiled before") == 1
    assert "Net.forward in program.py:15 (compiled code: its kernels follow from what was compiled before" in info.out
    assert [each.status for each in other] == [Diverged.exit_code] * 2
    assert "the kernels that PyTorch compiles for Net.forward in program.py:15" in other[0].err
    assert "--from" not in other[0].err


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.slow
def test_a_frame_that_dynamo_has_given_up_compiling_is_refused_beforehand(
    backend: str, torch_server: Server, tmp_path: Path
) -> None:
    """A resumed process compiled it again, and compiled dropout drew otherwise. It goes back to where all was compiled,
    and gives up where the first run did.
    """
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "whole").mkdir()
    command = "run", "--every", "3b", "program.py", "int attribute", backend

    whole = torch_server.bare(tmp_path / "program.py", *command[-2:], cwd=tmp_path / "whole")
    killed = torch_server.detrain(*command, cwd=tmp_path, DIE_AT="7")
    resumed = torch_server.detrain(*command, cwd=tmp_path)

    assert "REFUSED from here on: Net.forward in program.py" in killed.err
    assert "later ones lack Net.forward in program.py" in resumed.err
    assert resumed.last_line() == whole.last_line()
