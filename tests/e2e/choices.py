"""Helpers of the generators of programs: rows of a table in which each two choices occur together, the names of rows,
code by which programs die, and the proof that a program killed again and again ends as one that was never killed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from allpairspy import AllPairs

from tests.e2e.forkserver import Server
from tests.e2e.runs import Result, deaths_of

Row = dict[str, object]
Table = Mapping[str, list[Any]]

DIE: Final = """\
turns, starts = 0, []

def die():
    global turns
    turns += 1
    if os.environ.get("DIE_AT") == str(turns):
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)

"""
"""Code of each program: it dies by SIGKILL at the turn that `DIE_AT` names."""


def pairs(table: Table, is_possible: Callable[[Mapping[str, object]], bool] = bool, **first: object) -> list[Row]:
    """Return rows in which each two values of different choices occur together, if they can (pairwise testing). Each
    row also has the choices in `first`.
    """
    names = list(table)
    may_be = None if is_possible is None else lambda values: is_possible(dict(zip(names, values, strict=False)))
    return [
        first | dict(zip(names, row, strict=True)) for row in AllPairs(list(table.values()), filter_func=may_be or (lambda _: True))
    ]


def name_of(row: Row, table: Table, main: str = "data") -> str:
    """Return a row in words: its main choice, and all choices that are not the first of their kind."""
    return ", ".join(
        str(value) if name == main else f"{name} {json.dumps(value)}"
        for name, value in row.items()
        if name == main or value != table.get(name, [None])[0]
    )


def indented(parts: Iterable[str]) -> list[str]:
    """Return the lines of some parts of a program, indented by one level."""
    return [f"    {line}" for part in parts for line in part.splitlines() if part]


def ends_as_if_never_killed(
    server: Server,
    program: Path,
    every: object,
    request: pytest.FixtureRequest,
    run_whole: Callable[[Path], Result],
    printed: Callable[[Result], list[str]] = lambda result: result.out.splitlines(),
    refused: int = 0,
) -> str:
    """Kill a program at the starts of epochs, inside them and in later passes over the data, and compare its end with
    that of the whole run, which `run_whole` runs in a folder. Return the text on stderr of all runs.

    `refused`: the exit code of resumed runs, if detrain promises to refuse them.
    """
    folders = [program.parent / name for name in ("whole", "killed")]
    for folder in folders:
        folder.mkdir()
    whole = run_whole(folders[0])
    assert whole.status == 0, whole.err
    said = ""
    for death in (*deaths_of(whole, request), ""):
        last = server.detrain("run", "--every", every, program, cwd=folders[1], DIE_AT=str(death))
        if refused and last.status == refused:
            assert "REFUSED from here on" in said
            again = server.detrain("run", "--every", every, program, cwd=folders[1])
            assert again.status == refused, again.err
            return said
        assert last.status in (0, -9), last.err
        said += last.err
        if last.status == 0:
            break
    assert not refused
    assert last.last_line() == whole.last_line(), said
    lines = printed(last)
    assert lines == printed(whole)[-len(lines) :]
    assert "not captured" not in last.err
    return said
