"""The programs of `tests/programs/torch`: killed at random cuts, run again, and compared bit for bit with the whole run
and with the bare program, which knows nothing of detrain.

A process is what is killed, so each case takes some.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from detrain.base.errors import Diverged, NotCapturable
from tests.e2e.forkserver import Server
from tests.e2e.programs import DIE
from tests.e2e.random_kills import assert_ends_as_if_never_killed
from tests.e2e.runs import after_deaths, compared, library, ran
from tests.programs_marks import TORCH

FAST = ("body_draws", "gan", "report_scripted", "reused_name", "trainer_class")
"""The programs that the fast lane kills, at one choice of cuts."""


@pytest.mark.parametrize(
    ("program", "seed"),
    [
        pytest.param(
            path, seed, id=f"{path.stem}-{seed}", marks=pytest.mark.fast if path.stem in FAST and not seed else pytest.mark.slow
        )
        for path in sorted(TORCH.glob("*.py"))
        for seed in range(2)
    ],
)
def test_killed_at_random_cuts_it_ends_as_if_never_killed(program: Path, seed: int, torch_server: Server, tmp_path: Path) -> None:
    every = ("1", "2b", "3b")[(len(program.stem) + seed) % 3]
    whole, killed = assert_ends_as_if_never_killed(torch_server, program, tmp_path, every, f"{program.name} {seed}")

    if "no loop over epochs" not in whole.err or every != "1":  # then there is a checkpoint each ten minutes
        assert "resuming" in killed.err or "cut off before its first checkpoint" in killed.err


STEPS = """\
import torch
from torch import nn
net = nn.Linear(3, 1)
optimizer = torch.optim.Adam(net.parameters(), 0.01)
seen, state = [], torch.zeros(3)
def learn():
    rows = torch.stack(seen)
    seen.clear()
    for _ in range(4):
        optimizer.zero_grad()
        net(rows).square().mean().backward()
        optimizer.step()
for t in range(1, 101):
    state = 0.9 * state + torch.randn(3)
    seen.append(state)
    if t % 25 == 0:
        learn()
print(float(net.weight.detach().sum()))
"""


MADE_IN_LOOP = DIE("""\
import functools
import lazylib
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
clip = mode = None
for epoch in range(3):
    if epoch == 1:
        clip, mode = functools.partial(min, 0.5), lazylib.Mode.FAST
    for step in range(4):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        die(f"{epoch}:{step}")
    print(epoch, clip and clip(7.0), mode, float(model.weight.detach().sum()))
""")


def test_a_partial_of_a_builtin_and_a_class_that_is_imported_lazily_come_back(torch_server: Server, tmp_path: Path) -> None:
    lazy = "import importlib\ndef __getattr__(name):\n    return getattr(importlib.import_module('lazylib.modes'), name)\n"
    modes = "import enum\nclass Mode(enum.Enum):\n    FAST = 1\n"
    path = library(tmp_path, {"lazylib/__init__.py": lazy, "lazylib/modes.py": modes})

    _, _, resumed = compared(torch_server, tmp_path, MADE_IN_LOOP, "--ckpt", "home", every="2b", at="2:3", whole="run", **path)

    assert "not captured" not in resumed.err


PERSISTENT = DIE("""\
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

class Noisy(Dataset):
    def __len__(self):
        return 44
    def __getitem__(self, index):
        return torch.full((3,), float(index)) + torch.from_numpy(np.random.normal(size=3).astype("f4"))

def main():
    loader = DataLoader(Noisy(), batch_size=4, shuffle=True, num_workers=2, persistent_workers=True)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for epoch in range(3):
        bar = tqdm(loader, disable=True)
        for step, rows in enumerate(bar):
            optimizer.zero_grad()
            model(rows / 44).square().mean().backward()
            optimizer.step()
            die(f"{epoch}:{step}")
        print(epoch, float(model.weight.detach().sum()), flush=True)

main()
""")


@pytest.mark.parametrize("death", ["0:5", "1:7"])
def test_workers_that_live_on_under_a_progress_bar_are_those_that_the_loader_keeps(
    death: str, torch_server: Server, tmp_path: Path
) -> None:
    """The resumed run gave the loader other workers than the bar went over, for the epochs behind."""
    pytest.importorskip("tqdm")
    compared(torch_server, tmp_path, PERSISTENT, every="3b", at=death, whole="run")


ONE_AHEAD = """\
from torch.utils.data import DataLoader

