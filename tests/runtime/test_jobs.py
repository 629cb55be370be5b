"""Jobs of pools are waited for where a state is taken, unless it does not end."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from detrain.python.process import pool_jobs
from tests.runtime.state_values import World, baseline_of, encode, restore


@pytest.fixture(autouse=True)
def noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ThreadPoolExecutor, "submit", pool_jobs.noting(ThreadPoolExecutor.submit))
    monkeypatch.setattr(pool_jobs, "_jobs", pool_jobs.Jobs())


def test_what_was_submitted_and_what_follows_is_done_when_it_is_settled() -> None:
    done: list[int] = []

    def work(number: int) -> None:
        time.sleep(0.01)
        if number:
            pool.submit(work, number - 1).add_done_callback(lambda _: (time.sleep(0.01), done.append(number)))

    with ThreadPoolExecutor(2) as pool:
        pool.submit(work, 5)
        pool_jobs.wait()
        assert sorted(done) == [1, 2, 3, 4, 5]
        assert pool_jobs.living() == []


def test_work_that_waits_for_the_program_is_left_alone() -> None:
    go_on = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        waiting, done = pool.submit(go_on.wait), pool.submit(int)
        began = time.monotonic()
        try:
            pool_jobs.wait()
            assert time.monotonic() - began < pool_jobs._LONGEST_S / 2
            assert (waiting.done(), done.done()) == (False, True)
            assert pool_jobs.living() == ["a job of a pool that does not end"]
        finally:
            go_on.set()
        waiting.result()
    assert pool_jobs.living() == []


def test_training_in_a_thread_of_a_pool_does_not_wait_for_itself() -> None:
    with ThreadPoolExecutor(1) as pool:
        began = time.monotonic()
        pool.submit(pool_jobs.wait).result()
        assert time.monotonic() - began < pool_jobs._GLANCE_S
        assert pool_jobs.living() == []


def test_what_is_done_comes_back_as_data() -> None:
    def world(pool: Any, start: int) -> World:
        world: World = {"pool": pool, "next": pool.submit(list, range(start)), "made": None}
        pool_jobs.wait()
        return world

    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        after, before = world(one, 3), world(other, 3)
        held, baseline = before["next"], baseline_of(after)
        after["next"] = one.submit(list, range(5))
        after["made"] = [after["next"], one.submit(dict)]
        pool_jobs.wait()

        encoded = encode(after, baseline)

        assert encoded.not_captured == []
        assert restore(encoded, before, baseline_of(before)) == []
        assert before["next"].result() == [0, 1, 2, 3, 4]
        assert before["made"][0] is before["next"]
        assert before["made"][1].result() == {}
        assert before["pool"] is other
        assert isinstance(held, Future)


def test_a_future_that_a_thread_may_still_set_is_not_taken_for_another() -> None:
    go_on = threading.Event()
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        after: World = {"next": one.submit(int)}
        pool_jobs.wait()
        encoded = encode(after, baseline_of({"next": None}))
        before: World = {"next": other.submit(go_on.wait)}

        missing = restore(encoded, before, baseline_of(before))
        go_on.set()
        pool_jobs.wait()
        assert missing == []

        assert before["next"].result() == 0
