"""The agreement of a job's ranks at each cut, with threads for ranks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from detrain.base.config import Ranks
from detrain.base.errors import UsageError
from detrain.runtime.rollback.ranks_together import RanksTogether
from detrain.store.node_folder import PREFIX, memory

WORLD = 3


def test_the_greatest_number_of_each_cut_holds_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    numbers = [(0, 0, 0), (0, 1, 0), (2, 1, 0), (0, 0, 0), (0, 0, 1)]
    ranks = [RanksTogether(Ranks(rank, WORLD, job="a test of the agreement"), lambda: False) for rank in range(WORLD)]

    def agree(rank: int) -> list[int]:
        return [ranks[rank].greatest(each[rank]) for each in numbers]

    with ThreadPoolExecutor(WORLD) as threads:
        found = list(threads.map(agree, range(WORLD)))

    assert found == [[max(each) for each in numbers]] * WORLD
    assert not [*memory().glob(f"{PREFIX}*a test of the agreement")]


def test_a_rank_does_not_wait_where_the_job_is_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")

    assert RanksTogether(Ranks(0, 2, job="a job that ends"), lambda: True).greatest(1) == 0


def test_several_machines_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")

    with pytest.raises(UsageError, match="on one machine"):
        RanksTogether(Ranks(0, 4, job="a job of two machines"), lambda: False)
