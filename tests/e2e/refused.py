"""Checks of each refusal: a second start gets the same one, and a way back that it names works."""

from __future__ import annotations

import re
import shlex
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from detrain.base import errors
from tests.e2e.forkserver import Server
from tests.e2e.runs import ROOT, Result, Run

_CODES = range(64, 100)
"""The exit codes of detrain's errors."""
_EXPLAINED = re.compile(r"explained by `detrain explain ([^`]*)`")
_OFFERED = re.compile(r"`detrain (run --from [^`]*)`")
_OPTIONS = (["--fresh"], ["--loader", "forward"], ["--allow-environment"], ["--bare"])
"""Options that detrain offers as ways out."""


def assert_refused(run: Result, error: type[errors.DetrainError], *said: str) -> None:
    """Check that a run ended with the error's code, and with a message of at most two lines that has the words `said`
    and names the explanation.
    """
    *message, explained = [line for line in run.err.splitlines() if line.startswith(("detrain: error", "  "))]
    assert run.status == error.exit_code, run.err
    assert 1 <= len(message) <= 2
    assert explained == f"  explained by `detrain explain {error.slug}`"
    for word in said:
        assert word in "\n".join(message)


def starting_twice(run: Run) -> Run:
    """Return `run` with two checks: each `detrain run` that is refused starts a second time and must be refused alike,
    and each way out that it names is tried and must not be refused alike.

    Alike means by an error of the same kind: its words may differ if racing threads have left a checkpoint or none.
    Ways out are tried in a copy of the folder.
    """

    def twice(*command: object, **keywords: Any) -> Result:
        first = run(*command, **keywords)
        if first.status in _CODES and command[0] == "run":
            second = run(*command, **keywords)
            assert (second.status, _kind(second)) == (first.status, _kind(first)), second.err
            for way in ways_out(first, command):
                with tempfile.TemporaryDirectory() as folder:
                    copied = Path(folder, "home")
                    shutil.copytree(keywords["cwd"], copied, symlinks=True)
                    done = run(*way, **{**keywords, "cwd": copied})
                assert (done.status, _kind(done)) != (first.status, _kind(first)), f"{way}: {done.err}\n{first.err}"
        return first

    return twice


class Twice(Server):
    """A server with the same checks in its `detrain`."""

    def __init__(self, server: Server) -> None:
        self._server, self._run_twice = server, starting_twice(server.detrain)

    def detrain(self, *command: object, cwd: Path = ROOT, **changes: str) -> Result:
        """Run the command `detrain`."""
        return self._run_twice(*command, cwd=cwd, **changes)

    def bare(self, *command: object, cwd: Path, **changes: str) -> Result:
        """Run a program without detrain."""
        return self._server.bare(*command, cwd=cwd, **changes)


def ways_out(refused: Result, command: Sequence[object]) -> list[list[str]]:
    """Return the commands that a refusal of `command` offers: as a whole, or as options to add to it."""
    said = "\n".join(refused.err.splitlines()[-3:])
    first, *rest = map(str, command)
    asked = [options for options in _OPTIONS if options[0] in said and options[0] not in rest]
    lost = [["--allow-lost", name] for name in re.findall(r"--allow-lost ('[^']*'|[^ `]*)", said)]
    asked += [[word.strip("'") for options in lost for word in options]] if lost else []
    return [shlex.split(each) for each in _OFFERED.findall(said)] + [[first, *options, *rest] for options in asked]


def _kind(refused: Result) -> list[str]:
    return _EXPLAINED.findall(refused.err)[-1:]


def goes_back(run: Run, refused: Result, **keywords: Any) -> Result | None:
    """Take the way back that a refusal names, and check that it works; return None if it names none."""
    offered = _OFFERED.search(refused.err)
    if offered is None:
        return None
    done = run(*shlex.split(offered[1]), **keywords)
    assert done.status == 0, done.err
    return done
