"""Objects of the program's classes that derive from a library's (a `keras.Model`, a callback): which attributes are its
state.

The library's own attributes stay as they are: most are built lazily, and none are data. Those that the program's
methods store are state where they hold data.
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
"""Ways to store attributes under names that are texts."""
_ANY_NAME: Final = ""
"""Stands for the names that a program makes as it runs: `setattr(model, f"head_{i}", layer)`."""
_MOST_CLASSES: Final = 1 << 14
_BUILT_LAZILY: Final = [pair for each in KNOWN for pair in each.built_lazily]


def stored_names(cls: type) -> frozenset[str]:
    """Return the names of the attributes that the methods of a class store, as far as the class and its bases are the
    program's.
    """
    return _stored_names(cls)


def program_names(cls: type, outside: frozenset[str], present: Iterable[str]) -> frozenset[str]:
    """Return the names of the attributes of an object that the program stores: in methods of its class, or `outside` of
    them.

    Where it makes names as it runs, they are all that are `present` but for the library's.
    """
    names = _stored_names(cls) | outside
    if _ANY_NAME in names and is_own_class(cls):
        names |= {name for name in present if isinstance(name, str) and not name.startswith("_")} - _stored_names(cls, is_own=False)
    return names - {_ANY_NAME}


def library_names(cls: type) -> frozenset[str]:
    """Return the names of the attributes that the methods of a library's class, and of its bases, store."""
    return _stored_names(cls, is_own=False)


class Stores(NamedTuple):
    """What the code of a source file stores attributes on."""

    outside: frozenset[str] = frozenset()
    """Names of the attributes that it stores on objects but a method's `self`: `model.counter += 1`."""
    on_names: frozenset[tuple[str, str]] = frozenset()
    """What it stores attributes on, with their names: (`np`, `step`) for `np.step += 1`, dotted names whole."""


@by_file  # of any number of files: a program's are all asked for at each checkpoint
def stores(file: str) -> Stores:
    """Return what a source file stores attributes on; nothing for one that cannot be read."""
    nodes = list(ast.walk(tree_of(file)))
    in_classes = {id(node) for cls in nodes if isinstance(cls, ast.ClassDef) for node in ast.walk(cls)}
    attributes = (node for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store))
    stored = [(node, ast.unparse(node.value)) for node in attributes]
    outside = {node.attr for node, on in stored if id(node) not in in_classes or on != "self"}
    by_name = {name for node in nodes if (name := _set_by_name(node, is_in_class=id(node) in in_classes)) is not None}
    on_names = {(on, node.attr) for node, on in stored if _DOTTED.fullmatch(on)}
    return Stores(frozenset(outside | by_name).difference(name for _module, name in _BUILT_LAZILY), frozenset(on_names))


def _set_by_name(node: ast.AST, *, is_in_class: bool) -> str | None:
    """Return the name that a call `setattr(object, "name", value)` stores under."""
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
    """Return the names that the methods of a class store, as far as it and its bases are the program's, or the
    library's.
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
    """Yield the functions behind what a class holds: methods, properties, and what decorators wrap."""
    for found in (item, *(getattr(item, name, None) for name in ("__func__", "__wrapped__", "fget", "fset", "func"))):
        function = found
        while isinstance(function, FunctionType):
            yield function
            function = getattr(function, "__wrapped__", None)
