"""What holds of each refusal: a second start meets the same, and a way back that it names goes through."""

from __future__ import annotations

import re
import shlex
from typing import Any

from tests.e2e.runs import Result, Run

_CODES = range(64, 100)
"""Exit codes that are detrain's."""
_EXPLAINED = re.compile(r"explained by `detrain explain ([^`]*)`")
_OFFERED = re.compile(r"`detrain (run --from [^`]*)`")


def starting_twice(run: Run) -> Run:
    """Return `run`, but that each `detrain run` that is refused starts a second time, which must be refused alike.

    By an error of the same kind: its words may be others, where threads that race have left a checkpoint or none.
    """

    def twice(*command: object, **keywords: Any) -> Result:
        first = run(*command, **keywords)
        if first.status in _CODES and command[0] == "run":
            second = run(*command, **keywords)
            assert (second.status, _kind(second)) == (first.status, _kind(first)), second.err
        return first

    return twice


def _kind(refused: Result) -> list[str]:
    return _EXPLAINED.findall(refused.err)[-1:]


def goes_back(run: Run, refused: Result, **keywords: Any) -> Result | None:
    """Take the way back that a refusal names, and see it go through; None if it names none."""
    offered = _OFFERED.search(refused.err)
    if offered is None:
        return None
    done = run(*shlex.split(offered[1]), **keywords)
    assert done.status == 0, done.err
    return done
