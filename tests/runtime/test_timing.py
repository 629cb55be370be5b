"""What the parts of a start take: they are the whole, however they are nested, and over two processes."""

from __future__ import annotations

import msgspec
import pytest

from detrain.base import messages, timing
from detrain.base.timing import StartParts


@pytest.fixture(name="clock")
def _clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Wall and processor time."""
    now = [100.0, 5.0]
    monkeypatch.setattr(timing, "_wall", lambda: now[0])
    monkeypatch.setattr(timing, "_processor", lambda: now[1])
    monkeypatch.setattr(timing, "_running", [StartParts({}, "start", (98.0, 4.0))])
    return now


def _pass(clock: list[float], wall_s: float, processor_s: float) -> None:
    clock[0] += wall_s
    clock[1] += processor_s


def _fail(clock: list[float]) -> None:
    _pass(clock, 8, 4)
    raise ImportError


def test_parts_that_are_nested_and_left_by_errors_are_the_whole(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[str, ...]] = []
    monkeypatch.setattr(messages, "put_table", lambda _head, rows: shown.extend(rows))
    timing.enter("program")
    _pass(clock, 1, 0.5)
    with timing.during("imports"):
        _pass(clock, 4, 2)
        with pytest.raises(ImportError), timing.during("imports"):
            _fail(clock)
        with timing.during("adapters"):
            _pass(clock, 16, 8)
        _pass(clock, 32, 16)
    _pass(clock, 64, 32)
    took = timing.finish()

    assert took == {"start": (2, 1), "program": (65, 32.5), "imports": (44, 22), "adapters": (16, 8)}
    assert shown[-1] == ("all", "127.000", "63.500")
    assert not timing.is_running()


def test_the_next_process_goes_on_where_the_first_was(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "put_table", lambda _head, _rows: None)
    timing.enter("start of detrain in the process")
    handed = msgspec.json.encode(timing.so_far())
    _pass(clock, 3, 1)
    timing.go_on(msgspec.json.decode(handed, type=StartParts))

    assert timing.finish() == {"start": (2, 1), "start of detrain in the process": (3, 1)}


def test_where_nobody_has_asked_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "_running", [])
    timing.go_on(None)
    timing.enter("program")
    with timing.during("imports"):
        pass

    assert timing.so_far() is None
    assert not timing.is_running()


def test_it_begins_with_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "_running", [])
    timing.begin("start")
    timing.enter("program")
    parts = timing.so_far()

    assert parts is not None
    wall_s, processor_s = parts.took_s["start"]
    assert wall_s > 0.05
    assert processor_s > 0.05
