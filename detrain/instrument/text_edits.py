"""Insertions into a source file: applied to its text, and undone in the line and column numbers of the compiled code.

An edit is (first byte, last byte, text): the text replaces the bytes of the source in that range (mostly none). The
code compiled from an edited source has the positions of the original, so that tracebacks show the user's lines.
"""

from __future__ import annotations

import ast
import bisect
import tokenize
import warnings
from collections.abc import Sequence
from types import CodeType
from typing import Any

from detrain.base.compiled_sources import parse

Edit = tuple[int, int, str]
"""(first byte, last byte, text), positions in the source as UTF-8."""


def decode_source(data: bytes) -> tuple[str, str]:
    """Return the text of a source file, with unchanged line ends, and its encoding (PEP 263)."""
    lines = iter(data.splitlines(keepends=True))  # a lone carriage return ends a line, too
    encoding, _lines = tokenize.detect_encoding(lambda: next(lines, b""))
    return data.decode(encoding), encoding


def apply(source: bytes, edits: Sequence[Edit]) -> bytes:
    """Return UTF-8 source with the edits made."""
    parts: list[bytes] = []
    position = 0
    for first, last, text in sorted(edits):
        parts += [source[position:first], text.encode()]
        position = last
    return b"".join([*parts, source[position:]])


def compile_edited(data: bytes, edits: Sequence[Edit], filename: str) -> CodeType:
    """Compile a source file with edits. Positions in the code, errors and warnings are those of the original file."""
    null = data.find(b"\0")
    if null >= 0:  # for bytes, `compile` reports less than Python does for a file
        lines = data[:null].splitlines(keepends=True)
        begun = lines.pop() if lines and not lines[-1].endswith((b"\r", b"\n")) else b""
        where = (filename, len(lines) + 1, None, begun.decode(errors="replace"))
        raise SyntaxError("source code cannot contain null bytes", where)
    code = compile(data, filename, "exec", dont_inherit=True)
    if not edits:
        return code
    with warnings.catch_warnings(action="ignore"):
        return compile(edited_tree(data, edits, filename), filename, "exec", dont_inherit=True)


def edited_tree(data: bytes, edits: Sequence[Edit], filename: str) -> ast.Module:
    """Return the syntax tree of a source file with edits; all positions in it are those of the original."""
    source = decode_source(data)[0].encode()
    edited = apply(source, edits)
    tree = parse(edited.decode(), filename)  # as text: it is UTF-8 now, whatever its coding comment says
    back = _Back(source, edited, edits)
    nodes = list(ast.walk(tree))
    for node in reversed(nodes):  # inner nodes first: a block that ends with an insertion ends with what is before it
        if hasattr(node, "lineno") and back.ends_new(node):
            inner = [each for each in ast.iter_child_nodes(node) if hasattr(each, "lineno") and not back.is_new(each)]
            ends = [(each.end_lineno, each.end_col_offset) for each in inner]  # type: ignore[attr-defined]
            node.end_lineno, node.end_col_offset = max(ends, default=(node.end_lineno, node.end_col_offset))  # type: ignore[attr-defined]
    for node in nodes:
        if hasattr(node, "lineno"):
            node.lineno, node.col_offset = back.position(node.lineno, node.col_offset)  # type: ignore[attr-defined]
            node.end_lineno, node.end_col_offset = back.position(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]
    return tree


def around(value: ast.expr, starts: Sequence[int], probe: str) -> list[Edit]:
    """Return the insertions that pass a value to a probe; `starts` are the offsets of the lines of its source."""
    assert value.end_lineno is not None
    assert value.end_col_offset is not None
    first = starts[value.lineno - 1] + value.col_offset
    last = starts[value.end_lineno - 1] + value.end_col_offset
    return [(first, first, f"{probe}(("), (last, last, "))")]


def line_starts(text: bytes) -> list[int]:
    """Return the offset at which each line of a source starts."""
    return [start for start, _end in _line_spans(text)]


class _Back:
    """A map from (line, byte column) in the edited text to those in the original."""

    def __init__(self, source: bytes, edited: bytes, edits: Sequence[Edit]) -> None:
        self._edited_lines = _line_spans(edited)
        self._source_starts = line_starts(source)
        self._marks: list[tuple[int, int, int]] = []  # (start in edited, length of text, last byte in source)
        shift = 0
        for first, last, text in sorted(edits):
            length = len(text.encode())
            self._marks.append((first + shift, length, last))
            shift += length - (last - first)
        self._starts = [mark[0] for mark in self._marks]

    def is_new(self, node: Any) -> bool:
        """Return whether a node begins inside of an insertion."""
        return self._is_inside(node.lineno, node.col_offset)

    def ends_new(self, node: Any) -> bool:
        """Return whether a node ends inside of an insertion, and not right before it, and does not begin there."""
        return self._is_inside(node.end_lineno, node.end_col_offset - 1) and not self.is_new(node)

    def _is_inside(self, line: int, column: int) -> bool:
        offset = self._edited_lines[line - 1][0] + column
        index = bisect.bisect_right(self._starts, offset) - 1
        return index >= 0 and offset < self._starts[index] + self._marks[index][1]

    def position(self, line: int, column: int) -> tuple[int, int]:
        start, end = self._edited_lines[line - 1]
        inside = min(column, end - start)  # Python 3.11 places parts of some f-strings beyond the end of their line
        offset = self._original(start + inside)
        index = bisect.bisect_right(self._source_starts, offset) - 1
        return index + 1, offset - self._source_starts[index] + column - inside

    def _original(self, offset: int) -> int:
        index = bisect.bisect_right(self._starts, offset) - 1
        if index < 0:
            return offset
        start, length, last = self._marks[index]
        return last + max(offset - start - length, 0)


def _line_spans(data: bytes) -> list[tuple[int, int]]:
    """Return the start of each line, and its end without the line end."""
    spans, start = [], 0
    for line in data.splitlines(keepends=True):
        spans.append((start, start + len(line.rstrip(b"\r\n"))))
        start += len(line)
    return spans or [(0, 0)]
