"""Queues that a thread fills: what lay in one must come to lie in it, and a thread that only fills it is not named."""

from __future__ import annotations

import collections
import concurrent.futures
import functools
import queue
import random
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from detrain.base.losses import is_refused
from detrain.python.codec import recipes
from detrain.python.codec.recipes import make_again
from detrain.python.loaders.strategy import Entered, RunningLoop
from detrain.python.process import children, filled_queues, loading_threads
from detrain.python.process.filled_queues import comes_to, is_place, place, wait_until
from detrain.python.process.loading_threads import LoadingThreads
from detrain.python.process.random_streams import PythonStream

ROWS = list(np.random.default_rng(0).normal(size=(4, 3)))


def no_tensor(_value: object) -> None:
    return None


def queue_of(*rows: object) -> queue.Queue[Any]:
    made: queue.Queue[Any] = queue.Queue()
    for row in rows:
        made.put(row)
    return made


def test_what_lay_in_a_queue_must_lie_in_it_foremost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filled_queues, "_PATIENCE_S", 0.01)
    text = place(queue_of(*ROWS[:2]), no_tensor)

    assert text is not None
    assert is_place(text)
    assert comes_to(queue_of(*ROWS[:2]), text, no_tensor)
    assert comes_to(queue_of(*ROWS[:3]), text, no_tensor), "the thread may be further"
    assert not comes_to(queue_of(ROWS[0]), text, no_tensor)
    assert not comes_to(queue_of(), text, no_tensor)
    assert not comes_to(queue_of(ROWS[1], ROWS[0]), text, no_tensor)
    assert not comes_to(list(ROWS), text, no_tensor)
    assert place(ROWS, no_tensor) is None
    assert place(queue.LifoQueue(), no_tensor) is None


def test_a_thread_that_is_still_filling_it_is_waited_for() -> None:
    text, held, goes_on = place(queue_of(*ROWS), no_tensor), queue_of(ROWS[0]), threading.Event()

    def fill() -> None:
        for row in ROWS[1:]:
            goes_on.wait(0.01)
            held.put(row)

    thread = threading.Thread(target=fill)
    thread.start()

    assert text is not None
    assert comes_to(held, text, no_tensor)
    thread.join()


def test_a_wait_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filled_queues, "_PATIENCE_S", 0.01)

    assert not wait_until(lambda: False)
    assert wait_until(lambda: True)


def _fills(held: queue.Queue[Any]) -> None:
    for number in range(4):
        held.put(number)


def _takes(held: queue.Queue[Any], total: list[Any]) -> None:
    total.append(held.get())


def test_a_thread_that_takes_what_bodies_hand_it_is_named_whoever_has_started_it() -> None:
    full, empty = queue.Queue[Any](1), queue.Queue[Any]()
    threads = [
        threading.Thread(target=_fills, args=(full,), name="fills"),
        threading.Thread(target=_takes, args=(empty, []), name="takes"),
    ]
    loading = LoadingThreads(dict)
    loading.begin_epoch()
    for thread in threads:
        thread.start()
    try:
        loading.look()
        assert {"what the thread fills holds", "what the thread takes holds"} <= set(children.living())
        named = children.living(loading.standing())
        assert "what the thread takes holds" in named
        assert "what the thread fills holds" not in named
    finally:
        for _ in range(4):
            full.get(timeout=9)
        empty.put(1)
        for thread in threads:
            thread.join()


def test_a_queue_that_was_left_alone_is_set_when_the_thread_that_fills_it_again_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held, goes_on = queue_of(), threading.Event()

    def fill() -> None:
        goes_on.wait(0.05)
        held.put(ROWS[0])

    thread = threading.Thread(target=fill)
    thread.start()
    monkeypatch.setattr(recipes, "_is_alone", lambda: not thread.is_alive())  # other tests may have left threads

    assert make_again("queue.Queue", [0, 1, collections.deque(ROWS[:1])], held) is held
    assert not thread.is_alive()
    assert [row.tolist() for row in held.queue] == [ROWS[0].tolist()]


