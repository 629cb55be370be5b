"""Child processes that are alive: what they hold (their random streams, an environment that they simulate) is out of sight."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_HELPERS: Final = (b"resource_tracker", b"semaphore_tracker")
"""Processes of Python's and joblib's own, which hold nothing of the program."""


def living() -> list[str]:
    """Return, in words, what the child processes that are alive hold; nothing if there is none."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return []  # one call, where there are none
    return [f"what the child process {name} holds" for name in sorted(set(_names()))]


def _names() -> Iterator[str]:
    """Yield the commands of the children that have not ended, as Linux tells them."""
    for listing in Path("/proc/self/task").glob("*/children"):
        for child in listing.read_text().split():
            try:
                command = Path("/proc", child, "cmdline").read_bytes()  # empty once it has ended
            except OSError:
                continue
            if command and not any(helper in command for helper in _HELPERS):
                yield os.path.basename(command.partition(b"\0")[0]).decode(errors="replace")
