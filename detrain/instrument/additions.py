"""The comparison of two versions of a source by their syntax trees: which statements were added, if only that was done.

A list of statements has only grown if removing some of them leaves the earlier list. A statement is the same if its
tree is the same except for the lists of statements in it, which may have grown in turn.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from detrain.base.compiled_sources import parse
from detrain.base.structure import bound_names
from detrain.instrument.text_edits import Edit, apply, decode_source, line_starts

_Block = ast.stmt | ast.ExceptHandler | ast.match_case


class Changed(NamedTuple):
    """A statement of the earlier source that was changed or removed."""

    line: int
    """Its line in the earlier source, one-based."""
    text: str


@dataclass(frozen=True)
class Addition:
    """A statement that was added, with the statements inside it."""

    line: int
    """Its line in the new source, one-based."""
    text: str
    """Its first line of text."""
    begin: int
    end: int
    """With `begin`: its byte offsets in the source as UTF-8."""
    starts: tuple[int, ...]
    """The line of each statement in it, its own first."""
    is_store: bool
    """True if it writes to a place that other code may read: an attribute, an element, a name of another scope, or a
    name by `+=`."""
    rebinds: tuple[str, ...]
    """The names that it binds, if it stands in a loop or function."""


def additions(earlier: bytes, now: bytes) -> list[Addition] | Changed:
    """Return the statements that were added to a source, in their order; or the first statement of the earlier source
    that was changed or removed. Raises SyntaxError if one of the two is no Python.
    """
    source = decode_source(now)[0].encode()
    text = decode_source(earlier)[0]
    starts, lines = line_starts(source), text.splitlines()
    found = _grown(parse(text).body, parse(source.decode()).body, 0)
    if isinstance(found, ast.AST):
        line = found.lineno
        return Changed(line, lines[line - 1].strip() if line <= len(lines) else "")
    return [_addition(node, depth, source, starts) for node, depth in sorted(found, key=lambda each: each[0].lineno)]


def without(now: bytes, left_out: Collection[Addition]) -> bytes:
    """Return a source with some additions replaced by `pass` or `()`; all other lines stay where they are."""
    text, encoding = decode_source(now)
    source, edits = text.encode(), list[Edit]()
    for each in left_out:
        lines = source[each.begin : each.end].count(b"\n")
        edits.append((each.begin, each.end, "(" + "\n" * lines + ")" if lines else "pass"))
    return apply(source, edits).decode().encode(encoding)


def _grown(earlier: Sequence[ast.stmt], now: Sequence[ast.stmt], depth: int) -> list[tuple[ast.stmt, int]] | ast.stmt:
    """Return the statements, with their depths, that were added to an earlier list; or an earlier statement that was
    changed or removed.

    Each earlier statement is matched with the first new one that fits: if any choice works, this one does.
    """
    added: list[tuple[ast.stmt, int]] = []
    rest = list(now)
    for statement in earlier:
        passed: list[tuple[ast.stmt, int]] = []
        closest: ast.stmt | None = None
        while rest:
            candidate = rest.pop(0)
            found = _within(statement, candidate, depth)
            if isinstance(found, list):
                added += [*passed, *found]
                break
            closest = closest or found
            passed.append((candidate, depth))
        else:
            return closest or statement
    return [*added, *((each, depth) for each in rest)]


def _within(earlier: _Block, now: _Block, depth: int) -> list[tuple[ast.stmt, int]] | ast.stmt | None:
    """Return the statements that were added inside a statement; or one inside it that was changed, if the statement is
    otherwise the same; or None if it is another statement.
    """
    if type(earlier) is not type(now) or _header(earlier) != _header(now):
        return None
    inside = depth + isinstance(now, ast.For | ast.AsyncFor | ast.While | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    added: list[tuple[ast.stmt, int]] = []
    for (_field, block), (_same, other) in zip(_blocks(earlier), _blocks(now), strict=True):
        if block and not isinstance(block[0], ast.stmt):  # handlers, cases
            parts = [_within(one, two, inside) for one, two in zip(block, other, strict=True)]
        else:
            parts = [_grown(block, other, inside)]  # type: ignore[arg-type]
        for part in parts:
            if not isinstance(part, list):
                return part
            added += part
    return added


def _blocks(node: _Block) -> Iterator[tuple[str, list[_Block]]]:
    """Yield the lists of statements, handlers and cases in a statement, by the field's name."""
    for name in ("body", "handlers", "cases", "orelse", "finalbody"):
        value = getattr(node, name, None)
        if isinstance(value, list):
            yield name, value


def _header(node: _Block) -> str:
    """Return a statement as text, without the lists of statements in it; handlers and cases have their own headers."""
    lists = dict(_blocks(node))
    parts = [f"{name}={_dump(value)}" for name, value in ast.iter_fields(node) if name not in lists]
    parts += [f"{name}={[_header(each) for each in block]}" for name, block in lists.items() if name in ("handlers", "cases")]
    return "\n".join(parts)


def _dump(value: object) -> str:
    if isinstance(value, ast.AST):
        return ast.dump(value)
    return repr([_dump(each) for each in value]) if isinstance(value, list) else repr(value)


def _addition(node: ast.stmt, depth: int, source: bytes, starts: Sequence[int]) -> Addition:
    first, column = node.lineno, node.col_offset
    for decorator in getattr(node, "decorator_list", ()):
        first = min(first, decorator.lineno)
    begin = starts[first - 1] + column
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    end = starts[node.end_lineno - 1] + node.end_col_offset
    inside = [each for each in ast.walk(node) if isinstance(each, ast.stmt)]
    text = source[begin:end].decode().splitlines()[0].strip()
    return Addition(
        node.lineno,
        text,
        begin,
        end,
        tuple(each.lineno for each in inside),
        any(map(_stores, ast.walk(node))),
        bound_names([node]) if depth else (),
    )


def _stores(node: ast.AST) -> bool:
    is_place = isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del)
    return is_place or isinstance(node, ast.Global | ast.Nonlocal | ast.AugAssign | ast.Delete)
