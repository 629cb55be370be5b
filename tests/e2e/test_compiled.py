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

PROGRAM: Final = """\
import hashlib, os, signal, sys
import torch
from torch import nn
from torch.nn import functional as F

WAY, BACKEND = sys.argv[1:]
torch.manual_seed(0)

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
        if os.environ.get("DIE_AT") == str(batches):
            os.kill(os.getpid(), signal.SIGKILL)
    if WAY == "validation":
        net.eval()
        with torch.no_grad():
            print(epoch, model(x[:50]).sum().item())
        net.train()
    print(epoch, loss, flush=True)
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest()
print("last", digest, torch.rand(()).item())
"""
WAYS: Final = (
    *("model", "method", "loss", "optimizer", "dynamic", "full graph", "bf16", "graph break", "disabled"),
    *("last batch", "lengths", "validation", "reduce-overhead", "max-autotune"),
)
OF_THE_CACHE: Final = ("last batch", "lengths", "max-autotune")
"""Whose kernels follow from the size that came first, or from measured times: exact with the cache of the first run."""
CODE: Final = "inductor" if shutil.which("g++") else "aot_eager"
FAST: Final = ("validation", "aot_eager")
"""A row without a compiler of C++: nothing is compiled to machine code."""


@pytest.mark.parametrize(
    ("way", "backend", "death"),
    [
        pytest.param(*FAST, "14", marks=pytest.mark.slow),
        *(pytest.param(way, CODE, death, marks=pytest.mark.slow) for way in WAYS for death in ("7", "14")),
    ],
)
def test_a_compiled_program_that_is_killed_ends_as_one_that_never_was(
    way: str, backend: str, death: str, torch_server: Server, tmp_path: Path
) -> None:
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    (tmp_path / "program.py").write_text(PROGRAM)
    command = "run", "--every", "3b", tmp_path / "program.py", way, backend

    whole = torch_server.bare(tmp_path / "program.py", way, backend, cwd=tmp_path / "whole")
    killed = torch_server.detrain(*command, cwd=tmp_path / "killed", DIE_AT=death, TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "first"))
    second = "first" if way in OF_THE_CACHE else "second"
    resumed = torch_server.detrain(*command, cwd=tmp_path / "killed", TORCHINDUCTOR_CACHE_DIR=str(tmp_path / second))

    assert whole.status == 0, whole.err
    assert killed.status == -9, killed.err
    assert resumed.status == 0, resumed.err
    assert resumed.last_line() == whole.last_line()
    assert "not captured" not in killed.err + resumed.err


@pytest.mark.slow
@pytest.mark.skipif(CODE != "inductor", reason="there is no C++ compiler")
def test_kernels_that_are_others_with_another_cache_stop_the_resume_each_time(torch_server: Server, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = "run", "--every", "3b", "program.py", "last batch", "inductor"

    torch_server.detrain(*command, cwd=tmp_path, DIE_AT="14", TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "first"))
    other = [torch_server.detrain(*command, cwd=tmp_path, TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "second")) for _ in range(2)]

    assert [each.status for each in other] == [Diverged.exit_code] * 2
    assert "the kernels that PyTorch compiles for Net.forward in program.py" in other[0].err
    assert "--from" not in other[0].err


@pytest.mark.fast
def test_a_frame_that_dynamo_has_given_up_compiling_is_refused_beforehand(torch_server: Server, tmp_path: Path) -> None:
    """A resumed process compiled it again, and compiled dropout drew otherwise. It goes back to where all was compiled,
    and gives up where the first run did.
    """
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "whole").mkdir()
    command = "run", "--every", "3b", "program.py", "int attribute", "aot_eager"

    whole = torch_server.bare(tmp_path / "program.py", *command[-2:], cwd=tmp_path / "whole")
    killed = torch_server.detrain(*command, cwd=tmp_path, DIE_AT="14")
    resumed = torch_server.detrain(*command, cwd=tmp_path)

    assert "REFUSED from here on: Net.forward in program.py" in killed.err
    assert "later ones lack Net.forward in program.py" in resumed.err
    assert resumed.last_line() == whole.last_line()
