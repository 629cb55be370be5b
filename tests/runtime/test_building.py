"""Building: what is built late draws what the first run drew, and takes nothing from replicas that run meanwhile."""

from __future__ import annotations

import random

import pytest

from detrain.adapters.lazy_building import Building, BuiltUnit
from detrain.base.errors import Diverged
from detrain.python.process.random_streams import Streams


def _first_run(*, draws: bool) -> tuple[list[BuiltUnit], float]:
    building, drawn = Building(Streams()), 0.0
    with building.unit("Dense", lambda: None):
        drawn = random.random() if draws else 0.0
    return building.units(), drawn


def _resumed(units: list[BuiltUnit], *, has_company: bool) -> Building:
    building = Building(Streams())
    building.has_company = lambda: has_company
    building.begin_restore(units)
    return building


def test_what_is_built_late_draws_as_before_and_the_streams_stay() -> None:
    units, drawn = _first_run(draws=True)
    building, before = _resumed(units, has_company=False), random.getstate()

    with building.unit("Dense", lambda: None):
        assert random.random() == drawn

    assert random.getstate() == before


def test_what_other_replicas_draw_while_one_builds_counts() -> None:
    building = _resumed(_first_run(draws=False)[0], has_company=True)

    with building.unit("Dense", lambda: None):
        random.random()  # another replica's
        after = random.getstate()

    assert random.getstate() == after


def test_to_draw_as_before_among_replicas_is_refused() -> None:
    building = _resumed(_first_run(draws=True)[0], has_company=True)

    with pytest.raises(Diverged, match="'Dense' is built late, by one of several replicas"), building.unit("Dense", lambda: None):
        pytest.fail("it must not be built")
