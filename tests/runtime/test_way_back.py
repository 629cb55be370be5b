"""Which earlier checkpoint a refusal names: one that will do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from detrain.base.cursor import Cursor
from detrain.base.errors import Diverged, NotCapturable
from detrain.runtime.state import resume_plan

LOST = "schedule (library.Schedule: it has moved on)"


def offered(error: Any, lost: dict[Cursor, tuple[str, ...]], monkeypatch: pytest.MonkeyPatch, *allowed: str) -> str:
    """Return what is said where the newest of these checkpoints, which lack these things, is refused."""
    entries = [SimpleNamespace(path=str(cursor), cursor=cursor) for cursor in lost]
    losses = {str(cursor): losses for cursor, losses in lost.items()}
    monkeypatch.setattr(resume_plan, "read_meta", lambda path: SimpleNamespace(not_captured=losses[path]))
    catalogue = SimpleNamespace(entries=lambda: entries, ways=lambda _program, _run: entries)
    newest = [entries[-1].path]
    config = SimpleNamespace(stations=newest, ranks=None, command=("run", "p.py"), program="p", run=1, allow_lost=allowed)
    return resume_plan.way_back(error, cast(Any, config), cast(Any, catalogue), [])


def test_where_a_batch_differs_it_is_the_newest_start_of_an_epoch_before_that_lacks_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost = {Cursor(0, 1, 0): (), Cursor(0, 2, 0): (LOST,), Cursor(0, 3, 0): (), Cursor(0, 3, 4, "load"): ()}
    error = Diverged("another batch", at=(0, 2, 7))

    assert "--from 1:0 p.py`" in offered(error, lost, monkeypatch)
    assert "--from 2:0 p.py`" in offered(error, lost, monkeypatch, "schedule")


def test_what_the_newest_lacks_an_earlier_one_must_have(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = {Cursor(0, 1, 0): (), Cursor(0, 2, 0): (LOST,), Cursor(0, 3, 0): (LOST,)}

    assert "--from 1:0 p.py`" in offered(NotCapturable("it lacks a schedule"), lost, monkeypatch)
    assert offered(NotCapturable("it lacks a schedule"), {Cursor(0, 2, 0): (LOST,), Cursor(0, 3, 0): (LOST,)}, monkeypatch) == ""


def test_where_nothing_is_known_to_be_better_nothing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    lost: dict[Cursor, tuple[str, ...]] = {Cursor(0, 1, 0): (), Cursor(0, 2, 0): ()}

    assert offered(Diverged("the program is not as it was"), lost, monkeypatch) == ""


@pytest.mark.parametrize("at", [(0, 3, 0), (0, 3, 4), (0, 3, 6)])
def test_a_batch_that_would_be_the_same_once_more_names_nothing(at: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data have changed: the epoch's first batch is loaded as it would be again, one behind the cut by its body."""
    lost: dict[Cursor, tuple[str, ...]] = {Cursor(0, 3, 0): (), Cursor(0, 3, 4, "load"): ()}

    assert offered(Diverged("another batch", at=at), lost, monkeypatch) == ""
    assert "--from 3:0 p.py`" in offered(Diverged("another batch", at=(0, 3, 2)), lost, monkeypatch)
