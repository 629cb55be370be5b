"""`detrain trace` finds in each program of the corpus what a person would write down."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from detrain import errors
from tests.programs_marks import PROGRAMS, command, marks, phases, programs

TRAINING = [path for path in programs() if marks(path)]
SET = ("evolution.py",)
"""Programs without an optimizer: any setting of weights in the batch loop may be named as the update."""


def trace(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "detrain", "trace", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(PROGRAMS)},
    )


def found(tmp_path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((tmp_path / "ckpt" / "inst.info").read_text())
    return content


def place(base: str, loop: dict[str, Any] | None, root: Path) -> tuple[str, int] | None:
    return None if loop is None else (os.path.relpath(os.path.join(base, loop["file"]), root), loop["line"])


@pytest.mark.parametrize("path", TRAINING, ids=lambda path: path.name)
def test_the_loops_the_load_and_the_update_are_found(path: Path, tmp_path: Path) -> None:
    run = trace(tmp_path, "--epochs", "1000", *command(path))

    assert run.returncode == 0, run.stderr
    info, root = found(tmp_path), path if path.is_dir() else path.parent
    nests = [(place(info["base"], n["epoch_loop"], root), place(info["base"], n["batch_loop"], root), n) for n in info["nests"]]
    expected = {((p.epoch.file, p.epoch.line) if p.epoch else None, (p.batch.file, p.batch.line)) for p in phases(path)}
    assert {(epoch, batch) for epoch, batch, _nest in nests} == expected
    lines = {role: {(m.file, m.line) for m in marks(path) if m.role == role} for role in ("load", "update")}
    files = {batch[0] for _epoch, batch, _nest in nests if batch}
    assert {(f, n["load_line"]) for _e, (f, _l), n in nests if n["load_line"]} <= lines["load"]  # type: ignore[misc]
    assert bool(lines["load"]) == any(n["load_line"] for *_loops, n in nests)
    assert path.name in SET or {(f, n["update_line"]) for _e, (f, _l), n in nests if n["update_line"]} <= lines["update"]  # type: ignore[misc]
    assert files


@pytest.mark.parametrize(("name", "status", "said"), [
    ("inference_only.py", errors.NoStructure.exit_code, "ended without an update of weights"),
    ("fit_only.py", 0, "trains through fit (fit_only.py:"),
    ("fit_folds.py", 0, "trains through fit (fit_folds.py:"),
])  # fmt: skip
def test_programs_without_a_loop_of_their_own_are_answered(name: str, status: int, said: str, tmp_path: Path) -> None:
    run = trace(tmp_path, str(PROGRAMS / name))

    assert run.returncode == status
    assert said in run.stderr
