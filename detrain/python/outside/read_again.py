"""Files that code between loops reads: a resumed run that comes by there reads what the first run read.

A loop saves its best weights, the code behind it loads them, and the next training saves its own in the same file, or
the folder is removed. A run that resumes in the next training executes that code again on its way. So the content is
kept when it goes. Only files that a loop writes as a whole count, and only reads through Python's `open`.
"""

from __future__ import annotations

from pathlib import Path

from detrain.python.outside.change_log import Changes, copy_file, link_file


class ReadAgain:
    """The reads of one process between loops. Paths are absolute; a path's reads are counted from 1."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self._turns: dict[str, int] = {}
        self._waiting: dict[str, int] = {}
        """Files with the content of their last read, and the number of that read."""

    def as_read(self, path: str) -> Path | None:
        """Return the kept content that the next read of a file had in the first run; None if the file has it."""
        return self._changes.as_read(path, self._turns.get(path, 0) + 1)

    def reads(self, path: str) -> None:
        """Note that code between loops reads a file."""
        self._turns[path] = self._waiting[path] = self._turns.get(path, 0) + 1

    def leaves(self, path: str, *, is_removed: bool) -> None:
        """Keep the content of a file that has been read, before it is written as a whole or removed."""
        turn = self._waiting.pop(path, None)
        if turn is not None:
            self._changes.keep_read(path, turn, link_file if is_removed else copy_file)
