"""Reads in a program's code: the collections that its source iterates over, and the names read by code still to run.

A set of objects is in the order of their addresses. This order matters to code that iterates over the set, but not to
code that only tests for members. Code still to run is the rest of each frame's code, and the functions whose names it
reads. A name alone does not tell the object: a name that is found may belong to another one.
"""

from __future__ import annotations

import ast
import dis
import re
from collections.abc import Iterable, Iterator
from types import CodeType, FrameType
from typing import Final

from detrain.base.compiled_sources import by_file, source_of, tree_of
from detrain.python.inspect.held import walk
from detrain.python.inspect.live_names import codes_in, successors

_IN_ORDER: Final = frozenset(
    {
        *("list", "tuple", "iter", "next", "enumerate", "zip", "map", "filter", "sum", "reversed", "deque", "dict", "max", "min"),
        *("extend", "extendleft", "fromkeys", "fromiter", "chain", "product", "islice", "cycle", "accumulate"),
    }
)
"""Functions and methods that iterate over their arguments."""
_ANY_ORDER: Final = frozenset({"sorted", "any", "all", "len"})
_ANOTHER: Final = frozenset({"set", "frozenset", "copy"})
"""Functions that return a similar collection."""
_SAME: Final = frozenset({"copy", "union", "intersection", "difference", "values", "get", "setdefault"})
"""Methods that return the object's items, or a similar collection."""


def is_gone_over(path: str, files: Iterable[str]) -> bool:
    """Return whether source files iterate over the object at a path, judged by the last name in the path."""
    names = re.findall(r"[^\W\d]\w*", re.sub(r"\[[^]]*\]", "", path.partition(" in ")[0]))
    return bool(names) and any(names[-1] in names_gone_over(file) for file in files)


@by_file
def names_gone_over(file: str) -> frozenset[str]:
    """Return the names and attributes that a source file iterates over, also under another name or in a function."""
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
    """Yield the expressions that a node iterates over."""
    match node:
        case ast.For(iter=iterated) | ast.AsyncFor(iter=iterated):
            yield iterated
        case ast.ListComp(generators=parts) | ast.GeneratorExp(generators=parts) | ast.DictComp(generators=parts):
            yield from (each.iter for each in parts)
        case ast.Starred(value=value) | ast.YieldFrom(value=value) | ast.AugAssign(op=ast.Add(), value=value):
            yield value
        case ast.Assign(targets=[ast.Tuple() | ast.List()], value=value):
            yield value
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=given) if name in _IN_ORDER:
            yield from given
        case ast.Call(func=ast.Attribute(value, "pop"), args=[], keywords=[]):
            yield value


def _last(node: ast.AST) -> Iterator[str]:
    """Yield the last names of the objects that an expression may return."""
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
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[given, *_]) if name in _ANOTHER:
            yield from _last(given)
        case ast.Call(func=ast.Attribute(value, attr)) if attr in _SAME:
            yield from _last(value)


def names_ahead(frames: Iterable[FrameType], files: Iterable[str]) -> frozenset[str]:
    """Return the names of globals, attributes and methods that are read by the frames' code still to run, or by
    functions in the files that have such a name. Python itself calls methods like `__getitem__`: they count, too.
    """
    found = set().union(*(_behind(frame.f_code, frame.f_lasti) for frame in frames))
    functions = [each for file in files for each in _functions(file)]
    while True:
        reached = [each for each in functions if each.co_name in found or _is_called_by_python(each.co_name)]
        functions = [each for each in functions if each not in reached]
        if not reached:
            return frozenset(found)
        found.update(*(code.co_names for code in reached))


def _behind(code: CodeType, offset: int) -> set[str]:
    instructions = list(dis.get_instructions(code))
    position = {instruction.offset: index for index, instruction in enumerate(instructions)}
    following = successors(code, instructions, position)
    first = max((index for at, index in position.items() if at <= offset), default=0)
    found: set[str] = set()
    for index in walk([first], following.__getitem__, lambda index: index):
        value = instructions[index].argval
        if isinstance(value, CodeType):
            found.update(*(each.co_names for each in codes_in(value)))
        elif isinstance(value, str) and value in code.co_names:
            found.add(value)
    return found


@by_file
def _functions(file: str) -> list[CodeType]:
    try:
        whole = compile(source_of(file), file, "exec", dont_inherit=True)
    except (OSError, SyntaxError, ValueError):
        return []
    return list(codes_in(whole))[1:]


def _is_called_by_python(name: str) -> bool:
    return name.startswith("__") and name.endswith("__") and name != "__init__"
