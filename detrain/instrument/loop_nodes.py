"""Facts about a loop, read from the syntax tree and the text, for `rewriter`: its header, its counter, the place of its
iterable.

No function here changes a source. Places are offsets in the source as UTF-8, in bytes.
"""

from __future__ import annotations

import ast
import re
from typing import Final

from detrain.base.structure import AnyLoop
from detrain.instrument.syntax import arguments_of
from detrain.instrument.text_edits import line_starts

_GAP: Final = rb"(?:[\s\\]|#[^\r\n]*)*"
"""The characters that may stand between two tokens inside parentheses or in a continued line."""
_COMMENT: Final = re.compile(rb"#[^\r\n]*")
_CLOSERS: Final = re.compile(rb"(?:%b\))*" % _GAP)
_CLOSER: Final = re.compile(rb"%b\)" % _GAP)
_IN: Final = re.compile(rb"(?:%b[),])*%bin" % (_GAP, _GAP))
_COLON: Final = re.compile(rb"(?:%b[),])*%b:(?P<line_end>[ \t\f]*(?:#[^\r\n]*)?[\r\n])?" % (_GAP, _GAP))
_CONTINUED: Final = rb"(?:[ \t\f]|\\(?:\r\n|\r|\n))*"
_SEMICOLON: Final = re.compile(rb"%b;%b" % (_CONTINUED, _CONTINUED))


class Places:
    """The places of a syntax tree's nodes in the source from which it was made."""

    def __init__(self, source: bytes) -> None:
        self._source, self._starts = source, line_starts(source)

    def of(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Return the start and the end of a node, without parentheses around an expression."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._starts[node.lineno - 1] + node.col_offset, self._starts[node.end_lineno - 1] + node.end_col_offset

    def of_iterable(self, loop: ast.For | ast.AsyncFor) -> tuple[int, int]:
        """Return the start and the end of a loop's iterable, parentheses around it included."""
        found = _IN.match(self._source, self.of(loop.target)[1])
        assert found
        return self.around(loop.iter, found.end())

    def around(self, node: ast.expr, low: int) -> tuple[int, int]:
        """Return the start and the end of an expression, parentheses around it included; `low` is the end of the token
        before these.
        """
        first, last = self.of(node)
        opening = self._without_comments(low, first)
        for _ in range(opening.count(b"(")):
            closer = _CLOSER.match(self._source, last)
            assert closer
            last = closer.end()
        return low + opening.index(b"(") if b"(" in opening else first, last

    def is_bare_tuple(self, node: ast.expr) -> bool:
        """Return True if an expression is a tuple without parentheses of its own."""
        if not (isinstance(node, ast.Tuple) and node.elts):
            return False
        first, last = self.of(node.elts[0])
        closers = _CLOSERS.match(self._source, last)
        assert closers
        return self._without_comments(self.of(node)[0], first).count(b"(") == self._without_comments(*closers.span()).count(b")")

    def has_block(self, loop: AnyLoop) -> bool:
        """Return True if the body of a loop stands on lines of its own."""
        colon = _COLON.match(self._source, self.of(loop.test if isinstance(loop, ast.While) else loop.iter)[1])
        return colon is not None and colon["line_end"] is not None

    def lines_of(self, body: list[ast.stmt]) -> list[list[ast.stmt]]:
        """Return the statements of a body in lists, one list for all statements that semicolons join on one line."""
        lines: list[list[ast.stmt]] = []
        for each in body:
            if lines and _SEMICOLON.fullmatch(self._source, self.of(lines[-1][-1])[1], self.of(each)[0]):
                lines[-1].append(each)
            else:
                lines.append([each])
        return lines

    def _without_comments(self, first: int, last: int) -> bytes:
        return _COMMENT.sub(lambda found: b" " * len(found[0]), self._source[first:last])


def counter_name(loop: AnyLoop) -> str:
    """Return the name that counts the loop's turns, if the header shows one, else the empty string."""
    if isinstance(loop, ast.While):
        return ""
    target, iterable = loop.target, loop.iter
    while isinstance(iterable, ast.Call):
        name = iterable.func.id if isinstance(iterable.func, ast.Name) else ""
        if name == "enumerate":
            target = target.elts[0] if isinstance(target, ast.Tuple) else loop.iter
        if name in ("range", "enumerate"):
            return target.id if isinstance(target, ast.Name) else ""
        given = arguments_of(iterable)
        if name == "zip" or not given:
            break
        iterable = given[0].value if isinstance(given[0], ast.Starred) else given[0]
    return ""


def takes_in(loop: AnyLoop, *, is_known: bool = False) -> bool:
    """Return True if a generator uses, in its loop, a value that its caller sends: the value of a `yield`, or that of a
    `yield from` another generator. The latter does not count in a library's loop that `is_known`.
    """

    def is_taken(node: ast.AST) -> bool:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return False
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Yield | ast.YieldFrom):
            return False
        is_sent = isinstance(node, ast.Yield) or (isinstance(node, ast.YieldFrom) and not is_known)
        return is_sent or any(map(is_taken, ast.iter_child_nodes(node)))

    return any(map(is_taken, loop.body))
