"""How far a resume is, as it is shown: nothing for what is quick, a bar on a terminal, else one line."""

from __future__ import annotations

import io
import sys

import pytest

from detrain.base import messages, progress
from detrain.base.progress import Progress, batches, size_text


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(name="clock")
def _clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(progress, "_now", lambda: now[0])
    return now


def test_what_takes_less_than_two_seconds_is_not_worth_a_word(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(messages, "say", said.append)
    monkeypatch.setattr(sys, "__stderr__", io.StringIO())
    loading = Progress("batches loaded again", batches, 500)
    for done in range(500):
        clock[0] += 0.003
        loading.reach(done)
    loading.end()
    clock[0] += 10
    loading.reach(500)

    assert said == []


def test_elsewhere_than_on_a_terminal_it_is_one_line_with_rate_and_time_left(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(messages, "say", said.append)
    monkeypatch.setattr(sys, "__stderr__", io.StringIO())
    loading, reading = Progress("batches loaded again", batches, 500), Progress("state read", size_text, 5_000_000_000)
    for done in (50, 100, 200):
        clock[0] += 1.25
        loading.reach(done)
        reading.add(1_000_000_000)

    assert said == [
        "batches loaded again: 100 of 500, 40 a second, 10 s left",
        "state read: 2.0 GB of 5.0 GB, 0.8 GB a second, 4 s left",
    ]


def test_on_a_terminal_it_is_a_bar_that_goes_and_no_thread_of_the_process(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    terminal, before = Terminal(), threading.active_count()
    monkeypatch.setattr(sys, "__stderr__", terminal)
    streams = sys.stdout, sys.stderr
    loading = Progress("batches loaded again", batches)
    for done in (50, 100):
        clock[0] += 2.5
        loading.reach(done)
    shown = terminal.getvalue()

    assert "batches loaded again" in shown
    assert "100, 20 a second" in shown
    assert (threading.active_count(), sys.stdout, sys.stderr) == (before, *streams)
    loading.end()
    assert terminal.getvalue().startswith(shown)


def test_on_a_terminal_ranks_but_the_first_show_no_bar(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "__stderr__", terminal)
    monkeypatch.setattr(messages, "_ranks", [1])
    loading = Progress("batches loaded again", batches, 500)
    clock[0] += 2.5
    loading.reach(50)

    assert terminal.getvalue() == ""


@pytest.mark.parametrize(("count", "text"), [(2_200_000, "2.2 MB"), (99_900_000, "99.9 MB"), (2_000_000_000, "2.0 GB")])
def test_a_size_has_the_unit_that_shows_it(count: int, text: str) -> None:
    assert size_text(count) == text
