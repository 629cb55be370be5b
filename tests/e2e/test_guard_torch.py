"""Faults that a PyTorch program puts into its training itself, once: with the guard the run ends with the bits of the
bare run without them. A process is what goes back, so each test takes some.

`$FAULTS` says at which batches (`8:gradient,15:weight`, over all its loops); a file tells that one has been done.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from detrain.base.errors import FaultPersists
from tests.e2e.forkserver import Server
from tests.e2e.ordinary_torch import name_of, tables, text
from tests.e2e.programs import STRIKE
from tests.e2e.runs import actions, ran

PROGRAM = STRIKE("""\
import hashlib, random
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

device, size, layout = torch.device("cpu"), torch.Size([5]), torch.strided

class Data(Dataset):
    def __len__(self):
        return 60
    def __getitem__(self, i):
        x = torch.full((5,), float(i)) / 60 + 0.1 * torch.randn(5) + random.random() + np.random.rand()
        return x.float(), torch.tensor([i % 3.0])

def slots(optimizer):
    return [v for s in optimizer.state.values() for v in s.values() if isinstance(v, torch.Tensor) and v.dim()]

def train(name, make, workers):
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 1))
    optimizer = make(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.9)
    loader = DataLoader(Data(), 5, shuffle=True, num_workers=workers)
    seen, losses, other = {"best": 1e9}, [], iter(DataLoader(Data(), 2, shuffle=True))
    for epoch in range(2):
        for i, (a, b) in enumerate(tqdm(loader, disable=True) if workers else loader):
            kind = strike()
            optimizer.zero_grad()
            assert a.shape[1:] == size and a.layout is layout
            a = a.to(device)
            loss = ((model(a) - b) ** 2).mean() + 0.01 * next(other)[0].mean()
            loss.backward()
            if kind in ("gradient", "nan"):
                model[0].weight.grad += 3e15 if kind == "gradient" else float("nan")
            optimizer.step()
            schedule.step()
            for slot in slots(optimizer) if kind == "slot" else ():
                slot += 1e20
            if kind == "weight":
                with torch.no_grad():
                    model[0].weight += 1e15
            losses.append(loss.item() * random.random())
            if losses[-1] < seen["best"]:
                seen["best"], seen["at"] = losses[-1], (epoch, i)
            if i >= 8:
                try:
                    late += 1
                except NameError:
                    late = 1
        print(name, epoch, late, sum(losses).hex(), len(losses), seen, schedule.get_last_lr(), np.random.rand().hex())
    state = [*model.state_dict().values(), *slots(optimizer)]
    print("weights", hashlib.sha256(b"".join(v.detach().numpy().tobytes() for v in state)).hexdigest())

train("adam", lambda p: torch.optim.Adam(p, 1e-2), 0)
train("momentum", lambda p: torch.optim.SGD(p, 1e-2, momentum=0.9), 2)
""")
"""Two phases of 24 batches: 12 an epoch. The body draws from a loader of its own; the second
loop goes over a bar of tqdm. A name is first bound in a step that is undone."""
EVERYWHERE = "2:gradient,9:gradient,12:nan,17:slot,23:weight,26:gradient,33:slot,36:gradient,41:weight,47:nan"
"""In the first steps, near the window's end, at the first step of an epoch, inside of it, and at its last step."""
STRIKES = """
from torch.optim.optimizer import register_optimizer_step_post_hook
STRIKES = dict(each.split(":") for each in os.environ.get("STRIKES", "").split(",") if each)
def strike(optimizer, *_):
    kind = STRIKES.get(str(turns))
    if kind and not os.path.exists(f"struck-{turns}"):
        os.close(os.open(f"struck-{turns}", os.O_CREAT))
        weight = optimizer.param_groups[0]["params"][0]
        slots = [each for each in optimizer.state.get(weight, {}).values() if isinstance(each, torch.Tensor) and each.dim()]
        if kind == "slot" and slots:
            for slot in slots:
                slot.add_(1e20)
        else:
            weight.data.add_(float("nan") if kind == "nan" else 1e15)
register_optimizer_step_post_hook(strike)
"""
SAMPLE = 6


def test_faults_everywhere_are_undone_in_memory(torch_server: Server, tmp_path: Path) -> None:
    done = ran(torch_server, tmp_path, PROGRAM, "--guard", "recover", FAULTS=EVERYWHERE)
    bare = torch_server.bare("program.py", cwd=tmp_path)

    assert (done.status, done.out) == (0, bare.out), done.err
    assert actions(tmp_path / "ckpt") == ["went back", "recovered"] * 10


