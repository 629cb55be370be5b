"""The messages of detrain while a program runs: lines on stderr that start with `detrain:`, and a
status line on a terminal.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

_ranks: list[int] = []


def be_rank(rank: int) -> None:
    """Make this process a rank of a job: only rank 0 prints information; each prints warnings, with its number."""
    _ranks[:] = [rank]


def is_heard() -> bool:
    """Return whether this process prints information."""
    return not _ranks or _ranks[0] == 0


def say(text: str) -> None:
    """Print one line of information."""
    if is_heard():
        _print(text)


def _print(text: str) -> None:
    with _above_bars(sys.__stderr__):
        put(f"detrain: {text}")


_is_in_notebook: list[bool] = []
_SENT_S: Final = 1.0


def show_in_notebook() -> None:
    """Show all messages below the running cell of the notebook from now on."""
    _is_in_notebook[:] = [True]


def put(text: str) -> None:
    """Print to stderr; nowhere if the process was started without it: `print` would use stdout in its place."""
    if _is_in_notebook:
        print(text, file=sys.stderr, flush=True)
    elif sys.__stderr__ is not None:
        print(text, file=sys.__stderr__, flush=True)


def put_table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    """Print a table to stderr; its first column holds names, the others numbers."""
    from rich.console import Console
    from rich.table import Table

    table = Table(*head, box=None, padding=(0, 2, 0, 0))
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        table.add_row(*row)
    console = Console(width=80)
    with console.capture() as captured:
        console.print(table)
    put("\n".join(line.rstrip() for line in captured.get().splitlines()))


def fill_standard_files() -> None:
    """Open the null device as stdin, stdout or stderr wherever that is closed: else the next file to be opened, a
    checkpoint, gets its number, and C code writes errors into it. Python's own streams stay as they are, and child
    processes still find the files closed.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free


def put_last(text: str) -> None:
    """Print the last message of the process to stderr. In a notebook, wait a moment: the output goes through a thread
    and a socket.
    """
    put(text)
    if _is_in_notebook:
        time.sleep(_SENT_S)


@contextlib.contextmanager
def _above_bars(stream: Any) -> Iterator[None]:
    """Clear the program's progress bars (tqdm) from the last lines of a stream, and show them again afterwards."""
    bars: Any = getattr(sys.modules.get("tqdm.std"), "tqdm", None)
    mine = [bar for bar in list(getattr(bars, "_instances", ())) if hasattr(bar, "start_t") and bar.fp == stream]
    with bars.get_lock() if mine else contextlib.nullcontext():
        for bar in mine:
            bar.clear(nolock=True)
        yield
        for bar in mine:
            bar.refresh(nolock=True)


def shown(path: Path) -> str:
    """Return a path as a text: relative to the current folder if it lies there and that folder still exists."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, FileNotFoundError):
        return str(path)


_warned: set[str] = set()


def warn(text: str) -> None:
    """Print one line of warning; a process prints the same warning only once."""
    if text in _warned:
        return
    _warned.add(text)
    if _ranks:
        _print(f"warning: rank {_ranks[0]}: {text}")
    else:
        say(f"warning: {text}")


def flush_output() -> None:
    """Flush the program's output. The program may have put objects without `flush` there, or closed the streams."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()


_QUICK_S: Final = 0.2
_took_s: dict[str, float] = {}


@contextlib.contextmanager
def working(what: str, cursor: object) -> Iterator[None]:
    """Show the current activity `what` on the terminal for as long as it takes.

    Nothing is shown if stderr is no terminal, or if this activity was quick the last time.
    """
    stream = sys.__stderr__
    began = time.monotonic()
    with contextlib.ExitStack() as shown:
        if stream is not None and stream.isatty() and _took_s.get(what, _QUICK_S) >= _QUICK_S:
            from rich.console import Console

            shown.enter_context(Console(file=stream).status(f"detrain: {what} {cursor}", spinner="line"))
            began = time.monotonic()
        yield
    _took_s[what] = time.monotonic() - began