class Ahead(DataLoader):
    def __iter__(self):
        drawn = super().__iter__()
        ready = next(drawn)
        for each in drawn:
            yield ready
            ready = each
        yield ready
"""
DRAWS_AHEAD = DIE("""\
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "site-packages"))
import torch
from ahead import Ahead
from tqdm import tqdm

loader = Ahead([torch.full((3,), float(index)) for index in range(44)], batch_size=4, shuffle=True)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.Adam(model.parameters(), 0.01)
for epoch in range(3):
    drawn = iter(MADE)
    for step in range(11):
        rows = next(drawn)
        optimizer.zero_grad()
        model(rows / 44 + 0.1 * torch.randn(4, 3)).square().mean().backward()
        optimizer.step()
        die(f"{epoch}:{step}")
    print(epoch, float(model.weight.detach().sum()), flush=True)
""")


@pytest.mark.parametrize("death", ["0:5", "1:7"])
@pytest.mark.parametrize("made", ["loader", "tqdm(loader)", "tqdm(torch.utils.data.DataLoader(loader.dataset, 4, shuffle=True))"])
def test_a_generator_of_a_library_is_where_what_it_draws_from_is(
    made: str, death: str, torch_server: Server, tmp_path: Path
) -> None:
    """Each checkpoint inside an epoch was REFUSED: the generator under the Trainer of transformers is one."""
    pytest.importorskip("tqdm")
    library(tmp_path, {"ahead.py": ONE_AHEAD})
    _, killed, resumed = compared(torch_server, tmp_path, DRAWS_AHEAD.replace("MADE", made), every="3b", at=death)

    assert "REFUSED" not in killed.err
    assert f"at {death[0]}:" in resumed.err


UNDER_A_BAR = DIE("""\
import torch
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

class Rows(TensorDataset):
    loads = 0
    def __getitem__(self, index):
        Rows.loads += 1
        return super().__getitem__(index)

rows = torch.randn(44, 3)
loader = DataLoader(Rows(rows), batch_size=4, shuffle=True)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.Adam(model.parameters(), 0.01)
for epoch in range(3):
    bar = tqdm(OVER, total=11, leave=False)
    MADE
    for step, batch in HEADER:
        batch = batch[1][0] if step is None else batch[0]
        optimizer.zero_grad()
        (model(batch) + 0.1 * torch.randn(4, 1)).square().mean().backward()
        optimizer.step()
        die(f"{epoch}:{Rows.loads}")
    print(epoch, float(model.weight.detach().sum()), Rows.loads, bar.n, len(bar), next(numbered, None), flush=True)
""")


@pytest.mark.parametrize(
    ("over", "made", "header", "is_sought"),
    [
        ("loader", "numbered = iter(())", "enumerate(bar)", True),
        ("loader", "numbered = enumerate(bar)", "numbered", False),  # the program holds what numbers the bar's items
        ("loader", "numbered = iter(()); drawn = ((None, batch) for batch in enumerate(bar))", "drawn", False),
        ("enumerate(loader)", "numbered = iter(())", "bar", True),
    ],
)
def test_a_loader_under_a_progress_bar_is_set_to_its_position(
    over: str, made: str, header: str, is_sought: bool, torch_server: Server, tmp_path: Path
) -> None:
    """Its batches were loaded again: the bar's generator has no position."""
    pytest.importorskip("tqdm")
    text = UNDER_A_BAR.replace("OVER", over).replace("MADE", made).replace("HEADER", header)
    _, _, resumed = compared(torch_server, tmp_path, text, every="3b", at="1:72", is_tail=True)

    assert "at 1:4" in resumed.err
    assert ("nothing is loaded again" in resumed.err) is is_sought


SEEDED_BY_THE_SYSTEM = DIE("""\
import torch
number, held = torch.seed(), torch.Generator()
print(number, held.seed(), flush=True)  # what the code before the loop does with them, no checkpoint sets right
x = torch.randn(32, 4)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for epoch in range(3):
    for rows in x.split(8):
        optimizer.zero_grad()
        (model(rows) - torch.rand(8, 1, generator=held)).square().mean().backward()
        optimizer.step()
    print(epoch, flush=True)
    die(str(epoch))
""")


