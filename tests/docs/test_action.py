"""The script of the GitHub Action, run as GitHub runs it: a shell with `python` and the inputs in its environment."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.e2e.runs import environment

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import sys
import torch
from torch import nn
torch.set_num_threads(1)
model, rows = nn.Linear(4, 2), torch.randn(12, 4)
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(int(sys.argv[1])):
    for batch in range(3):
        optimizer.zero_grad()
        model(rows[batch * 4:][:4]).square().sum().backward()
        optimizer.step()
    print(epoch, model.weight.sum().item())
"""


def _script() -> str:
    text = (ROOT / "action.yml").read_text()
    return textwrap.dedent(text[text.rindex("run: |\n") + len("run: |\n") :])


def _run(folder: Path, program: str) -> tuple[int, str]:
    python = folder / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    output = folder / "output"
    inputs = {
        "PROGRAM": program,
        "KILLS": "1",
        "EVERY": "1",
        "GITHUB_OUTPUT": str(output),
        "PATH": f"{python.parent}:/usr/bin:/bin",
    }
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", _script()], cwd=folder, env=environment(**inputs), capture_output=True, check=False
    )
    return done.returncode, output.read_text()


@pytest.mark.slow
def test_the_action_says_the_verdict_and_keeps_what_was_compared(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(PROGRAM)

    status, output = _run(tmp_path, "train.py 3")

    assert (status, output.startswith("verdict=EXACT: 1 kill")) == (0, True), output
    assert json.loads((tmp_path / "detrain-verify.json").read_text())["exact"] is True


def test_the_action_fails_where_the_program_cannot_be_verified(tmp_path: Path) -> None:
    status, output = _run(tmp_path, "gone.py")

    assert (status, output) == (66, "verdict=no verdict\n")
