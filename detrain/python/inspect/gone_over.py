"""What a program goes over, as far as its source shows it: the order of a set of objects is that of their addresses,
which matters to who goes over it, and to nobody who asks what is in it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from typing import Final

from detrain.base.compiled_sources import by_file, tree_of

_IN_ORDER: Final = frozenset(
    {"list", "tuple", "iter", "next", "enumerate", "zip", "map", "filter", "sum", "reversed", "deque", "dict"}
)
"""Functions that take what they are given one by one, in its order."""
_ANY_ORDER: Final = frozenset({"sorted", "set", "frozenset", "any", "all", "len"})
_SAME: Final = frozenset({"copy", "union", "intersection", "difference", "values", "get", "setdefault"})
"""Methods that give what is in, or of, the object that they are asked of."""


def is_gone_over(path: str, files: Iterable[str]) -> bool:
    """Return whether source files go over what a path leads to, by the last name in it."""
    names = re.findall(r"[^\W\d]\w*", re.sub(r"\[[^]]*\]", "", path.partition(" in ")[0]))
    return bool(names) and any(names[-1] in names_gone_over(file) for file in files)


@by_file
def names_gone_over(file: str) -> frozenset[str]:
    """Return the names and attributes that a source file goes over, under another name or in a function, too."""
    nodes = list(ast.walk(tree_of(file)))
    found = {name for node in nodes for each in _gone_over(node) for name in _last(each)}
    for node in nodes:
        if isinstance(node, ast.Assign) and any(isinstance(each, ast.Name) and each.id in found for each in node.targets):
            found |= set(_last(node.value))
    going = {
        node.name
        for node in nodes
        if isinstance(node, ast.FunctionDef) and any(each.arg in found for each in (*node.args.args, *node.args.kwonlyargs))
    }
    for node in nodes:
        if isinstance(node, ast.Call) and going.intersection(_last(node.func)):
            given = [*node.args, *(each.value for each in node.keywords)]
            found |= {name for each in given for name in _last(each)}
    return frozenset(found)


def _gone_over(node: ast.AST) -> Iterator[ast.expr]:
    """Yield what a node goes over in its order."""
    match node:
        case ast.For(iter=iterated) | ast.AsyncFor(iter=iterated):
            yield iterated
        case ast.ListComp(generators=parts) | ast.GeneratorExp(generators=parts) | ast.DictComp(generators=parts):
            yield from (each.iter for each in parts)
        case ast.Starred(value=value):
            yield value
        case ast.Call(func=ast.Name(id), args=given) if id in _IN_ORDER:
            yield from given
        case ast.Call(func=ast.Attribute(value, "pop"), args=[], keywords=[]):
            yield value


def _last(node: ast.AST) -> Iterator[str]:
    """Yield the last names of what an expression may give."""
    match node:
        case ast.Name(id):
            yield id
        case ast.Attribute(_, attr):
            yield attr
        case ast.Subscript(value):
            yield from _last(value)
        case ast.BinOp(left, _, right):
            yield from (*_last(left), *_last(right))
        case ast.IfExp(_, body, orelse):
            yield from (*_last(body), *_last(orelse))
        case ast.Call(func=ast.Name(id)) if id in _ANY_ORDER:
            return
        case ast.Call(func=ast.Attribute(value, attr)) if attr in _SAME:
            yield from _last(value)
