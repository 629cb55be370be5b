"""Statements that were added to a program since a run of it: for what the run has left, they are not there.

`detrain hindsight` has proved that they were only added, and says so to the processes that it starts by a variable.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

VARIABLE: Final = "DETRAIN_ADDED"


class AddedStatements(msgspec.Struct, frozen=True):
    """What was added to which files."""

    digests: dict[str, str] = {}
    """The digest of the source at the time, by that of the source now."""
    lines: dict[str, list[int]] = {}
    """On which lines statements begin that were added, each by itself, by the file's path from the program's folder."""

    def hand_over(self) -> dict[str, str]:
        """Return the environment variable that hands it to a process."""
        return {VARIABLE: msgspec.json.encode(self).decode()}


@cache
def added_statements() -> AddedStatements:
    """Return what this process is told of: mostly nothing."""
    text = os.environ.get(VARIABLE, "")
    return msgspec.json.decode(text, type=AddedStatements) if text else AddedStatements()


def as_it_was(digest: str) -> str:
    """Return the digest that a source had at the time of the run, by its digest now."""
    return added_statements().digests.get(digest, digest)


def added_before(file: str, line: int) -> int:
    """Return how many statements that were added begin before a line of a file."""
    names = [name for name in added_statements().lines if Path(file).parts[-len(Path(name).parts) :] == Path(name).parts]
    return sum(each < line for each in added_statements().lines[max(names, key=len)]) if names else 0
