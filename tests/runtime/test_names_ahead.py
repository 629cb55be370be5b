"""Which names the program is still to read: behind the place where it is, and in the functions that it may call."""

from __future__ import annotations

import contextlib
import linecache
from pathlib import Path
from typing import Any

from detrain.base import compiled_sources
from detrain.python.inspect.code_reads import names_ahead

PROGRAM = """
import sys
def early():
    return before_alone
def late():
    return other().in_late
def other():
    return in_other
class Rows:
    def __len__(self):
        return of_python
    def never(self):
        return not_called
early
for turn in range(2):
    frames.append(sys._getframe()) if turn == 0 else in_loop
    stop() if turn == 0 else None
lambda: inside.of_lambda
late
"""


class _Stopped(Exception):
    pass


def test_names_behind_the_frames_place_are_found_and_those_before_it_are_not(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    compiled_sources.keep(str(file), PROGRAM.encode())
    found: list[frozenset[str]] = []
    frames: list[Any] = []

    def stop() -> None:
        found.append(names_ahead(frames, [str(file)]))
        raise _Stopped

    with contextlib.suppress(_Stopped):
        exec(compile(PROGRAM, str(file), "exec"), {"frames": frames, "stop": stop})
    linecache.clearcache()

    ahead = found[0]
    assert {"in_loop", "late", "other", "in_late", "in_other", "of_python", "of_lambda"} <= ahead
    assert ahead.isdisjoint({"early", "before_alone", "not_called"})
