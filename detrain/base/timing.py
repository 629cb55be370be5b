"""How long each part of a start takes, from the command to the first new step (`detrain run --timing`).

One clock runs, and its time counts for the current part of the process, so the parts add up to the whole. The clock
goes on in the process that replaces the command's. Nothing is measured without the option.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from detrain.base import messages

_wall = functools.partial(time.clock_gettime, time.CLOCK_MONOTONIC)
_processor = functools.partial(time.clock_gettime, time.CLOCK_PROCESS_CPUTIME_ID)
"""Processor time of all threads; it goes on when the process is replaced. The program may read replayed times; both
clocks here are the real ones."""


class StartParts(msgspec.Struct):
    """Seconds of wall clock and of processor time by the name of the part, in the order in which the parts began."""

    took_s: dict[str, tuple[float, float]]
    name: str
    """The current part."""
    since: tuple[float, float]
    """The readings of both clocks when the current part began."""

    def enter(self, name: str) -> str:
        """Begin another part. Return the name of the one before."""
        at, before = (_wall(), _processor()), self.name
        wall_s, processor_s = self.took_s.get(before, (0.0, 0.0))
        self.took_s[before] = (wall_s + at[0] - self.since[0], processor_s + at[1] - self.since[1])
        self.took_s.setdefault(name, (0.0, 0.0))
        self.name, self.since = name, at
        return before


_running: Final[list[StartParts]] = []


def begin(name: str) -> None:
    """Begin to take times; all time since the process was started counts for the part `name`."""
    ticks = float(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]) if os.path.exists("/proc/self/stat") else 0.0
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK") if ticks else _processor()
    _running[:] = [StartParts({}, name, (_wall() - age_s, 0.0))]


def so_far() -> StartParts | None:
    """Return the times to hand to the process that replaces this one; None if none are taken."""
    return _running[0] if _running else None


def go_on(parts: StartParts | None) -> None:
    """Go on with the times from `so_far`."""
    _running[:] = [parts] if parts is not None else []


def enter(name: str) -> None:
    """Begin another part of the start."""
    if _running:
        _running[0].enter(name)


@contextlib.contextmanager
def during(name: str) -> Iterator[None]:
    """Count the time inside the context for the part `name`, and then go on with the part before."""
    before = _running[0].enter(name) if _running else ""
    try:
        yield
    finally:
        if before:
            enter(before)


def is_running() -> bool:
    """Return whether times are taken, and the first new step is still ahead."""
    return bool(_running)


def finish() -> dict[str, tuple[float, float]]:
    """End after the first new step: return the seconds of each part, and show them on stderr."""
    parts = _running.pop()
    parts.enter(parts.name)
    whole = tuple(sum(each) for each in zip(*parts.took_s.values(), strict=True))
    rows = [(name, *(f"{each:.3f}" for each in seconds)) for name, seconds in [*parts.took_s.items(), ("all", whole)]]
    if messages.is_heard():
        messages.put_table(("until the first new step", "s", "processor, s"), rows)
    return parts.took_s
