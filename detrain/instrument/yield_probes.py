"""A probe in every generator of the program: how often it has yielded is its position, and Python does not tell.

`yield value` becomes `yield _detrain_yield((value))`, in memory only, and so does the value of a generator expression
that is assigned or returned: one that is used up where it stands has no position to keep, and is left as fast as it is.
A generator that hands on another's values by `yield from` is left alone, and so is one that takes something in: what
was sent cannot be sent again.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from detrain.base.source_parsing import parse
from detrain.instrument.text_edits import Edit, around, decode_source, line_starts

PROBE: Final = "_detrain_yield"
"""A name among the built-ins, where a run puts it."""

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
        alone = {id(node.value) for node in ast.walk(function) if isinstance(node, ast.Expr)}
        if any(isinstance(node, ast.YieldFrom) or id(node) not in alone for node in yields):
            continue
        for node in yields:
            value = node.value if isinstance(node, ast.Yield) else None
            if value is not None:
                edits += around(value, starts, PROBE)
            elif node.end_lineno is not None and node.end_col_offset is not None:
                place = starts[node.end_lineno - 1] + node.end_col_offset
                edits.append((place, place, f" {PROBE}(None)"))
    for statement in ast.walk(tree):
        kept = statement.value if isinstance(statement, ast.Assign | ast.AnnAssign | ast.Return) else None
        if isinstance(kept, ast.GeneratorExp) and not _is_async(kept):
            edits += around(kept.elt, starts, PROBE)
    return edits


def _is_async(node: ast.GeneratorExp) -> bool:
    return any(isinstance(each, ast.Await) or (isinstance(each, ast.comprehension) and each.is_async) for each in ast.walk(node))


def _own_yields(node: ast.AST) -> Iterator[ast.Yield | ast.YieldFrom]:
    """Yield the `yield`s of a function itself, innermost last."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Yield | ast.YieldFrom):
            yield child
        if not isinstance(child, _Function | ast.Lambda | ast.ClassDef):
            yield from _own_yields(child)
