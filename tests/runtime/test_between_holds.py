"""Between the batches at which a job holds its state, a turn of the loop is counted and timed, and no more is done."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from detrain.base.config import SELDOM, Config
from detrain.base.options import Every
from detrain.python.loaders.strategy import RunningLoop
from detrain.runtime.session.batch_recorder import BatchRecorder
from detrain.runtime.session.just_in_time import JustInTime, Rate
from detrain.runtime.session.session import Session


def just_in_time(every: int, next_: int, *, is_over: bool = False) -> tuple[JustInTime, list[str]]:
    held: Any = JustInTime.__new__(JustInTime)
    marked: list[str] = []
    held._every, held._next, held._is_over, held._rate = every, next_, is_over, Rate()
    held._ranks = SimpleNamespace(pace=SimpleNamespace(mark=lambda kind, _now: marked.append(kind)))
    return held, marked


@pytest.mark.parametrize(("every", "next_", "asked"), [(0, 23, {23, 24}), (0, -1, {20, 21, 22, 23, 24}), (4, 0, {20, 24})])
def test_what_holds_the_state_is_asked_where_that_is_due(every: int, next_: int, asked: set[int]) -> None:
    held, marked = just_in_time(every, next_)

    assert {done for done in range(20, 25) if not held.passes(done)} == asked
    assert marked == ["batch"] * (5 - len(asked)), "a hang is looked for"
    assert len(held._rate._batches) == max(0, len(marked) - 1)


def test_who_has_given_up_is_not_asked() -> None:
    held, marked = just_in_time(0, 0, is_over=True)

    assert held.passes(7)
    assert marked == []


def turn_of(held: object, loop: object, quiet_until: int = 100) -> tuple[int, Any]:
    """Have a session turn at batch 5 of a loop at which nothing but that is to be done; return its answer, and it."""
    position = SimpleNamespace(batch=5, batches_done=25, is_loading=False)
    parts = SimpleNamespace(
        just_in_time=held,
        termination=SimpleNamespace(is_requested=False),
        saves=SimpleNamespace(writer=SimpleNamespace(has_failed=False)),
        world=SimpleNamespace(contents=SimpleNamespace(written_last="a file that the body has written")),
    )
    session: Any = SimpleNamespace(
        _quiet=loop,
        _quiet_until=quiet_until,
        parts=parts,
        position=position,
        _termination=parts.termination,
        _writer=parts.saves.writer,
    )
    return Session.turn(session, cast(RunningLoop, SimpleNamespace(iteration_id=loop))), session


def test_a_turn_at_which_the_state_is_due_goes_the_long_way() -> None:
    loop = object()

    number, session = turn_of(just_in_time(0, 25)[0], loop)

    assert number == -1
    assert (session.position.batch, session.position.is_loading) == (5, False)
    number, session = turn_of(just_in_time(0, 26)[0], loop)
    assert (number, session.position.batch, session.parts.world.contents.written_last) == (5, 6, "")
    assert turn_of(None, loop)[0] == 5, "a job without"


def test_a_turn_of_whose_body_somebody_hears_goes_the_long_way() -> None:
    loop = object()

    assert [turn_of(None, loop, until)[0] for until in (4, 5, 6)] == [-1, -1, 5]


@pytest.mark.parametrize(
    ("every", "is_loaded_again", "is_quiet"),
    [(Every(SELDOM, "batches"), False, True), (Every(SELDOM, "batches"), True, False), (Every(1, "epochs"), True, True)],
)
def test_turns_are_not_passed_over_whose_streams_are_recorded(every: Every, is_loaded_again: bool, is_quiet: bool) -> None:
    nothing: Any = SimpleNamespace(
        read=dict, add_streams=lambda *_: None, batches={}, address=lambda: (0, 0, 0), to_array=None, streams={}
    )
    config: Any = SimpleNamespace(every=every, ranks=object(), jit=True, allow_environment=False)
    recorder = BatchRecorder(cast(Config, config), nothing, nothing, nothing, nothing)
    recorder.begin_phase(is_held=True)

    assert recorder.is_quiet == (every.unit == "epochs"), "it is not known yet whether they are needed"
    recorder.settle(is_loaded_again=is_loaded_again)
    assert recorder.is_quiet == is_quiet


def test_what_comes_behind_the_loop_is_no_end_of_an_epoch() -> None:
    """It may take hours, and none of these has been before."""
    session = MagicMock()

    Session.end_phase(session)

    session.parts.just_in_time.mark.assert_called_once_with("behind the loop")
