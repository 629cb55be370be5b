"""Which bodies those hear of who compare runs, or stand at a step: none that they must hear of is left out."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detrain.base.cursor import Address
from detrain.runtime.observers.moment import MomentReached
from detrain.runtime.observers.moment_asked import AskedMoment
from detrain.runtime.observers.observers import VerifyObserver
from detrain.runtime.observers.verify_hooks import VerifyPlan

ADDRESSES = st.tuples(st.integers(0, 1), st.integers(0, 2), st.integers(0, 40))


@given(st.none() | st.integers(0, 90), st.none() | ADDRESSES, ADDRESSES, st.integers(0, 60))
def test_a_run_that_is_to_end_hears_of_the_batch_at_which_it_does(
    kill_at: int | None, last: Address | None, start: Address, done: int
) -> None:
    phase, epoch, batch = start
    plan = VerifyPlan("", kill_at=kill_at, last=last)
    ahead = range(batch, batch + 100)
    acts = [each for each in ahead if done + each - batch == kill_at or (last is not None and (phase, epoch, each) > last)]

    found = plan.next_batch(start, done)

    assert found == next(iter(acts), sys.maxsize)


@pytest.mark.parametrize("has_looked", [False, True])
def test_one_that_looks_hears_of_the_first_and_of_powers_of_two(has_looked: bool) -> None:
    unknown: Any = None
    observer = VerifyObserver(VerifyPlan(""), unknown, unknown, unknown)
    observer._has_looked = has_looked

    heard = {batch for batch in range(70) if observer.next_body((0, 0, batch), batch) == batch}

    assert heard == ({0, 1, 2, 4, 8, 16, 32, 64} if has_looked else set(range(70)))
    assert [observer.next_body((0, 0, batch), batch) for batch in (3, 5, 33)] == ([4, 8, 64] if has_looked else [3, 5, 33])


@given(ADDRESSES, ADDRESSES)
def test_one_that_stands_at_a_step_hears_of_it_and_of_all_behind(at: Address, here: Address) -> None:
    unknown: Any = None
    reached = MomentReached(AskedMoment(at=at, until=at), unknown, int)
    ahead = [(*here[:2], batch) for batch in range(here[2], 100)]

    assert reached.next_body(here) == next((each[2] for each in ahead if each >= at), sys.maxsize)
