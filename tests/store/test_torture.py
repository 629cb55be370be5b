"""Processes are killed at random moments of saves; every checkpoint that was acknowledged is found again, with its
bits.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("kills", [60, pytest.param(600, marks=pytest.mark.slow)])
def test_every_checkpoint_that_was_saved_survives_kills(kills: int) -> None:
    command = [sys.executable, "-m", "tests.store.torture", str(kills), "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    counts = ast.literal_eval(done.stdout)
    assert counts["kills"] == kills
    assert counts["in a save"] > kills // 2
    assert counts["temporary file left"] > kills // 20
