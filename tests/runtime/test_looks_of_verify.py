"""When a run that is compared looks at what its names lead to: seldom, but never only before the last step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from detrain.base.cursor import Cursor
from detrain.runtime.observers.observers import VerifyObserver


@pytest.mark.parametrize(("first", "expected"), [(0, [0, 1, 2, 4, 8, 16, 32, 64, "end"]), (5, [5, 8, 16, 32, 64, "end"])])
def test_a_process_looks_at_its_first_body_at_powers_of_two_and_behind_the_last_one(first: int, expected: list[Any]) -> None:
    now: list[Any] = [None]
    looks: list[Any] = []
    adapters = SimpleNamespace(look_at_names=lambda: looks.append(now[0]))
    trial = SimpleNamespace(at_batch=lambda _done, _address: None)
    observer = VerifyObserver(
        cast("Any", trial), cast("Any", SimpleNamespace(batches_done=0)), cast("Any", None), cast("Any", adapters)
    )

    for batch in range(first, 100):
        now[0] = batch
        observer.begin_body((0, 0, batch))
    now[0] = "end"
    observer.end_load()

    assert looks == expected


@pytest.mark.parametrize("is_last", [True, False])
def test_a_process_looks_at_the_objects_of_a_state_that_was_set_before_it_takes_their_digests(is_last: bool) -> None:
    """A state of JAX is of other arrays than those of the program that has begun anew."""
    done: list[str] = []
    adapters = SimpleNamespace(look_at_names=lambda: done.append("look"), tensors=dict)
    trial = SimpleNamespace(at_cut=lambda *_what: None, at_end=lambda of, _tensors: done.append(of))
    plan = SimpleNamespace(is_resuming=not is_last, is_forwarding=False)
    observer = VerifyObserver(cast("Any", trial), cast("Any", SimpleNamespace(phase=0)), cast("Any", plan), cast("Any", adapters))
    if is_last:
        observer.has_resumed(Cursor(0, 5, 0, "end"))

    observer.end_phase()

    assert done == ["look", "phase 0"]
