"""Jobs end: in PyTorch itself, a process may stand still for ever behind its last line.
(See detrain/adapters/torch/distributed/ends.py.)
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.forkserver import Server
from tests.e2e.runs import ROOT

PROGRAM = ROOT / "tests" / "programs" / "ranks" / "ends.py"


@pytest.mark.parametrize(
    ("world", "count", "options"),
    [
        (1, 30, ["--bare"]),  # a rank of a job of one: no other is waited for
        (2, 12, []),
        (2, 31, ["--no-jit"]),
        (3, 200, ["--bare"]),
    ],
)
def test_each_end_of_a_job_comes(world: int, count: int, options: list[str], ranks_server: Server, tmp_path: Path) -> None:
    results = ranks_server.job("run", *options, PROGRAM, count, cwd=tmp_path, ranks=[{}] * world)

    assert [result.status for result in results] == [0] * world, results[0].err
    assert len({result.last_line() for result in results}) == 1
    assert results[0].last_line().startswith("final")
