"""Statements added to a program since its run: the run's checkpoints are read as if these statements were not there.

`detrain hindsight` has proved that the edit only adds statements. It tells the processes that it starts by a variable.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

VARIABLE: Final = "DETRAIN_ADDED"


class AddedStatements(msgspec.Struct, frozen=True):
    """The statements that were added, by file."""

    digests: dict[str, str] = {}
    """The digests of the sources as the run had them, by those of the sources now."""
    lines: dict[str, list[int]] = {}
    """The line on which each added statement begins, by the file's path from the program's folder."""

    def hand_over(self) -> dict[str, str]:
        """Return the environment variable that hands these statements to a process."""
        return {VARIABLE: msgspec.json.encode(self).decode()}


@cache
def added_statements() -> AddedStatements:
    """Return the added statements that this process was told of: mostly none."""
    text = os.environ.get(VARIABLE, "")
    return msgspec.json.decode(text, type=AddedStatements) if text else AddedStatements()


def as_it_was(digest: str) -> str:
    """Return the digest that a source had when the program ran, given its digest now."""
    return added_statements().digests.get(digest, digest)


def added_before(file: str, line: int) -> int:
    """Return how many of the added statements begin before a line of a file."""
    names = [name for name in added_statements().lines if Path(file).parts[-len(Path(name).parts) :] == Path(name).parts]
    return sum(each < line for each in added_statements().lines[max(names, key=len)]) if names else 0
