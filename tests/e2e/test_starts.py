"""How a run starts: what its parts take, and large checkpoints, which are checked as they are read."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final

import h5py
import pytest

from detrain.base.errors import CheckpointDamaged
from detrain.store import Catalogue
from detrain.store.chronicle import Timed
from tests.e2e.programs import DIE
from tests.e2e.runs import Result, compared, detrain, ran

PROGRAM: Final = DIE("""\
import hashlib
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(8, 16)
wide = nn.Linear(16, 300_000)
model = nn.Sequential(wide, nn.Linear(300_000, 1)) if os.environ.get("SIZE") == "large" else nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
for epoch in range(4):
    for batch in range(2):
        optimizer.zero_grad()
        model(x + torch.randn(8, 16)).pow(2).mean().backward()
        optimizer.step()
        while os.environ.get("DIE_AT") == f"{epoch}:{batch}" and sum(each.endswith(".h5") for each in os.listdir("ckpt")) < epoch:
            pass  # a thread writes the newest checkpoint
        die(f"{epoch}:{batch}")
print(hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in model.parameters())).hexdigest())
""")


@pytest.fixture(name="home")
def _home(tmp_path: Path) -> Path:
    """A folder with a program that has a large state, and was killed behind its third epoch's start."""
    ran(detrain, tmp_path, PROGRAM, DIE_AT="2:1", SIZE="large").died()
    return tmp_path


def _checkpoints(home: Path) -> list[Path]:
    return sorted((home / "ckpt").glob("*.h5"))


def _flip_in_a_tensor(path: Path) -> None:
    """Flip a bit of the largest array, at its end."""
    with h5py.File(path) as file:
        sets = [each for each in file["python/arrays"].values() if isinstance(each, h5py.Dataset)]
        largest = max(sets, key=lambda each: each.nbytes)
        offset = largest.id.get_offset() + largest.nbytes - 9
    with path.open("r+b") as raw:
        raw.seek(offset)
        byte = raw.read(1)[0]
        raw.seek(offset)
        raw.write(bytes([byte ^ 16]))


def _whole(home: Path) -> Result:
    return detrain("run", "--ckpt", "whole", "program.py", cwd=home, SIZE="large")


@pytest.mark.slow
def test_a_damage_that_shows_as_the_state_is_set_leads_back_to_an_older_checkpoint(home: Path) -> None:
    newest = _checkpoints(home)[-1]
    _flip_in_a_tensor(newest)
    run = detrain("run", "program.py", cwd=home, SIZE="large").ok()

    assert "resuming program at 2:0" in run.err  # not read yet
    assert "starting again, from what is whole" in run.err
    assert "resuming program at 1:0" in run.err.partition("starting again")[2]
    assert newest.with_name(f"{newest.name}.bad").is_file()
    assert run.last_line() == _whole(home).last_line()


@pytest.mark.slow
def test_where_none_is_whole_the_run_is_refused_although_it_has_begun(home: Path) -> None:
    for path in _checkpoints(home):
        _flip_in_a_tensor(path)
    before = [path.read_bytes() for path in _checkpoints(home)]
    run = detrain("run", "program.py", cwd=home, SIZE="large")

    assert run.status == CheckpointDamaged.exit_code, run.err
    assert "--fresh" in run.err
    assert run.out == ""
    assert [path.read_bytes() for path in _checkpoints(home)] == before


@pytest.mark.parametrize("size", ["small", pytest.param("large", marks=pytest.mark.slow)])
def test_the_parts_of_a_start_are_shown_and_kept_and_are_the_whole(size: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    detrain("run", "program.py", cwd=tmp_path, DIE_AT="2:1", SIZE=size)
    run = detrain("run", "--timing", "program.py", cwd=tmp_path, SIZE=size).ok()

    lines = run.err.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("until the first new step"))
    last = next(number for number, line in enumerate(lines) if line.startswith("all "))
    rows = {line.rsplit(maxsplit=2)[0]: float(line.split()[-2]) for line in lines[first + 1 : last + 1]}
    assert {"imports of frameworks", "state read and set", "first new step", "structure of the program"} < rows.keys()
    assert math.isclose(sum(rows.values()) - rows["all"], rows["all"], abs_tol=0.02)
    told = [each for each in Catalogue(tmp_path / "ckpt").chronicle("program", 1).events() if isinstance(each, Timed)]
    assert len(told) == 1
    assert {name: round(wall, 3) for name, (wall, _processor) in told[0].parts_s.items()} == {
        name: seconds for name, seconds in rows.items() if name != "all"
    }


LARGE_SHAPES: Final = DIE("""\
import hashlib
import numpy as np
import torch

torch.manual_seed(0)
whole = torch.randn(3_000_000)
part, turned = whole[500_000:1_500_000], torch.randn(1500, 1000).t()
tied = [torch.nn.Parameter(torch.randn(600_000))] * 2
half = torch.randn(2_000_000).bfloat16()
array = np.zeros(1_000_000)
optimizer = torch.optim.Adam(tied[:1])
made = []
for epoch in range(4):
    for batch in range(3):
        optimizer.zero_grad()
        (tied[0] * tied[1] * torch.rand(600_000)).sum().backward()
        optimizer.step()
        part += torch.randn(1_000_000)
        turned.mul_(1.01).add_(torch.rand(1000, 1500))
        half += torch.ones(()).bfloat16() * batch
        array[batch::3] += np.random.rand(len(array[batch::3]))
        if epoch < 2:
            made.append(torch.randn(400_000)[: 300_000 + batch])
        die(f"{epoch}:{batch}")
held = [whole, part, turned.contiguous(), tied[0].detach(), half.float(), *made, *(s["exp_avg"] for s in optimizer.state.values())]
bits = [each.contiguous().numpy().tobytes() for each in held] + [array.tobytes(), repr([tied[0] is tied[1]]).encode()]
assert part.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
print(hashlib.sha256(b"".join(bits)).hexdigest())
""")


@pytest.mark.slow
@pytest.mark.parametrize(("every", "at"), [("1", "2:1"), ("2b", "1:2"), ("2b", "3:0")])
def test_large_tensors_of_all_kinds_come_back_to_where_they_belong(every: str, at: str, tmp_path: Path) -> None:
    _, _, run = compared(detrain, tmp_path, LARGE_SHAPES, at=at, every=every)

    assert "resuming program" in run.err
