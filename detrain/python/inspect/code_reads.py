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
from typing import Final, NamedTuple

from detrain.base.compiled_sources import by_file, source_of, tree_of
from detrain.python.inspect.held import walk
from detrain.python.inspect.live_names import codes_in, successors

_ANY_ORDER: Final = frozenset({"sorted", "any", "all", "len", "bool", "id", "type", "isinstance", "hasattr", "getattr", "setattr"})
"""Functions that take a collection whatever its order is."""
_KEPT: Final = frozenset({"add", "append", "appendleft", "discard", "index", "insert", "put", "remove"})
"""Methods that keep a collection, or look for it, as one item."""
_OF_SETS: Final = frozenset({"update", "issubset", "issuperset", "isdisjoint", "symmetric_difference"})
"""Methods of sets: the result depends on the members alone."""
_ANOTHER: Final = frozenset({"set", "frozenset", "copy", "deepcopy"})
"""Functions that return a similar collection."""
_SAME: Final = frozenset({"copy", "union", "intersection", "difference", "values", "get", "setdefault"})
"""Methods that return the object's items, or a similar collection."""
_ORDER_FREE: Final = _ANY_ORDER | _KEPT | _OF_SETS | _ANOTHER | _SAME


class _Reads(NamedTuple):
    """What a source file does with names. A name may also be an attribute's."""

    gone_over: frozenset[str]
    """Names that a loop or the like goes over."""
    assigned: tuple[tuple[str, frozenset[str]], ...]
    """A name, and those whose objects it may get."""
    given: tuple[tuple[str, frozenset[str]], ...]
    """A function, and the names whose objects it may be given."""
    functions: tuple[tuple[str, frozenset[str]], ...]
    """The file's own functions and classes, and the names of their parameters or fields."""


def is_gone_over(path: str, files: Iterable[str]) -> bool:
    """Return whether source files iterate over the object at a path, judged by the last name in the path."""
    names = re.findall(r"[^\W\d]\w*", re.sub(r"\[[^]]*\]", "", path.partition(" in ")[0]))
    return bool(names) and names[-1] in _names_gone_over([_reads(file) for file in files])


def _names_gone_over(reads: Iterable[_Reads]) -> set[str]:
    """Return the names and attributes that source files iterate over, also under another name or in a function.

    A function of a library may iterate over its arguments, unless it is known to take them in any order.
    """
    reads = list(reads)
    found = set().union(*(each.gone_over for each in reads))
    own = [function for each in reads for function in each.functions]
    known = _ORDER_FREE.union(name for name, _parameters in own)
    found |= {name for each in reads for called, names in each.given if called not in known for name in names}
    found |= {name for each in reads for target, names in each.assigned if target in found for name in names}
    going = {name for name, parameters in own if parameters & found}
    return found.union(*(names for each in reads for called, names in each.given if called in going))


@by_file
def _reads(file: str) -> _Reads:
    nodes = list(ast.walk(tree_of(file)))
    assigned = [node for node in nodes if isinstance(node, ast.Assign)]
    calls = [(node, name) for node in nodes if isinstance(node, ast.Call) for name in _last(node.func)]
    return _Reads(
        frozenset(name for node in nodes for each in _gone_over(node) for name in _last(each)),
        tuple((each.id, _all_last(node.value)) for node in assigned for each in node.targets if isinstance(each, ast.Name)),
        tuple((name, _all_last(*node.args, *(each.value for each in node.keywords))) for node, name in calls),
        tuple(each for node in nodes for each in _functions_in(node)),
    )


def _functions_in(node: ast.AST) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield (name, parameters) of a function that a node defines, or (name, parameters or fields) of a class."""
    match node:
        case ast.FunctionDef(name, args) | ast.AsyncFunctionDef(name, args):
            yield name, _parameters(args)
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Lambda(args)):
            yield name, _parameters(args)
        case ast.ClassDef(name, body=body):
            makers = [each.args for each in body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
            fields = [each.target.id for each in body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)]
            if makers or fields:
                yield name, frozenset(fields).union(*map(_parameters, makers))


def _parameters(arguments: ast.arguments) -> frozenset[str]:
    every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg)
    return frozenset(each.arg for each in every if each is not None)


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
        case ast.Call(func=ast.Attribute(value, "pop"), args=[], keywords=[]):
            yield value


def _all_last(*nodes: ast.AST) -> frozenset[str]:
    return frozenset(name for node in nodes for name in _last(node))


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
