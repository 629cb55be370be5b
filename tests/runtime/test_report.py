"""What detrain says goes on a line of its own, also where a progress bar is on the last one."""

from __future__ import annotations

import io
import sys

import pytest

from detrain.base import messages

tqdm = pytest.importorskip("tqdm").tqdm


def lines_of(terminal: str) -> list[str]:
    """Return what a terminal shows: a carriage return goes back to the line's start, and what comes then is written
    over it.
    """
    shown = []
    for line in terminal.split("\n"):
        cells: list[str] = []
        for part in line.split("\r"):
            cells[: len(part)] = part
        shown.append("".join(cells).rstrip())
    return shown


def test_a_line_stands_alone_and_the_bar_below_it(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "__stderr__", stream)
    elsewhere = io.StringIO()
    with tqdm(total=3, file=stream, bar_format="{n}/{total}", mininterval=0) as bar, tqdm(total=1, file=elsewhere, ncols=0):
        bar.update()
        before = elsewhere.getvalue()
        messages.say("resuming")
        assert elsewhere.getvalue() == before
        bar.update()

    assert lines_of(stream.getvalue()) == ["detrain: resuming", "2/3", ""]


def test_without_a_bar_nothing_but_the_line_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "__stderr__", stream)
    messages.warn("so it is")
    assert stream.getvalue() == "detrain: warning: so it is\n"
    monkeypatch.setattr(sys, "__stderr__", None)
    messages.warn("nobody hears")
