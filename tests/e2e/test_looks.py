"""Looking at a program's objects runs no code of theirs: a length may draw random numbers, as that of MONAI's `Compose`
does.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.forkserver import Server
from tests.e2e.programs import DIE
from tests.e2e.runs import compared, library

NOTING = """
import traceback
CALLS = []

def noting(name):
    def act(self, *given, **named):
        CALLS.append((type(self).__name__, name, traceback.extract_stack(limit=2)[0].filename))
        if name == "__getattr__":
            raise AttributeError(given[0])
        if name in ("__len__", "__hash__", "__length_hint__", "__int__", "__index__"):
            return 3
        if name in ("__bool__", "__contains__"):
            return True
        if name == "__eq__":
            return self is given[0]
        if name in ("__repr__", "__str__"):
            return "noted"
        return NotImplemented
    return act

NAMES = (
    "__len__ __bool__ __eq__ __ne__ __lt__ __hash__ __repr__ __str__ __iter__ __next__ __contains__ __getattr__ __getitem__ "
    "__call__ __int__ __float__ __index__ __enter__ __exit__ __format__ __fspath__ __copy__ __deepcopy__ __length_hint__ __bytes__"
).split()
OF_CONTAINERS = "__len__ __bool__ __eq__ __ne__ __repr__ __iter__ __contains__ __getitem__ __getattr__".split()
PROPERTIES = "value cardinality shape dtype device closed name batch_size dataset __wrapped__ _fields".split()
noted = {name: noting(name) for name in NAMES} | {name: property(noting(name)) for name in PROPERTIES}
Object = type("Object", (), noted)
List = type("List", (list,), {name: noting(name) for name in OF_CONTAINERS})
Dict = type("Dict", (dict,), {name: noting(name) for name in OF_CONTAINERS})
"""
PROGRAM = DIE("""
import noting
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
Own = type("Own", (), dict(noting.noted))

class Plain:
    def __init__(self):
        self.held, self.steps = noting.Object(), 0

class Rows(Dataset):
    def __init__(self):
        self.held, self.x = noting.Object(), torch.randn(24, 4)
    def __len__(self):
        return 24
    def __getitem__(self, index):
        return self.x[index]

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.held = nn.Linear(4, 1), noting.Object()
        self.several = [noting.Object(), noting.List([1]), noting.Dict(a=1)]
    def forward(self, x):
        return self.linear(x)

held, plain, own = noting.Object(), Plain(), Own()
a_list, a_dict = noting.List([1, 2]), noting.Dict(a=noting.Object())
among, pair = {"held": noting.Object(), "own": own}, (noting.Object(), 1)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
loader = DataLoader(Rows(), 8, shuffle=True)

def train():
    local = noting.Object()
    for epoch in range(3):
        for step, x in enumerate(loader):
            inner = noting.Object()
            plain.steps += 1
            plain.new = noting.Object()
            loss = net(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            among["last"] = noting.Object()
            die(f"{epoch}:{step}")
        print(epoch, loss.item())

train()
print(noting.CALLS, net.linear.weight.tolist())
""")


@pytest.mark.parametrize("options", [(), ("--guard", "recover")])
def test_no_code_of_an_object_runs_that_does_not_run_without_detrain(
    torch_server: Server, tmp_path: Path, options: tuple[str, ...]
) -> None:
    compared(torch_server, tmp_path, PROGRAM, *options, at="1:1", every="2b", **library(tmp_path, {"noting.py": NOTING}))


@pytest.mark.parametrize("options", [(), ("--every", "2b")])
def test_a_run_that_is_not_killed_runs_none_either(torch_server: Server, tmp_path: Path, options: tuple[str, ...]) -> None:
    """The loops are found while it runs."""
    variables = library(tmp_path, {"noting.py": NOTING})
    (tmp_path / "program.py").write_text(PROGRAM)
    whole = torch_server.bare("program.py", cwd=tmp_path, **variables).ok()
    done = torch_server.detrain("run", *options, "program.py", cwd=tmp_path, **variables).ok()
    assert done.out == whole.out
    assert done.last_line().startswith("[] ")
