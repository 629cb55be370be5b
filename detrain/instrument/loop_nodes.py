"""What libcst says of a loop: its header, its counter, where its iterable stands. For `rewriter`.

Nothing here changes a source.
"""

from __future__ import annotations

from collections.abc import Mapping

import libcst as cst
from libcst.metadata import CodeSpan

AnyLoop = cst.For | cst.While


def all_loops(tree: cst.Module) -> list[AnyLoop]:
    """Return the loops of a source, outer ones before those in them."""
    found: list[AnyLoop] = []

    class Visitor(cst.CSTVisitor):
        def visit_For(self, node: cst.For) -> None:
            found.append(node)

        def visit_While(self, node: cst.While) -> None:
            found.append(node)

    tree.visit(Visitor())
    return found


def counter_name(loop: AnyLoop) -> str:
    """Return the name that counts the loop's turns, as far as the header shows one, else the empty string."""
    if isinstance(loop, cst.While):
        return ""
    target = loop.target
    iterable: cst.BaseExpression = loop.iter
    while isinstance(iterable, cst.Call):
        name = iterable.func.value if isinstance(iterable.func, cst.Name) else ""
        if name == "range":
            return target.value if isinstance(target, cst.Name) else ""
        if name == "enumerate":
            first = target.elements[0].value if isinstance(target, cst.Tuple) else None
            return first.value if isinstance(first, cst.Name) else ""
        if name == "zip" or not iterable.args:
            break
        iterable = iterable.args[0].value
    return ""


def takes_in(loop: AnyLoop, *, is_known: bool = False) -> bool:
    """Return whether a generator takes in, in its loop, what its caller sends: itself, or by `yield from` another one,
    of whose returned value nobody knows what it is; but for a library's that `is_known`.
    """
    taken = _SentValues(is_known=is_known)
    loop.body.visit(taken)
    return taken.is_found


def outer_span(node: cst.BaseExpression, spans: Mapping[cst.CSTNode, CodeSpan]) -> tuple[int, int]:
    """Return where an expression starts and ends, its own parentheses included."""
    first, last = (node.lpar[0], node.rpar[-1]) if node.lpar else (node, node)
    return spans[first].start, spans[last].start + spans[last].length


def touches_in(source: bytes, first: int) -> bool:
    """Return whether an iterable stands right behind its `in`."""
    return source[first - 1 : first] == b"n"


class _SentValues(cst.CSTVisitor):
    """Finds out if a generator takes in what its caller sends: the value of a `yield` is used."""

    def __init__(self, *, is_known: bool) -> None:
        self.is_found, self._is_known = False, is_known

    def visit_FunctionDef(self, _node: cst.FunctionDef) -> bool:
        return False

    def visit_Lambda(self, _node: cst.Lambda) -> bool:
        return False

    def visit_Expr(self, node: cst.Expr) -> bool:
        return not isinstance(node.value, cst.Yield)

    def visit_Yield(self, node: cst.Yield) -> None:
        self.is_found |= not (self._is_known and isinstance(node.value, cst.From))