def test_an_alarm_that_comes_again_ends_the_run(torch_server: Server, tmp_path: Path) -> None:
    # `turn` goes back with the rest, so that the fault is done again.
    done = ran(torch_server, tmp_path, PROGRAM, "--guard", "recover", FAULTS="5:weight", again="1")

    assert done.status == FaultPersists.exit_code, done.err
    assert actions(tmp_path / "ckpt") == ["went back", "stopped"]


def test_files_that_steps_before_the_moment_have_written_stay(torch_server: Server, tmp_path: Path) -> None:
    source = PROGRAM.replace(
        "            kind = strike()\n",
        "            torch.save(i, f'{name}-{epoch}.pt') if i == 3 else None\n            kind = strike()\n",
    )

    done = ran(torch_server, tmp_path, source, "--guard", "recover", FAULTS="7:weight")

    assert actions(tmp_path / "ckpt") == ["went back", "recovered"], done.err
    assert {file.name for file in tmp_path.glob("*.pt")} == {"adam-0.pt", "adam-1.pt", "momentum-0.pt", "momentum-1.pt"}


ONCE = {
    "files removed": "torch.save(i, f'{name}-{epoch}-{i}.pt'); os.remove(f'{name}-{epoch}-{i - 2}.pt') if i >= 2 else None",
    "folders made": "os.mkdir(f'{name}-{epoch}-{i}')",
    "files that must be new": "open(f'{name}-{epoch}-{i}', 'x').close()",
    "rows inserted": "base.execute('insert into t values (?)', (i,)); base.commit()",
}
"""Statements that fail, or do more, the second time."""


@pytest.mark.parametrize("kind", ONCE)
def test_what_steps_do_to_files_once_goes_back_to_a_checkpoint(kind: str, torch_server: Server, tmp_path: Path) -> None:
    source = PROGRAM.replace("            kind = strike()\n", f"            {ONCE[kind]}\n            kind = strike()\n")
    source = source[: source.index('train("momentum"')]
    if "base" in source:
        base = "import sqlite3\nbase = sqlite3.connect('a.db')\nbase.execute('create table t (i)')\nbase.commit()\n"
        source = base + source + "print(base.execute('select count(*), sum(i) from t').fetchall())\n"

    done = ran(torch_server, tmp_path, source, "--guard", "recover", FAULTS="7:weight")
    (tmp_path / "bare").mkdir()
    bare = torch_server.bare(tmp_path / "program.py", cwd=tmp_path / "bare")

    assert done.status == 0, done.err
    assert done.out.splitlines()[-len(bare.out.splitlines()) :] == bare.out.splitlines()
    assert actions(tmp_path / "ckpt") == ["restarted", "recovered"], done.err
    left = [{path.name for path in folder.glob("*-*-*")} for folder in (tmp_path, tmp_path / "bare")]
    assert left[0] == left[1]


def test_files_that_steps_make_and_remove_or_rename_go_back_in_memory(torch_server: Server, tmp_path: Path) -> None:
    once = "os.mkdir('new'); torch.save(i, 'new/x.pt'); shutil.rmtree('last', ignore_errors=True); os.rename('new', 'last')"
    source = PROGRAM.replace("            kind = strike()\n", f"            {once}\n            kind = strike()\n")

    done = ran(torch_server, tmp_path, f"import shutil\n{source}", "--guard", "recover", FAULTS="7:weight")

    assert done.status == 0, done.err
    assert actions(tmp_path / "ckpt") == ["went back", "recovered"], done.err


@pytest.mark.slow
def test_detect_changes_nothing(torch_server: Server, tmp_path: Path) -> None:
    done = ran(torch_server, tmp_path, PROGRAM, "--guard", "detect", "--guard-gradients")
    bare = torch_server.bare("program.py", cwd=tmp_path)

    assert (done.status, done.out) == (0, bare.out), done.err
    assert "alarm" not in done.err


@pytest.mark.slow
@pytest.mark.parametrize("row", [pytest.param(row, id=name_of(row)) for row in tables()[0][::SAMPLE]])
def test_an_ordinary_program_that_is_struck_ends_as_one_that_never_was(
    row: dict[str, object], torch_server: Server, tmp_path: Path
) -> None:
    source = text(row)
    place = source.index("def die")
    program = tmp_path / "program.py"
    program.write_text(f"{source[:place]}{STRIKES}\n{source[place:]}")
    for name in ("whole", "struck"):
        (tmp_path / name).mkdir()
    whole = torch_server.bare(program, cwd=tmp_path / "whole")
    strikes = "3:weight,7:slot,10:nan,13:weight,16:slot"
    done = torch_server.detrain("run", "--guard", "recover", program, cwd=tmp_path / "struck", STRIKES=strikes)

    assert (done.status, done.last_line()) == (0, whole.last_line()), done.err
    assert list((tmp_path / "struck").glob("struck-*"))
    assert "alarm at" in done.err