def test_threads_that_an_epoch_has_started_before_its_first_batch_are_started_again() -> None:
    full = [queue.Queue[Any](1) for _ in range(4)]
    threads = [threading.Thread(target=_fills, args=(each,)) for each in full]
    loop = cast(RunningLoop, SimpleNamespace(iteration_id=object(), iterator=None, iterable=None))
    entered, frame = Entered(LoadingThreads(dict)), sys._getframe()
    try:
        threads[0].start()
        entered.begin(None)
        threads[1].start()
        entered.note(loop, frame, 0)
        threads[2].start()  # by the first load
        entered.begin_body()
        threads[3].start()  # by a body, which a resumed run does not run
        entered.note(loop, frame, 0)
        entered.begin_body()

        assert entered.threads.stand_still() == ""
        assert entered.threads.standing() == {threads[1], threads[2]}
        entered.begin(None)
        assert entered.threads.standing() == set()
    finally:
        for each in 4 * full:
            each.get(timeout=9)
        for thread in threads:
            thread.join()


def test_a_thread_is_let_load_until_its_queue_is_full() -> None:
    held, loaded = queue.Queue[Any](2), []

    def fill() -> None:
        for number in range(9):
            time.sleep(0.005)
            loaded.append(number)
            held.put(number)

    loading = LoadingThreads(dict)
    loading.begin_epoch()
    thread = threading.Thread(target=fill)
    thread.start()
    loading.look()
    assert loaded == [0, 1, 2, 3]  # one more than can wait, and one more to see whether it draws
    assert loading.stand_still() == ""
    assert (held.maxsize, held.get()) == (2, 0)
    assert loading.stand_still() == ""
    assert loaded == [0, 1, 2, 3, 4]
    assert [held.get(timeout=9) for _ in range(8)] == [1, 2, 3, 4, 5, 6, 7, 8]
    thread.join()
    assert loading.stand_still() == ""
    assert loading.drawn == set()


def test_a_thread_that_does_not_come_to_a_stand_is_named_and_not_waited_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading_threads, "_LONGEST_S", 0.01)
    held, stop = queue.Queue[Any](), threading.Event()

    def fill() -> None:
        while not stop.is_set():
            held.put(0)
            time.sleep(0.001)

    loading = LoadingThreads(dict)
    loading.begin_epoch()
    thread = threading.Thread(target=fill, name="endless")
    thread.start()
    loading.look()
    try:
        assert loading.stand_still() == "endless"
        assert loading.is_there
        assert loading.standing() == set()
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize(("size", "is_seen"), [(2, True), (2, False), (0, True)])
def test_a_thread_that_draws_while_bodies_may_loads_between_them_or_is_named(
    size: int, is_seen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One whose start was not seen has run beside code that may have drawn, too; one without a size never stands."""
    monkeypatch.setattr(loading_threads, "_LONGEST_S", 5.0 if size else 0.05)
    monkeypatch.setattr(threading.Thread, "start", threading.Thread.start)  # and put back
    held = queue.Queue[Any](size)
    count = 9 if size else 90  # it is there for longer than a busy machine lets the test wait

    def fill() -> None:
        random.random()
        for _ in range(count):
            held.put(random.random())
            time.sleep(0.01)

    loading = LoadingThreads(lambda: {"python": PythonStream().pack()})
    if is_seen:
        loading.begin_phase()
    loading.begin_epoch()
    thread = threading.Thread(target=fill)
    thread.start()
    loading.look()
    loading.begin_body()
    loading.stand_still()
    assert loading.take_turns == bool(size)
    assert [is_refused(each) for each in loading.drawn] == ([] if size and is_seen else [True])
    for _ in range(count):
        held.get(timeout=9)
    thread.join()


def test_a_thread_is_let_fill_its_queue_as_it_is_started_and_a_pools_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", threading.Thread.start)  # and put back
    monkeypatch.setattr(loading_threads, "_TO_BEGIN_S", 60.0)
    held, loaded = queue.Queue[Any](2), []

    def fill() -> None:
        for number in range(5):
            loaded.append(number)
            held.put(number)

    loading = LoadingThreads(dict)
    loading.begin_phase()
    loading.begin_epoch()
    thread = threading.Thread(target=functools.partial(fill))
    thread.start()
    assert loaded == [0, 1, 2]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:  # whose threads wait for work in Python's own code
        assert pool.submit(len, "ab").result() == 2
    loading.end_phase()
    assert [held.get(timeout=9) for _ in range(5)] == [0, 1, 2, 3, 4]
    thread.join()
