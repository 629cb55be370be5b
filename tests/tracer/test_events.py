"""Turns of loops are seen in the same way by every watcher, on every Python that is here."""

from __future__ import annotations

import sys

import pytest

from detrain.tracer.events import MarkWatcher, MonitoringWatcher, SettraceWatcher, loop_watcher
from tests.runtime import interpreters
from tests.tracer import event_cases


@pytest.mark.parametrize("kind", event_cases.KINDS)
@pytest.mark.parametrize("seed", range(200))
def test_between_updates_the_loops_that_turned_are_seen(seed: int, kind: str) -> None:
    event_cases.check(seed, kind)


@pytest.mark.parametrize("version", interpreters.OTHERS)
def test_the_same_on_other_pythons(version: str) -> None:
    done = interpreters.run_module(version, "tests.tracer.event_cases", "0", "200")

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ok sys.settrace, marks")
    assert ("sys.monitoring" in done.stdout) == (version >= "3.12")


def test_a_debugger_is_left_alone() -> None:
    seen: list[int] = []
    watcher = SettraceWatcher(lambda _code, line: not seen.append(line), lambda _loop: None)

    def debugger(*_event: object) -> None:
        return None

    sys.settrace(debugger)
    try:
        watcher.arm([(sys._getframe(), __file__, {1: range(2, 3)})])
        assert sys.gettrace() is debugger
    finally:
        sys.settrace(None)
    watcher.stop()


def test_the_watcher_for_this_python() -> None:
    watcher = loop_watcher(lambda _code, _line: True, lambda _loop: None, ())
    marked = loop_watcher(lambda _code, _line: True, lambda _loop: None, [("train.py", 3)])
    assert type(watcher) is (MonitoringWatcher if sys.version_info >= (3, 12) else SettraceWatcher)
    assert type(marked) is MarkWatcher
    watcher.stop()
    marked.stop()