def test_a_seed_that_pytorch_takes_from_the_system_is_the_same_one_at_the_resume(torch_server: Server, tmp_path: Path) -> None:
    """The resumed run drew another number."""

    killed, resumed = after_deaths(torch_server, tmp_path, SEEDED_BY_THE_SYSTEM, at="1")
    other = torch_server.detrain("run", "--ckpt", "other", "program.py", cwd=tmp_path)

    assert resumed.status == 0, resumed.err
    assert killed.out.splitlines()[0] == resumed.out.splitlines()[0] != other.out.splitlines()[0]


@pytest.mark.fast
def test_a_home_beside_the_folder_of_the_run_is_no_file_of_the_program(torch_server: Server, tmp_path: Path) -> None:
    """With `--ckpt ../home` its lock and manifest were named, as if the loop wrote them."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "steps.py").write_text(STEPS.replace("range(1, 101)", "range(1, 51)"))

    whole = torch_server.detrain("run", "--every", "5b", "--ckpt", "../home", "steps.py", cwd=tmp_path / "in").ok()

    assert list((tmp_path / "home").glob("*.h5"))
    assert "not captured" not in whole.err


@pytest.mark.fast
def test_turns_that_train_nothing_take_no_checkpoints(torch_server: Server, tmp_path: Path) -> None:
    """Steps in an environment, between which PPO trains now and then, are epochs: with a checkpoint at each, a run
    spent all of its time on them.
    """
    whole = ran(torch_server, tmp_path, STEPS, "--keep", "99", name="steps.py").ok()

    assert len(list(tmp_path.glob("ckpt/*.h5"))) < 20
    assert whole.out == torch_server.bare("steps.py", cwd=tmp_path).out


ENGINE = DIE("""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
class Engine:
    def __init__(self, process, on_epoch=None):
        self.process, self.on_epoch, self.epoch, self.iteration, self.output = process, on_epoch, 0, 0, None
    def run(self, loader, epochs=1):
        self.epoch = self.iteration = 0
        {loop}
            for batch in loader:
                self.iteration += 1
                self.output = self.process(self, batch)
            if self.on_epoch:
                self.on_epoch(self)
torch.manual_seed(0)
x = torch.randn(40, 3)
train, val = DataLoader(TensorDataset(x), 4, shuffle=True), DataLoader(TensorDataset(x), 8)
net = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.2), nn.Linear(4, 1))
optimizer = torch.optim.Adam(net.parameters(), 0.01)
def step(engine, batch):
    die(str(engine.iteration))
    optimizer.zero_grad()
    loss = (net(batch[0]) - batch[0].sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()
total = []
@torch.no_grad()
def evaluate(engine, batch):
    total.append(net(batch[0]).sum().item())
evaluator = Engine(evaluate)
def on_epoch(engine):
    net.eval()
    total.clear()
    evaluator.run(val)
    net.train()
    print(engine.epoch, engine.output, sum(total), flush=True)
Engine(step, on_epoch).run(train, 4)
print(net[0].weight.tolist())
""")
LOOPS = {"for": "for self.epoch in range(epochs):", "while": "while self.epoch < epochs:\n            self.epoch += 1"}


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("every", ["1", "3b"])
def test_an_engine_that_has_another_validate_is_one_phase(loop: str, every: str, torch_server: Server, tmp_path: Path) -> None:
    """Both run the same loops. Each validation was a phase of its own, so that `--every 1` never saved."""
    whole, _, last = compared(
        torch_server, tmp_path, ENGINE.format(loop=LOOPS[loop]), every=every, at=("15", "34"), name="engine.py", whole="bare"
    )

    assert f"resuming engine at 3:{'0' if every == '1' else '3'} " in last.err
    assert last.out.splitlines() == whole.out.splitlines()[-len(last.out.splitlines()) :]


REPEATED = DIE("""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
class _RepeatSampler:
    def __init__(self, sampler):
        self.sampler = sampler
    def __iter__(self):
        while True:
            yield from iter(self.sampler)
class InfiniteDataLoader(DataLoader):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        object.__setattr__(self, "batch_sampler", _RepeatSampler(self.batch_sampler))
        self.iterator = super().__iter__()
    def __len__(self):
        return len(self.batch_sampler.sampler)
    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)
