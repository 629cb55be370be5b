"""Queues that a thread fills: what lay in one must come to lie in it, and a thread that only fills it is not named."""

from __future__ import annotations

import collections
import queue
import sys
import threading
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from detrain.python.codec import stdlib_objects
from detrain.python.codec.stdlib_objects import remake
from detrain.python.loaders.strategy import Entered, RunningLoop
from detrain.python.process import children, filled_queues
from detrain.python.process.filled_queues import comes_to, is_place, place, wait_until

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
    held.put(1)
    held.put(2)


def _takes(held: queue.Queue[Any], total: list[Any]) -> None:
    total.append(held.get())


def test_a_thread_that_takes_what_bodies_hand_it_is_named_whoever_has_started_it() -> None:
    full, empty = queue.Queue[Any](1), queue.Queue[Any]()
    threads = [
        threading.Thread(target=_fills, args=(full,), name="fills"),
        threading.Thread(target=_takes, args=(empty, []), name="takes"),
    ]
    before = children.threads()
    for thread in threads:
        thread.start()
    try:
        again = children.threads() - before
        assert {"what the thread fills holds", "what the thread takes holds"} <= set(children.living())
        named = children.living(again)
        assert "what the thread takes holds" in named
        assert "what the thread fills holds" not in named
    finally:
        full.get()
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
    monkeypatch.setattr(stdlib_objects, "_is_alone", lambda: not thread.is_alive())  # other tests may have left threads

    assert remake("queue.Queue", [0, 1, collections.deque(ROWS[:1])], held) is held
    assert not thread.is_alive()
    assert [row.tolist() for row in held.queue] == [ROWS[0].tolist()]


def test_threads_that_an_epoch_has_started_before_its_first_batch_are_started_again() -> None:
    stop = threading.Event()
    threads = [threading.Thread(target=stop.wait) for _ in range(3)]
    loop = cast(RunningLoop, SimpleNamespace(iteration_id=object()))
    entered, frame = Entered(), sys._getframe()
    try:
        threads[0].start()
        entered.begin(None)
        threads[1].start()
        entered.note(loop, frame)
        threads[2].start()  # by a body, which a resumed run does not run
        entered.note(loop, frame)

        assert entered.threads_again == {threads[1].ident}
        entered.begin(None)
        assert entered.threads_again == set()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
