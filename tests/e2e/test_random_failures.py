"""Two hundred failures at random moments, of every kind, three and four ranks, six programs: all end with equal bits.

Signals and deaths are what is tried, so these are processes; a server forks them, and jobs that nothing befell are run
once for each program.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.forkserver import Server
from tests.e2e.random_failures import Wholes, befall

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wholes(ranks_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Wholes:
    """The jobs to compare with."""
    return Wholes(ranks_server, tmp_path_factory.mktemp("wholes"))


@pytest.mark.parametrize("case", range(110))
def test_a_job_that_fails_twice_ends_as_one_that_nothing_befell(
    case: int, wholes: Wholes, ranks_server: Server, tmp_path: Path
) -> None:
    for failure in befall(ranks_server, wholes, tmp_path, case):
        assert failure.is_exact
        assert failure.lost == 0 or failure.kind in {"two killed", "KILL to all"}, failure
