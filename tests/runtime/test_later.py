"""What the program has asked to be called later is counted; what libraries have asked for is not."""

from __future__ import annotations

import atexit
import functools
import signal
import tempfile
import weakref
from collections.abc import Iterator

import pytest

from detrain.python.process import pending_callbacks

ATEXIT, FINALIZE, TIMERS = pending_callbacks.asked()


@pytest.fixture(autouse=True)
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(atexit, "register", atexit.register)
    monkeypatch.setattr(atexit, "unregister", atexit.unregister)
    pending_callbacks.watch()
    yield
    atexit.unregister(at_end)
    atexit.unregister(Own.at_end)


def at_end() -> None: ...


class Own:
    def at_end(self) -> None: ...


def test_functions_for_the_end_are_counted() -> None:
    before, own = pending_callbacks.asked(), Own()
    assert atexit.register(at_end) is at_end
    atexit.register(own.at_end)
    partial = functools.partial(at_end)
    atexit.register(partial)
    atexit.register(tempfile.gettempdir)

    assert pending_callbacks.asked() == before | {ATEXIT: before[ATEXIT] + 3}

    atexit.unregister(partial)
    atexit.unregister(at_end)
    atexit.unregister(own.at_end)
    atexit.unregister(tempfile.gettempdir)
    assert pending_callbacks.asked() == before


def test_finalizers_are_counted_while_their_object_lives() -> None:
    before, own = pending_callbacks.asked(), Own()
    weakref.finalize(own, at_end)
    with tempfile.TemporaryDirectory():
        assert pending_callbacks.asked() == before | {FINALIZE: before[FINALIZE] + 1}
    del own
    assert pending_callbacks.asked() == before


def test_timers_are_counted_while_they_run() -> None:
    before = pending_callbacks.asked()
    signal.setitimer(signal.ITIMER_REAL, 1000)
    try:
        assert pending_callbacks.asked() == before | {TIMERS: 1}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    assert pending_callbacks.asked() == before
