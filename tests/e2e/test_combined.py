"""Programs put together at random: each is killed at two random cuts, run again, and compared with the whole run."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.e2e.combined import EPOCHS, program
from tests.e2e.forkserver import Server


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=[pytest.mark.slow] * (seed > 0)) for seed in range(200)])
def test_killed_at_random_cuts_it_ends_as_if_never_killed(seed: int, server: Server, tmp_path: Path) -> None:
    rng, source = random.Random(seed), program(seed)
    whole = server.detrain("run", "program.py", cwd=_folder(tmp_path / "whole", source))
    assert whole.status == 0, whole.err
    assert "not captured" not in whole.err

    for turn in range(2):
        folder, every = _folder(tmp_path / f"killed {turn}", source), rng.choice(["1", "1b", "2b", "3b"])
        place = f"{rng.randrange(int(every == '1'), EPOCHS)}:{rng.randrange(4)}"
        killed = server.detrain("run", "--every", every, "program.py", cwd=folder, DIE_AT=place)
        again = server.detrain("run", "--every", every, "program.py", cwd=folder)

        assert killed.status in (-9, 0), killed.err  # an epoch may have fewer batches
        assert again.status == 0, again.err
        if killed.status:
            assert whole.out.endswith(again.out), (every, place)
        assert _written(folder) == _written(tmp_path / "whole"), (every, place)


def _folder(path: Path, source: str) -> Path:
    path.mkdir()
    (path / "program.py").write_text(source)
    return path


def _written(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("log.*")}
