"""Where the run is, and the stations that lie ahead of it."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from detrain.base.cursor import Cursor
from detrain.base.errors import Diverged, NotCapturable
from detrain.runtime.state.position import Position
from detrain.runtime.state.resume_plan import ResumePlan


def station(phase: int, epoch: int, batch: int, cut: str = "epoch", *, forward: str = "", loop: str = "") -> Any:
    return SimpleNamespace(phase=phase, epoch=epoch, batch=batch, cut=cut, forward=forward, loop=loop)


def plan_of(*metas: Any, loader: str = "auto") -> tuple[ResumePlan, Position]:
    position = Position()
    stations = [f"{number}.h5" for number in range(len(metas))]
    config = SimpleNamespace(stations=stations, loader=loader, ranks=None, command=(), checks_as_read=True)
    return ResumePlan(cast(Any, config), metas, position), position


def test_stations_are_passed_in_their_order_and_only_bodies_of_their_phase_are_skipped() -> None:
    plan, position = plan_of(station(0, 3, 0, "end"), station(1, 2, 0), station(1, 2, 5, "load"))

    position.begin_phase()
    position.begin_loop()
    assert plan.is_resuming
    assert plan.target_epoch() == (3, "end")
    position.epoch, position.batch = 3, 0
    assert plan.station_at("epoch") is None
    assert plan.station_at("end") is not None
    plan.pass_station()
    assert not plan.is_forwarding  # the next one is in another phase: the rest of this one is trained
    assert plan.target_epoch() is None

    position.begin_phase()
    assert plan.target_epoch() == (2, "epoch")
    assert not plan.is_last
    plan.pass_station()
    assert plan.is_last
    plan.pass_station()
    assert not plan.is_resuming


def test_batches_before_a_cut_are_passed_over_one_by_one_where_no_position_is_known() -> None:
    plan, position = plan_of(station(0, 1, 3, "load", forward="the program loads by code of its own"))
    position.begin_phase()
    position.begin_epoch(1)

    plan.aim()
    passed = []
    for _ in range(5):
        position.next_batch()
        passed.append(plan.is_passing)

    assert passed == [True] * 3 + [False] * 2


def test_a_sought_cut_is_gone_to_at_once() -> None:
    plan, position = plan_of(station(0, 1, 3, "load"))
    position.begin_phase()
    position.begin_epoch(1)

    plan.aim()

    assert position.batch == 3
    assert plan.station_at("load") is not None
    assert plan.is_sought(Cursor(0, 1, 3, "load"))
    assert not plan_of(station(0, 1, 3, "load"), loader="forward")[0].is_sought(Cursor(0, 1, 3, "load"))


def test_all_batches_of_an_epoch_before_that_of_the_cut_are_passed_over() -> None:
    plan, position = plan_of(station(0, 4, 1, "load"))
    position.begin_phase()
    position.begin_epoch(3)

    plan.aim()
    position.batch = 10**6

    assert plan.is_passing
    plan.begin_epoch()
    assert not plan.is_passing


def test_a_phase_that_is_another_loop_than_it_was_is_refused() -> None:
    plan, position = plan_of(station(0, 1, 0, loop="other.py train 7"))
    position.begin_phase()
    position.enter(sys._getframe())

    with pytest.raises(Diverged, match=r"phase 0 is the loop at test_resume_plan\.py:\d+; .* in another, of other\.py train"):
        plan.require_same_loop(sys._getframe())
    plan_of()[0].require_same_loop(sys._getframe())


def test_a_loop_of_another_thread_is_refused_and_none_of_its_own() -> None:
    position, errors = Position(), []
    position.begin_phase()
    position.begin_loop()

    def look() -> None:
        try:
            position.check_thread()
        except NotCapturable as error:
            errors.append(error)

    position.check_thread()
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert len(errors) == 1
    assert position.is_here()
    position.end_phase()
    assert not position.is_here()
    assert position.place() is None


def test_going_back_leads_to_the_moment_s_batch() -> None:
    position = Position()
    position.begin_phase()
    position.begin_epoch(2)
    position.batch, position.batches_done = 7, 40

    position.go_back((0, 2, 5), 38)

    assert position.moment() == (0, 2, 5)
    assert position.next_batch() == 5
    assert position.address() == (0, 2, 5)
    assert position.batches_done == 38
