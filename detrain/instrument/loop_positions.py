"""The places of loops in a source file: the loops around a position, within the function that has the position."""

from __future__ import annotations

import ast
import os
from dataclasses import dataclass
from functools import lru_cache
from types import FrameType

from detrain.base.compiled_sources import by_file, parse, source_of
from detrain.base.structure import AnyLoop

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


@dataclass(frozen=True, slots=True)
class SourcePosition:
    """A place in a source file: one-based lines, zero-based columns in bytes."""

    line: int
    column: int
    end: tuple[int, int] = (0, 0)
    """(line, column) of the end of the expression, if Python knows it."""

    @property
    def start(self) -> tuple[int, int]:
        """(line, column)."""
        return self.line, self.column


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A parsed source file."""

    file: str
    tree: ast.Module

    def loops_around(self, line: int, column: int) -> list[AnyLoop]:
        """Return the loops with a position in their bodies (one-based line, zero-based column in bytes), outermost
        first.
        """
        found: list[AnyLoop] = []
        _descend(self.tree, (line, column), found)
        return found

    def calls_at(self, place: SourcePosition) -> list[ast.Call]:
        """Return the calls at a position: first those with exactly its start and end, then the others that cover its
        line, the outermost first.
        """
        calls = [node for node in ast.walk(self.tree) if isinstance(node, ast.Call) and node.lineno <= place.line <= _end(node)[0]]
        return sorted(calls, key=lambda call: (call.lineno, call.col_offset, *_end(call)) != (*place.start, *place.end))


@by_file
def read_source(file: str) -> SourceFile | None:
    """Return a source file, or None if it cannot be parsed."""
    try:
        return SourceFile(file, parse(source_of(file)))
    except (OSError, SyntaxError, ValueError):
        return None


@lru_cache(maxsize=1024)
def real_path(filename: str) -> str:
    """Return the path of a source file without links."""
    return os.path.realpath(filename)


def position(frame: FrameType) -> SourcePosition:
    """Return the source position of a suspended frame."""
    for index, (line, end_line, column, end_column) in enumerate(frame.f_code.co_positions()):
        if index == frame.f_lasti // 2:
            if line is None or column is None or end_line is None or end_column is None:
                break
            return SourcePosition(line, column, (end_line, end_column))
    return SourcePosition(frame.f_lineno, 1 << 30)  # no columns (-X no_debug_ranges): the end of the line


def body_lines(loop: AnyLoop) -> range:
    """Return the lines of a loop's body, without the header's own line."""
    return range(max(loop.body[0].lineno, loop.lineno + 1), _end(loop.body[-1])[0] + 1)


def _descend(node: ast.AST, place: tuple[int, int], found: list[AnyLoop]) -> None:
    for child in ast.iter_child_nodes(node):
        if hasattr(child, "lineno") and not _holds(child, place):
            continue
        if isinstance(child, _FUNCTIONS) and any(_holds(part, place) for part in _body(child)):
            found.clear()
        elif isinstance(child, AnyLoop) and any(_holds(statement, place) for statement in child.body):
            found.append(child)
        _descend(child, place, found)


def _body(function: ast.AST) -> list[ast.AST]:
    body = function.body  # type: ignore[attr-defined]
    return body if isinstance(body, list) else [body]


def _holds(node: ast.AST, place: tuple[int, int]) -> bool:
    return (node.lineno, node.col_offset) <= place <= _end(node)  # type: ignore[attr-defined]


def _end(node: ast.AST) -> tuple[int, int]:
    return node.end_lineno or 0, node.end_col_offset or 0  # type: ignore[attr-defined]
