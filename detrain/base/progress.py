"""The progress of a long resume: a bar on a terminal, else one line.

Nothing is shown, and no module is imported for it, in the first two seconds. The working code itself updates the
display: it has no thread in the program's process.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from detrain.base import messages

_AFTER_S: Final = 2.0
_EVERY_S: Final = 0.1
_now = functools.partial(time.clock_gettime, time.CLOCK_MONOTONIC)
"""The real time: the program may read replayed times."""


def batches(count: float) -> str:
    """Return a number of batches as a text."""
    return f"{count:.0f}" if count >= 10 else f"{count:.1f}".removesuffix(".0")


def size_text(count: float) -> str:
    """Return a number of bytes as a text."""
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"


class Progress:
    """A task that takes a while. `shown` makes a text of a count; `total` is the last count, if known."""

    def __init__(self, what: str, shown: Callable[[float], str], total: int | None = None) -> None:
        self._what, self._shown, self._total = what, shown, total
        self._began = _now()
        self._next = self._began + _AFTER_S
        self._done = 0
        self._bar: Any = None
        self._lock = threading.Lock()

    def reach(self, done: int) -> None:
        """Note that the count is now `done`."""
        now = _now()
        if now >= self._next:
            self._show(done, now)

    def add(self, more: int) -> None:
        """Add to the count. Several threads may call this."""
        with self._lock:
            self._done += more
            self.reach(self._done)

    def end(self) -> None:
        """End the task, and remove the bar from the terminal."""
        self._next = float("inf")
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _show(self, done: int, now: float) -> None:
        stream = sys.__stderr__
        if stream is None or not stream.isatty():
            self._next = float("inf")
            messages.say(f"{self._what}: {self._text(done, now)}")
            return
        self._next = now + _EVERY_S
        if self._bar is None:
            if not messages.is_heard():
                self.end()
                return
            self._bar = self._new_bar(stream)
        self._bar.update(self._bar.task_ids[0], completed=done, text=self._text(done, now))
        self._bar.refresh()

    def _text(self, done: int, now: float) -> str:
        rate = done / (now - self._began)
        if self._total is None:
            return f"{self._shown(done)}, {self._shown(rate)} a second"
        left = f", {max(self._total - done, 0) / rate:.0f} s left" if rate else ""
        return f"{self._shown(done)} of {self._shown(self._total)}, {self._shown(rate)} a second{left}"

    def _new_bar(self, stream: Any) -> Any:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bars

        columns = TextColumn("detrain: {task.description}"), BarColumn(bar_width=20), TextColumn("{task.fields[text]}")
        console = Console(file=stream)
        bars = Bars(*columns, console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False)
        bars.add_task(self._what, total=self._total, text="")
        bars.start()
        return bars
