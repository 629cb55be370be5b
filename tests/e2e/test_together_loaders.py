"""Trials in one process over loaders that run Python of the program: each is what it is in a process of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.runs import detrain

pytest.importorskip("torch")

PROGRAM = """
import numpy as np, torch
from tqdm import tqdm
rng = np.random.default_rng(0)
torch.manual_seed(0)
x, y = rng.normal(size=(40, 8)).astype(np.float32), rng.normal(size=(40, 1)).astype(np.float32)
model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), 1e-2)
hard = np.ones(40)

def shuffled():
    order = rng.permutation(40)
    for start in range(0, 40, 8):
        yield order[start : start + 8]

def one_by_one():
    yield from np.random.permutation(40)

def nested():
    found = []
    for each in one_by_one():
        found.append(each)
        if len(found) == 8:
            yield np.array(found)
            found = []

def drawn():
    for _ in range(5):
        yield rng.choice(40, 8)

def hardest():
    for _ in range(5):
        yield np.argsort(-hard, kind="stable")[:8]

def of_weights():
    for start in range(0, 40, 8):
        yield (np.arange(8) + start + int(abs(float(model[2].weight[0, 0])) * 1e4)) % 40

for epoch in range(2):
    total = 0.0
    for rows in LOADER:
        optimizer.zero_grad()
        loss = ((model(torch.as_tensor(x[rows])) - torch.as_tensor(y[rows])) ** 2).mean()
        loss.backward()
        optimizer.step()
        total += loss.item()
        hard[rows] = loss.item()
    print(epoch, total)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loader", "why_alone"),
    [
        pytest.param("shuffled()", "", id="generator"),
        pytest.param("rng.permutation(40).reshape(-1, 8)", "", id="array", marks=pytest.mark.slow),
        pytest.param("tqdm(nested())", "", id="generators below a bar", marks=pytest.mark.slow),
        pytest.param("drawn()", "the loader runs Python", id="draws each batch", marks=pytest.mark.slow),
        pytest.param("hardest()", "a step has changed something that the loader reads", id="reads losses", marks=pytest.mark.slow),
        pytest.param("of_weights()", "the loader runs Python", id="reads weights", marks=pytest.mark.slow),
    ],
)
def test_trials_share_batches_unless_a_fault_could_change_them(loader: str, why_alone: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM.replace("LOADER", loader))
    drawn = ("--seed", "3", "--after", "2", "-n", "4", "program.py")
    detrain("random", "--out", "alone", "--engine", "process", *drawn, cwd=tmp_path).ok()
    said = detrain("random", "--out", "together", *drawn, cwd=tmp_path).ok().err

    alone, together = (
        {path.name: json.loads(path.read_text()) for path in (tmp_path / name).iterdir()} for name in ("alone", "together")
    )
    assert len(alone) == 4
    assert together == alone
    assert ("in a process of its own" in said) is bool(why_alone)
    assert why_alone in said
