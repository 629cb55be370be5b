"""The programs of `tests/programs/torch`: killed at random cuts, run again, and compared bit for bit with the whole run
and with the bare program, which knows nothing of detrain.

A process is what is killed, so each case takes some.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.forkserver import Server
from tests.e2e.random_kills import assert_ends_as_if_never_killed
from tests.programs_marks import TORCH

FAST = ("body_draws", "gan", "gpt", "reused_name", "trainer_class")
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
        assert "resuming" in killed.err
