"""The programs of `tests/programs/torch`: killed at random cuts, run again, and compared bit for bit with the whole run
and with the bare program, which knows nothing of detrain.

A process is what is killed, so each case takes some.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from detrain.store import opened
from detrain.store.journal import read_batches
from detrain.verify.state_diff import compare
from tests.e2e.forkserver import Server
from tests.e2e.runs import Result
from tests.programs_marks import TORCH

KILLS = 2
FAST = {"body_draws", "compiled", "dqn", "functional", "gan", "gpt", "lbfgs_sequence", "manual_sgd", "phases", "reinforce"} | {
    *("rnn_state", "trainer_class"),
}
"""The programs that the fast lane kills, at one choice of cuts."""


def run(server: Server, program: Path, folder: Path, every: str, kills: list[int]) -> Result:
    folder.mkdir()
    last = None
    for kill in [*kills, None]:
        trial = json.dumps({"states": f"{folder}.states", "kill_at": kill})
        last = server.detrain("run", "--every", every, "--ckpt", f"{folder}.home", program, cwd=folder, DETRAIN_TRIAL=trial)
        assert last.status == (0 if kill is None else -9), last.err
    assert last is not None
    return last


@pytest.mark.parametrize(
    ("program", "seed"),
    [
        pytest.param(path, seed, id=f"{path.stem}-{seed}", marks=() if (path.stem in FAST and not seed) else pytest.mark.slow)
        for path in sorted(TORCH.glob("*.py"))
        for seed in range(2)
    ],
)
def test_killed_at_random_cuts_it_ends_as_if_never_killed(program: Path, seed: int, torch_server: Server, tmp_path: Path) -> None:
    every = ("1", "2b", "3b")[(len(program.stem) + seed) % 3]
    whole = run(torch_server, program, tmp_path / "whole", every, [])
    [journal] = Path(tmp_path / "whole.home").glob("*.journal")
    batches = len(read_batches(journal))
    places = sorted(random.Random(f"{program.name} {seed}").sample(range(2, batches), KILLS))
    killed = run(torch_server, program, tmp_path / "killed", every, places)

    lines, expected = killed.out.splitlines(), whole.out.splitlines()
    before = next((number for number, pair in enumerate(zip(lines, expected, strict=False)) if pair[0] != pair[1]), len(lines))
    tail = lines[before:]  # behind what the program prints before its loop, again in each process
    assert tail == expected[len(expected) - len(tail) :], places
    assert lines[-1] == expected[-1], places
    last = [
        max(Path(f"{tmp_path / name}.home").glob("*.h5"), key=lambda path: path.stat().st_mtime) for name in ("whole", "killed")
    ]
    assert last[0].name == last[1].name
    with opened(last[0]) as one, opened(last[1]) as other:
        assert [str(each) for each in compare(one, other)] == [], places
    if "no loop over epochs" not in whole.err or every != "1":  # then there is a checkpoint each ten minutes
        assert "resuming" in killed.err
    assert "not captured" not in killed.err + whole.err
    (tmp_path / "bare").mkdir()
    assert torch_server.bare(program, cwd=tmp_path / "bare").out == whole.out