torch.manual_seed(0)
loader = InfiniteDataLoader(TensorDataset(torch.randn(22, 3)), 4, shuffle=True, num_workers={workers}, generator={generator})
net = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.2), nn.Linear(4, 1))
optimizer = torch.optim.Adam(net.parameters(), 0.01)
done = 0
for epoch in range(4):
    for (rows,) in loader:
        die(str(done))
        optimizer.zero_grad()
        net(rows).square().mean().backward()
        optimizer.step()
        done += 1
    print(epoch, net[0].weight.tolist(), flush=True)
""")
OWN = "torch.Generator().manual_seed(5)"


@pytest.mark.parametrize("every", ["1", "2b"])
@pytest.mark.parametrize("generator", [OWN, None])
@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterator_that_repeats_its_sampler_is_set_to_its_position(
    workers: int, generator: str | None, every: str, torch_server: Server, tmp_path: Path
) -> None:
    """As ultralytics, timm and others keep their workers. It was refused at each resume where its orders are seeded by
    the generator of the bodies, and a warning advised `--every 1`."""
    text = REPEATED.format(workers=workers, generator=generator)
    whole, _, last = compared(torch_server, tmp_path, text, every=every, at=("9", "15"), name="repeats.py", whole="bare")

    assert "resuming repeats at 2:" in last.err
    assert "warning" not in last.err
    assert last.out.splitlines() == whole.out.splitlines()[-len(last.out.splitlines()) :]


def test_one_that_draws_its_orders_where_bodies_draw_is_refused_beforehand(torch_server: Server, tmp_path: Path) -> None:
    (tmp_path / "repeats.py").write_text(REPEATED.format(workers=0, generator="torch.default_generator"))

    first = torch_server.detrain("run", "--every", "2b", "repeats.py", cwd=tmp_path, DIE_AT="9")

    assert "REFUSED" in first.err
    assert "RandomSampler that is repeated draws each order from a generator that bodies draw from, too" in first.err


LARGE_BATCHES = """
import os, signal, sys, time
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
class Rows(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return np.full(60_000, index, "f4")
model = torch.nn.Linear(60_000, 1)
optimizer = torch.optim.SGD(model.parameters(), 1e-9)
for epoch in range(2):
    for number, rows in enumerate(DataLoader(Rows(), 4, num_workers=2, collate_fn=np.stack)):
        optimizer.zero_grad()
        model(torch.from_numpy(rows)).square().mean().backward()
        optimizer.step()
        if number == 3:
            print(open(f"/proc/self/task/{os.getpid()}/children").read(), flush=True)
            time.sleep(0.5)  # workers are ahead, and more than their pipe holds is waiting
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells a process that its parent has ended")
def test_workers_end_with_a_process_that_is_killed(torch_server: Server, tmp_path: Path) -> None:
    """They stayed for ever, also behind the trials of a campaign: each waits until its last batches are taken."""
    killed = ran(torch_server, tmp_path, LARGE_BATCHES)
    time.sleep(1)
    states = {worker: Path(f"/proc/{worker}/stat") for worker in killed.out.split()}
    left = [worker for worker, stat in states.items() if stat.exists() and stat.read_text().rpartition(") ")[2][0] not in "ZX"]
    for worker in left:
        os.kill(int(worker), signal.SIGKILL)

    assert killed.status == -signal.SIGKILL
    assert (len(states), left) == (2, [])


THROUGH_A_LOST_GRAPH = DIE("""
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
carried = torch.zeros(1)
for epoch in range(3):
    for step in range(4):
        now = model(torch.randn(4, 4)).square().mean()
        optimizer.zero_grad()
        try:
            (now + carried).sum().backward(retain_graph=True)
        except Exception:
            pass
        optimizer.step()
        carried = 0.1 * now
        die(f"{epoch}:{step}")
    carried = carried.detach()
print(float(model.weight.detach().sum()))
""")


def test_a_program_cannot_go_on_behind_a_gradient_through_what_is_not_there(tmp_path: Path, torch_server: Server) -> None:
    """It took the error for one of its own, and trained on without that gradient."""

    _, resumed = after_deaths(torch_server, tmp_path, THROUGH_A_LOST_GRAPH, at="1:3", every="2b")

    assert resumed.status == NotCapturable.exit_code, resumed.err
    assert "a gradient goes through a tensor that was computed before the checkpoint" in resumed.err


MAPPED = DIE("""
import hashlib
import numpy as np
import torch
from torch import nn
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
bank = None
for epoch in range(4):
    for i in range(6):
        x = torch.randn(16, 8)
        out = model(x)
        loss = (out - x.sum(1, keepdim=True)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if bank is None:
            bank = torch.from_file(os.path.join(FOLDER, "bank.bin"), shared=True, size=96, dtype=torch.float32)
            first = bank[:8]
        bank[i * 16 : (i + 1) * 16] = out.detach().squeeze(1)
        die(f"{epoch}:{i}")
print(float(first.sum()), hashlib.sha256(bank.numpy().tobytes()).hexdigest())
print("file", hashlib.sha256(np.fromfile(os.path.join(FOLDER, "bank.bin"), "float32").tobytes()).hexdigest())
""")


@pytest.mark.parametrize(("folder", "is_exact"), [(".", True), ("..", False)])
def test_a_tensor_that_the_loop_maps_to_a_file_comes_back_mapped(
    folder: str, is_exact: bool, tmp_path: Path, torch_server: Server
) -> None:
    """It came back in plain memory: the file did not get what was written. What is killed is a process."""
    program = tmp_path / "program.py"
    program.write_text(f"FOLDER = {folder!r}\n" + MAPPED)
    for name in ("whole", "killed"):
        (tmp_path / name / "in").mkdir(parents=True)
    whole = torch_server.bare(program, cwd=tmp_path / "whole" / "in")
    died = torch_server.detrain("run", "--every", "4b", program, cwd=tmp_path / "killed" / "in", DIE_AT="2:3").died()
    run = torch_server.detrain("run", "--every", "4b", program, cwd=tmp_path / "killed" / "in")

    if is_exact:
        assert run.status == 0, run.err
        assert run.out == whole.out
    else:
        assert "REFUSED from here on" in died.err
        assert run.status == NotCapturable.exit_code, run.err


SEARCH = DIE("""
import hashlib
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
x = torch.randn(48, 6)
loader = DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), 8, shuffle=True)
model = nn.Linear(6, 2)
flat = nn.utils.parameters_to_vector(model.parameters()).detach()
for epoch in range(3):
    for i, (a, b) in enumerate(loader):
        with torch.no_grad():
            noise, scores = torch.randn(4, flat.numel()), []
            for each in noise:
                nn.utils.vector_to_parameters(flat + 0.1 * each, model.parameters())
                scores.append(-nn.functional.cross_entropy(model(a), b))
            flat = flat + 0.05 * (torch.stack(scores) @ noise) / 4
            nn.utils.vector_to_parameters(flat, model.parameters())
        die(f"{epoch}:{i}")
    print(epoch, float(flat.sum()), flush=True)
print(hashlib.sha256(flat.numpy().tobytes()).hexdigest())
""")


@pytest.mark.slow
def test_a_search_that_sets_the_weights_from_a_vector_trains(tmp_path: Path, torch_server: Server) -> None:
    """No update was seen, and no checkpoint taken. What is killed is a process."""
    _, _, run = compared(torch_server, tmp_path, SEARCH, every="2b", at="1:3", whole="bare")

    assert "resuming program at" in run.err


STORE = """\
import functools
import torch


class Store:
    def __init__(self):
        self.params, self.names = {}, {}

    def get(self, name, start):
        if name not in self.params:
            self.params[name] = torch.tensor(start, requires_grad=True)
            self.names[self.params[name]] = name
        return self.params[name]


class bound(functools.partial):
    pass


store = Store()


class Inference:
    def __init__(self, loss):
        self.loss, self.optimizers, self.shape = bound(loss, "mean"), {}, torch.Size([1])
        functools.update_wrapper(self.loss, loss)

    def step(self, rows):
        self.store = store
        loss = self.loss(rows, store)
        loss.backward()
        for name, parameter in store.params.items():
            if parameter not in self.optimizers:
                self.optimizers[parameter] = torch.optim.Adam([parameter], 0.1)
            self.optimizers[parameter].step()
            self.optimizers[parameter].zero_grad()
        return loss.item()
"""
INFERS = DIE("""\
import torch
from storelib import Inference

def surprise(name, rows, store):
    mean = store.get(name, 0.0)
    if rows.sum() > 0:
        mean = mean + store.get("late", 1.0)
    return (rows - mean).square().mean() + torch.rand(1).item() * mean.abs()

torch.manual_seed(0)
x = torch.randn(64)
inference = Inference(surprise)
for epoch in range(4):
    for number, rows in enumerate(x.split(8)):
        loss = inference.step(rows)
        die(f"{epoch}:{number}")
    print(epoch, loss, flush=True)
print(sorted((name, held.item()) for name, held in inference.store.params.items()), inference.loss.__name__)
""")


@pytest.mark.slow
@pytest.mark.parametrize("every", ["1", "3b"])
def test_what_a_library_trains_under_a_name_of_its_own_comes_back(every: str, torch_server: Server, tmp_path: Path) -> None:
    """As Pyro does: no name of the program leads to its store. A resumed run began with parameters of its own."""
    path = library(tmp_path, {"storelib/store.py": STORE, "storelib/__init__.py": "from storelib.store import Inference\n"})
    _, died, _ = compared(torch_server, tmp_path, INFERS, every=every, at="2:5", **path)

    assert "not captured" not in died.err


TRAINER = DIE("""\
import torch
from torch.utils.data import DataLoader, Sampler, TensorDataset

class Endless(Sampler):
    def __init__(self, size, hardness):
        self.size, self.hardness = size, hardness
    def __iter__(self):
        generator = torch.Generator().manual_seed(5)
        while True:
            order = torch.randperm(self.size, generator=generator)
            yield from {order}.tolist()

class Trainer:
    def __init__(self):
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01, momentum=0.9)
        self.hardness = torch.zeros(22)
        rows = torch.arange(22.0)[:, None] + torch.randn(22, 4)
        self.batches = iter(DataLoader(TensorDataset(rows), 4, sampler=Endless(22, self.hardness), num_workers={workers}))
    def run_step(self):
        (rows,) = next(self.batches)
        loss = self.model(rows).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.hardness[int(rows.mean()) % 22] += loss.item()
    def train(self):
        for self.step in range(60):
            self.run_step()
            die(str(self.step))

torch.manual_seed(0)
trainer = Trainer()
trainer.train()
print([p.sum().item() for p in trainer.model.parameters()], trainer.hardness.sum().item())
""")


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("order", "is_exact"), [("order", True), pytest.param("order[self.hardness.argsort()]", False, marks=pytest.mark.fast)]
)
def test_a_trainer_that_draws_in_a_method_from_a_sampler_of_its_own(
    order: str, is_exact: bool, workers: int, torch_server: Server, tmp_path: Path
) -> None:
    """As detectron2's: the sampler never ends. One that draws by what the loop has learnt is refused beforehand."""
    text = (
        TRAINER.replace("{order}", order)
        .replace("{workers}", str(workers))
        .replace("Endless(22, self.hardness)", f"Endless(22, {'None' if is_exact else 'self.hardness'})")
    )
    died, resumed = after_deaths(torch_server, tmp_path, text, at="33", every="7b")
    whole = torch_server.bare("program.py", cwd=tmp_path)

    if is_exact:
        assert "REFUSED" not in died.err
        assert (resumed.status, resumed.last_line()) == (0, whole.last_line())
    else:
        assert "REFUSED from here on: self in Trainer.train().batches" in died.err
        assert resumed.status == NotCapturable.exit_code


