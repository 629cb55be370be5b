"""A program killed at random cuts, run again, and compared bit for bit with the whole run and with the bare program."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

from detrain.store import opened
from detrain.store.journal import read_batches
from detrain.verify.state_diff import compare
from tests.e2e.forkserver import Server
from tests.e2e.runs import Result

KILLS = 2


def run(
    server: Server, command: Sequence[object], folder: Path, every: str, kills: list[int], outside: object = None, **changes: str
) -> Result:
    """Run a program through kills, each after a number of batches done, to its end; return the last process's output.

    `outside`: the clock's and random values that another run has read, which this one gets, too.
    """
    folder.mkdir(exist_ok=True)
    options = ("--every", every, "--ckpt", f"{folder}.home", *command)
    for kill in [*kills, None]:
        trial = json.dumps({"states": f"{folder}.states", "kill_at": kill, "outside": outside or {}})
        last = server.detrain("run", *options, cwd=folder, DETRAIN_TRIAL=trial, **changes)
        assert last.status == (0 if kill is None else -9), last.err
    return last


def assert_ends_as_if_never_killed(server: Server, program: Path, folder: Path, every: str, seed: str) -> tuple[Result, Result]:
    """Compare output and states; return the results of the whole run and of the killed one."""
    whole = run(server, [program], folder / "whole", every, [])
    [journal] = Path(folder / "whole.home").glob("*.journal")
    batches = len(read_batches(journal))
    places = sorted(random.Random(seed).sample(range(2, batches), KILLS))
    killed = run(server, [program], folder / "killed", every, places)

    lines, expected = killed.out.splitlines(), whole.out.splitlines()
    before = next((number for number, pair in enumerate(zip(lines, expected, strict=False)) if pair[0] != pair[1]), len(lines))
    tail = lines[before:]  # after the lines that the program prints before its loop, again in each process
    assert tail == expected[len(expected) - len(tail) :], places
    assert lines[-1] == expected[-1], places
    homes = [Path(f"{folder / name}.home") for name in ("whole", "killed")]
    last = [max(home.glob("*.h5"), key=lambda path: path.stat().st_mtime, default=home) for home in homes]
    if last == homes:  # the loop has no epochs, and checkpoints are taken by epochs
        assert "no loop over epochs" in whole.err
    else:
        assert last[0].name == last[1].name
        with opened(last[0]) as one, opened(last[1]) as other:
            assert [str(each) for each in compare(one, other)] == [], places
    assert "not captured" not in killed.err + whole.err
    (folder / "bare").mkdir()
    assert server.bare(program, cwd=folder / "bare").out == whole.out
    return whole, killed
