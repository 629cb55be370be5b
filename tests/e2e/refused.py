"""What holds of each refusal: a second start meets the same, and a way back that it names goes through."""

from __future__ import annotations

import re
import shlex
from typing import Any

from detrain.base.errors import last_printed
from tests.e2e.runs import Result, Run

_CODES = range(64, 100)
"""Exit codes that are detrain's."""
_OFFERED = re.compile(r"`detrain (run --from [^`]*)`")


def starting_twice(run: Run) -> Run:
    """Return `run`, but that each `detrain run` that is refused starts a second time, which must be refused alike."""

    def twice(*command: object, **keywords: Any) -> Result:
        first = run(*command, **keywords)
        if first.status in _CODES and command[0] == "run":
            second = run(*command, **keywords)
            assert (second.status, last_printed(second.err)) == (first.status, last_printed(first.err))
        return first

    return twice


def goes_back(run: Run, refused: Result, **keywords: Any) -> Result | None:
    """Take the way back that a refusal names, and see it go through; None if it names none."""
    offered = _OFFERED.search(refused.err)
    if offered is None:
        return None
    done = run(*shlex.split(offered[1]), **keywords)
    assert done.status == 0, done.err
    return done
