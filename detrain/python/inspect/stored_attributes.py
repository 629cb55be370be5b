"""The attributes that are state, for objects of the program's classes that derive from a library's class (a
`keras.Model`, a callback).

The library's own attributes stay as they are: most are built lazily, and none are data. Attributes that the program's
methods store are state if they hold data.
"""

from __future__ import annotations

import ast
import dis
import re
from collections.abc import Hashable, Iterable, Iterator
from functools import cached_property, lru_cache
from types import FunctionType
from typing import Final, NamedTuple

from detrain.base.compiled_sources import by_file, tree_of
from detrain.base.framework_names import KNOWN, MODULES
from detrain.python.inspect.live_names import codes_in
from detrain.python.inspect.names import is_own_class, module_of

_DOTTED: Final = re.compile(r"\w+(\.\w+)*")
_BY_NAME: Final = frozenset({"setattr", "__dict__", "vars"})
"""Names of the ways to store an attribute under a name in a text."""
_ANY_NAME: Final = ""
"""Stands for names that the program composes as it runs: `setattr(model, f"head_{i}", layer)`."""
_MOST_CLASSES: Final = 1 << 14
_BUILT_LAZILY: Final = [pair for each in KNOWN for pair in each.built_lazily]


def stored_names(cls: type) -> frozenset[str]:
    """Return the names of the attributes that the methods of a class store; only methods of the program's classes among
    its bases count.
    """
    return _stored_names(cls)


def program_names(cls: type, outside: frozenset[str], present: Iterable[str]) -> frozenset[str]:
    """Return the names of the attributes of an object that the program stores: in methods of its class, or `outside` of
    them.

    If it composes names as it runs, all names in `present` count, except private names and the library's own.
    """
    names = _stored_names(cls) | outside
    if _ANY_NAME in names and is_own_class(cls):
        names |= {name for name in present if isinstance(name, str) and not name.startswith("_")} - _stored_names(cls, is_own=False)
    return names - {_ANY_NAME}


def library_names(cls: type) -> frozenset[str]:
    """Return the names of the attributes that the methods of a library's class, and of its bases, store."""
    return _stored_names(cls, is_own=False)


class Stores(NamedTuple):
    """The attributes that the code of a source file stores."""

    outside: frozenset[str] = frozenset()
    """Names of the attributes that it stores on objects other than a method's `self`: `model.counter += 1`."""
    on_names: frozenset[tuple[str, str]] = frozenset()
    """(object, attribute) in the source text: (`np`, `step`) for `np.step += 1`. The object may be a dotted name."""


@by_file  # for any number of files: each checkpoint asks about all of the program's
def stores(file: str) -> Stores:
    """Return the attributes that a source file stores; none for a file that cannot be read."""
    nodes = list(ast.walk(tree_of(file)))
    in_classes = {id(node) for cls in nodes if isinstance(cls, ast.ClassDef) for node in ast.walk(cls)}
    attributes = (node for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store))
    stored = [(node, ast.unparse(node.value)) for node in attributes]
    outside = {node.attr for node, on in stored if id(node) not in in_classes or on != "self"}
    by_name = {name for node in nodes if (name := _set_by_name(node, is_in_class=id(node) in in_classes)) is not None}
    on_names = {(on, node.attr) for node, on in stored if _DOTTED.fullmatch(on)}
    return Stores(frozenset(outside | by_name).difference(name for _module, name in _BUILT_LAZILY), frozenset(on_names))


def _set_by_name(node: ast.AST, *, is_in_class: bool) -> str | None:
    """Return the name under which a call `setattr(object, "name", value)` stores; None for any other node."""
    match node:
        case ast.Call(ast.Name("setattr"), [_, ast.Constant(str(name)), _]):
            return name
        case ast.Call(ast.Name("setattr"), [ast.Name("self"), _, _]) if is_in_class:
            return None
        case ast.Call(ast.Name("setattr"), [_, _, _]):
            return _ANY_NAME
    return None


def is_of_framework(cls: type) -> bool:
    """Return whether a class is of a framework that has an adapter."""
    return module_of(cls).partition(".")[0] in MODULES


@lru_cache(maxsize=_MOST_CLASSES)
def _stored_names(cls: Hashable, *, is_own: bool = True) -> frozenset[str]:
    """Return the names that the methods of a class and its bases store: those of the program's classes, or with
    `is_own` false those of the libraries' classes.
    """
    assert isinstance(cls, type)
    items = [item for base in cls.__mro__ if is_own_class(base) == is_own for item in vars(base).items()]
    codes = [code for _, item in items for function in _functions(item) for code in codes_in(function.__code__)]
    stored = {i.argval for code in codes for i in dis.get_instructions(code) if i.opname == "STORE_ATTR"}
    stored |= {name for name, item in items if isinstance(item, cached_property)}
    if not is_own:
        return frozenset(stored)
    by_name = [code for code in codes if _BY_NAME & set(code.co_names)]
    texts = {text for code in by_name for text in code.co_consts if isinstance(text, str)} | ({_ANY_NAME} if by_name else set())
    tops = {module_of(base).partition(".")[0] for base in cls.__mro__}
    return frozenset(stored | texts).difference(name for module, name in _BUILT_LAZILY if module in tops)


def _functions(item: object) -> Iterator[FunctionType]:
    """Yield the functions behind an item of a class: of methods, of properties, and inside of decorators."""
    for found in (item, *(getattr(item, name, None) for name in ("__func__", "__wrapped__", "fget", "fset", "func"))):
        function = found
        while isinstance(function, FunctionType):
            yield function
            function = getattr(function, "__wrapped__", None)
