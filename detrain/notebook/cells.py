"""The cells that have run, one behind another: a file that grows, and what is compiled of it."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path
from types import CodeType
from typing import Final

from detrain.base import compiled_sources
from detrain.base.errors import CannotRewrite
from detrain.instrument.rewriter import IMPORT_MARK
from detrain.instrument.text_edits import Edit, compile_edited, edited_tree
from detrain.python.inspect import function_source

CELL: Final = "cell "
"""How the names of cells begin, among those of sources."""


class Cells:
    """The file, as the program that is run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._data = b""
        self._edits: list[Edit] = []
        self._first = 0
        self.count = 0
        self._write()

    def add(self, source: str) -> None:
        """Put a cell behind the others. It is about to run; what Python cannot compile is not added.

        Raises SyntaxError.
        """
        text = source.rstrip("\n") + "\n"
        ast.parse(text)
        self._first = len(self._data)
        self._data += text.encode()
        self.count += 1
        compiled_sources.parts[f"{CELL}{self.count}"] = text.encode()
        self._write()

    @property
    def lines(self) -> range:
        """The lines of the last cell, from 1."""
        first = self._data[: self._first].count(b"\n") + 1
        return range(first, self._data.count(b"\n") + 1)

    def edit(self, edits: Sequence[Edit]) -> list[Edit]:
        """Make those of the edits that lie in the last cell, and the import of what they call; return them as edits of
        `cell`.
        """
        imports = [(self._first, self._first, text) for _, _, text in edits if text.rstrip().endswith(IMPORT_MARK.strip())]
        others = [edit for edit in edits if edit[0] >= self._first and not edit[2].rstrip().endswith(IMPORT_MARK.strip())]
        mine = sorted([*imports, *others]) if others else []
        self._edits = sorted([*self._edits, *mine])
        function_source.remember(compile_edited(self._data, self._edits, str(self.path)))
        shift = self._first - len(self._before())
        return [(first - shift, last - shift, text) for first, last, text in mine]

    def tree(self, edits: Sequence[Edit]) -> ast.Module:
        """Return the syntax tree of the last cell, edited, at its lines in the file."""
        return edited_tree(self._cell(), edits, str(self.path)) if edits else ast.parse(self._cell(), str(self.path))

    def code(self, edits: Sequence[Edit]) -> CodeType:
        """Return the code of the last cell, edited, at its lines in the file."""
        return compile_edited(self._cell(), edits, str(self.path))

    def _cell(self) -> bytes:
        return self._before() + self._data[self._first :]

    def _before(self) -> bytes:
        return b"\n" * (self.lines.start - 1)

    def _write(self) -> None:
        try:
            self.path.write_bytes(self._data)
        except OSError as error:
            raise CannotRewrite(
                f"cannot write {str(self.path)!r}: {error.strerror or error}", "run in a folder that can be written"
            ) from error
        compiled_sources.keep(str(self.path), self._data)