PARTS = DIE("""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(16, 3)
loaders = {part: DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), 4, shuffle=True) for part in ("train", "validate")}
model = nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)

def train():
    for epoch in range(3):
        for part in ("train", "validate"):
            right = 0
            for step, (a, b) in enumerate(loaders[part]):
                die(f"{epoch}:{part}:{step}")
                with torch.set_grad_enabled(part == "train"):
                    loss = nn.functional.cross_entropy(model(a), b)
                if part == "train":
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                right += torch.sum(model(a).argmax(1) == b)
            print(epoch, part, right.double().item() / 16, flush=True)

try:
    train()
except HANDLED:
    print("passed over")
print("final", [each.tolist() for each in model.parameters()])
""")


@pytest.mark.fast
def test_code_between_batch_loops_has_what_their_bodies_have_set(torch_server: Server, tmp_path: Path) -> None:
    """As the tutorial of transfer learning. It failed, as a sum was still the number 0; that the epoch had ended was
    then taken for the error, and no second try began.
    """
    text = PARTS.replace("HANDLED", "KeyError")
    _, _, resumed = compared(torch_server, tmp_path, text, every="1b", at="1:validate:2", is_tail=True)

    assert "starting again, with what it reads set beforehand" in resumed.err


def test_an_error_between_batch_loops_that_the_program_catches_refuses_the_resume(torch_server: Server, tmp_path: Path) -> None:
    text = PARTS.replace("HANDLED", "AttributeError")
    _, resumed = after_deaths(torch_server, tmp_path, text, every="1b", at="1:validate:2")

    assert resumed.status == Diverged.exit_code, resumed.err
    assert "final" not in resumed.out


