"""Marks on the loops of the program that may train: a mark reports that its loop is entered. In memory only, for a
traced run.

`for x in data:` becomes `for x in _detrain_enter((data), 7):`, and a `while` gets the line `_detrain_enter(None, 7)`
before it. That costs a call each time the loop is entered, and nothing for its turns. Loops without a call in their
body update no weights and get no mark. Neither do loops in decorated functions: the decorator may be a compiler that
does not know the mark.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from detrain.base.compiled_sources import parse
from detrain.instrument.text_edits import Edit, decode_source, line_starts

MARK: Final = "_detrain_enter"
"""The name of the mark's function: a traced run puts it among the built-ins."""


def edits_for_marks(source: bytes, first_number: int) -> tuple[list[Edit], list[int]]:
    """Return the insertions for a source file, and the line of each marked loop, in the order of their numbers.

    Both are empty for a file that is no Python.
    """
    try:
        tree = parse(source)
        text = decode_source(source)[0].encode()
    except (SyntaxError, ValueError):
        return [], []
    starts = line_starts(text)
    edits: list[Edit] = []
    lines: list[int] = []
    for loop in _loops(tree):
        number = first_number + len(lines)
        if isinstance(loop, ast.While):
            start = starts[loop.lineno - 1]
            indent = text[start : start + loop.col_offset].decode()
            if indent.strip():
                continue
            edits.append((start, start, f"{indent}{MARK}(None, {number})\n"))
        else:
            iterable = loop.iter
            first = starts[iterable.lineno - 1] + iterable.col_offset
            last = starts[(iterable.end_lineno or 0) - 1] + (iterable.end_col_offset or 0)
            edits += [(first, first, f" {MARK}(("), (last, last, f"), {number})")]
        lines.append(loop.lineno)
    return edits, lines


def _loops(node: ast.AST) -> Iterator[ast.For | ast.While]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and not all(map(_is_harmless, child.decorator_list)):
            continue
        if isinstance(child, ast.For | ast.While) and _calls(child):
            yield child
        yield from _loops(child)


def _is_harmless(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Name) and decorator.id in ("staticmethod", "classmethod", "property")


def _calls(loop: ast.For | ast.While) -> bool:
    return any(isinstance(node, ast.Call) for statement in loop.body for node in ast.walk(statement))
