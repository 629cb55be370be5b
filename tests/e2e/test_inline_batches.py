"""Batches that are indexed where they are used: the forward pass is the step's, so that faults can be put into it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.runs import detrain

pytest.importorskip("torch")

PROGRAM = """
import torch
from torch import nn
torch.manual_seed(0)
classify = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
first, rest = classify[0], classify[1:]
optimizer, loss_of = torch.optim.SGD(classify.parameters(), 0.1), nn.CrossEntropyLoss()
x, y = torch.randn(24, 4), torch.randint(0, 2, (24,))
for epoch in range(2):
    for i in range(0, 24, 8):
        BODY
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
BODIES = {
    "of its own": "a, b = x[i : i + 8], y[i : i + 8]\n        loss = loss_of(classify(a), b)",
    "in the loss": "loss = loss_of(classify(x[i : i + 8]), y[i : i + 8])",
    "with a term": "loss = loss_of(classify(x[i : i + 8]), y[i : i + 8]) + 0.01 * classify[0].weight.square().sum()",
}


def sites_of(folder: Path, body: str) -> list[str]:
    (folder / "program.py").write_text(PROGRAM.replace("BODY", body))
    done = detrain("sites", "--json", "program.py", cwd=folder).ok()
    return [site["name"] for site in json.loads(done.out) if site["op"] in ("addmm", "mm", "linear")]


@pytest.mark.slow
@pytest.mark.parametrize("body", ["in the loss", "with a term"])
def test_the_forward_pass_has_the_sites_that_it_has_with_a_batch_of_its_own(tmp_path: Path, body: str) -> None:
    own, inline = (sites_of(tmp_path, BODIES[each]) for each in ("of its own", body))

    assert own == inline
    assert any(name.startswith("forward/") for name in own)


def test_a_forward_pass_that_is_taken_for_a_load_is_refused_with_what_to_do(tmp_path: Path) -> None:
    out = "out = rest(first(x[i : i + 8]))\n        loss = loss_of(out, y[i : i + 8])"
    (tmp_path / "program.py").write_text(PROGRAM.replace("BODY", out))

    done = detrain("sites", "program.py", cwd=tmp_path)

    assert (done.status, done.out) == (82, ""), done.err
    assert "loads a batch and runs the model on it" in done.err
    assert "load the batch in a statement of its own" in done.err