BEFORE_THE_LOOP = DIE("""\
import torch
from torch import nn
torch.manual_seed(0)
x = torch.linspace(0, 1, 9, dtype=torch.float64, requires_grad=True).float()[:, None]  # as in networks informed by physics
scale = torch.nn.Parameter(torch.tensor(0.3))
moved = scale + 1
net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.Adam([*net.parameters(), scale], lr=0.01)
for epoch in range(3):
    for batch in range(4):
        u = net(x)
        slope = torch.autograd.grad(u, x, torch.ones_like(u), create_graph=True)[0]
        loss = (slope - u).pow(2).mean() + (moved - 1).pow(2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        die(f"{epoch}:{batch}")
    print(epoch, loss.item(), flush=True)
u = net(x)
print(torch.autograd.grad(u.sum(), x)[0].tolist(), scale.item())
""")


@pytest.mark.parametrize("at", ["0:2", "1:1", "2:3"])
def test_gradients_go_back_through_what_was_computed_before_the_loop(at: str, torch_server: Server, tmp_path: Path) -> None:
    """A resume ended with an error, and no warning had said so."""
    _whole, _died, resumed = compared(torch_server, tmp_path, BEFORE_THE_LOOP, at=at, every="2b")

    assert "warning" not in resumed.err


CODED = """
import torch
class Coded(torch.Tensor):
    @staticmethod
    def __new__(cls, codes, scale):
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=scale.dtype)
    def __init__(self, codes, scale):
        self.codes, self.scale = codes, scale
    def __tensor_flatten__(self):
        return ["codes", "scale"], None
    @classmethod
    def __tensor_unflatten__(cls, held, _context, _size=None, _stride=None):
        return cls(held["codes"], held["scale"])
    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.detach.default:
            return cls(args[0].codes, args[0].scale)
        raise NotImplementedError(function)
    def plain(self):
        return self.codes * self.scale
class Momentum(torch.optim.Optimizer):
    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for each in group["params"]:
                held = self.state[each]
                moved = each.grad + 0.9 * held["moment"].plain() if held else each.grad
                scale = moved.abs().max() / 127
                held["moment"] = Coded((moved / scale).round().to(torch.int8), scale)
                each -= group["lr"] * held["moment"].plain()
"""
WITH_CODED_STATE = """
import torch
from coded import Momentum
torch.manual_seed(0)
model = torch.nn.Linear(4, 3)
optimizer = Momentum(model.parameters(), 0.05)
for epoch in range(3):
    for step in range(4):
        optimizer.zero_grad()
        (model(torch.randn(8, 4)) - 1).square().mean().backward()
        optimizer.step()
        die(f"{epoch}:{step}")
    print(epoch, float(model.weight.detach().sum()), flush=True)
"""


def test_wrappers_of_tensors_that_a_librarys_optimizer_makes_in_the_loop_come_back(tmp_path: Path, torch_server: Server) -> None:
    """Each resume was refused, and no warning had said so: only classes of the program were found again."""
    path = library(tmp_path, {"coded.py": CODED})

    _whole, _died, last = compared(torch_server, tmp_path, DIE(WITH_CODED_STATE), at=["0:2", "2:1"], every="1b", **path)

    assert "resuming program at 2:1" in last.err
