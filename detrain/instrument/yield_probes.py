"""A probe in every generator of the program: how often it has yielded is its position, and Python does not tell.

`yield value` becomes `yield _detrain_yield((value)); _detrain_begun()`, in memory only, and the generator's first
statement is preceded by `_detrain_begun()`, which says that it is asked for the next value. So does the value of a
generator expression that is assigned or returned, but for the latter: one that is used up where it stands has no
position to keep, and is left as fast as it is.
A generator that hands on another's values by `yield from` is left alone, and so is one that takes something in: what
was sent cannot be sent again.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Any, Final

from detrain.base.compiled_sources import parse
from detrain.instrument.text_edits import Edit, around, decode_source, line_starts

PROBE: Final = "_detrain_yield"
BEGUN: Final = "_detrain_begun"
"""Names among the built-ins, where a run puts them."""

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def edits_for_yields(source: bytes) -> list[Edit]:
    """Return the insertions for a source file; none if it is no Python."""
    try:
        tree = parse(source)
        text = decode_source(source)[0].encode()
    except (SyntaxError, ValueError):
        return []
    starts = line_starts(text)
    edits: list[Edit] = []
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        yields = list(_own_yields(function))
        alone = {id(node.value): node for node in ast.walk(function) if isinstance(node, ast.Expr)}
        if not yields or any(isinstance(node, ast.YieldFrom) or id(node) not in alone for node in yields):
            continue
        edits += _at_start(function.body, starts)
        for node in yields:
            value = node.value if isinstance(node, ast.Yield) else None
            if value is not None:
                edits += around(value, starts, PROBE)
            elif node.end_lineno is not None and node.end_col_offset is not None:
                place = starts[node.end_lineno - 1] + node.end_col_offset
                edits.append((place, place, f" {PROBE}(None)"))
            place = _end(alone[id(node)], starts)
            edits.append((place, place, f"; {BEGUN}()"))
    for statement in ast.walk(tree):
        kept = statement.value if isinstance(statement, ast.Assign | ast.AnnAssign | ast.Return) else None
        if isinstance(kept, ast.GeneratorExp) and not _is_async(kept):
            edits += around(kept.elt, starts, PROBE)
    return edits


def _at_start(body: list[ast.stmt], starts: list[int]) -> list[Edit]:
    """Return the insertions that call the probe before a function's first statement; none before a definition in it."""
    first = next((each for each in body if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))), body[-1])
    if isinstance(first, ast.Try):
        return _at_start(first.body, starts)
    for kinds, part in _HEADS:
        if isinstance(first, kinds):
            return around(part(first), starts, BEGUN)
    if isinstance(first, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.AsyncFor | ast.AsyncWith | ast.TryStar):
        return []
    place = starts[first.lineno - 1] + first.col_offset
    return [(place, place, f"{BEGUN}(); ")]


_HEADS: Final[tuple[tuple[type[ast.stmt], Callable[[Any], ast.expr]], ...]] = (
    (ast.For, lambda node: node.iter),
    (ast.While, lambda node: node.test),
    (ast.If, lambda node: node.test),
    (ast.With, lambda node: node.items[0].context_expr),
    (ast.Match, lambda node: node.subject),
)
"""Statements that none can precede on their line, and what of each is computed first."""


def _end(node: ast.stmt, starts: list[int]) -> int:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return starts[node.end_lineno - 1] + node.end_col_offset


def _is_async(node: ast.GeneratorExp) -> bool:
    return any(isinstance(each, ast.Await) or (isinstance(each, ast.comprehension) and each.is_async) for each in ast.walk(node))


def _own_yields(node: ast.AST) -> Iterator[ast.Yield | ast.YieldFrom]:
    """Yield the `yield`s of a function itself, innermost last."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Yield | ast.YieldFrom):
            yield child
        if not isinstance(child, _Function | ast.Lambda | ast.ClassDef):
            yield from _own_yields(child)
