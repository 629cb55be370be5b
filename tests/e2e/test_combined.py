"""Programs put together at random: each is killed at two random cuts, run again, and compared with the whole run."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.e2e import combined, combined_fit
from tests.e2e.forkserver import Server
from tests.e2e.runs import goes_through

pytestmark = pytest.mark.slow
SEEDS = range(100)


@pytest.mark.parametrize("seed", SEEDS)
def test_killed_at_random_cuts_it_ends_as_if_never_killed(seed: int, server: Server, tmp_path: Path) -> None:
    rng = random.Random(seed)
    everies = [rng.choice(["1", "1b", "2b", "3b"]) for _ in range(2)]
    places = [f"{rng.randrange(int(every == '1'), combined.EPOCHS)}:{rng.randrange(4)}" for every in everies]
    _compare(combined.program(seed), everies, places, server, tmp_path)


@pytest.mark.parametrize("seed", SEEDS)
def test_fit_killed_at_random_cuts_ends_as_if_never_killed(seed: int, server: Server, tmp_path: Path) -> None:
    rng = random.Random(seed)
    everies, places = [rng.choice(["1", "1b", "2b", "3b"]) for _ in range(2)], [combined_fit.place(rng, seed) for _ in range(2)]
    _compare(combined_fit.program(seed), everies, places, server, tmp_path)


def _compare(source: str, everies: list[str], places: list[str], server: Server, home: Path) -> None:
    whole = server.detrain("run", "program.py", cwd=_folder(home / "whole", source)).ok()
    assert "not captured" not in whole.err

    for every, place in zip(everies, places, strict=True):
        folder = _folder(home / f"killed at {place}, {every}", source)
        killed = server.detrain("run", "--every", every, "program.py", cwd=folder, DIE_AT=place)
        again = server.detrain("run", "--every", every, "program.py", cwd=folder)

        assert killed.status in (-9, 0), killed.err  # an epoch may have fewer batches
        assert again.status == 0, again.err
        if killed.status:  # else the second run has appended to the logs of the first
            assert goes_through(again.out.splitlines(), whole.out.splitlines(), trainings=2), (every, place)
            assert _written(folder) == _written(home / "whole"), (every, place)


def _folder(path: Path, source: str) -> Path:
    path.mkdir(exist_ok=True)
    (path / "program.py").write_text(source)
    return path


def _written(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("log.*")}
