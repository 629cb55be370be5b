"""Objects of the program's classes that derive from a library's (a `keras.Model`, a callback): which attributes are its state.

The library's own attributes stay as they are: most are built lazily, and none are data. Those that the program's methods
store are state where they hold data.
"""

from __future__ import annotations

import ast
import dis
import re
from collections.abc import Hashable, Iterator
from functools import lru_cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Final

from detrain.parsing import parse
from detrain.runtime.naming import is_own_class, module_of

_FRAMEWORKS: Final = frozenset({"keras", "tensorflow", "tf_keras"})
_DOTTED: Final = re.compile(r"\w+(\.\w+)*")
_BY_NAME: Final = frozenset({"setattr", "__dict__", "vars"})
"""Ways to store attributes under names that are texts."""
_BUILT_LAZILY: Final = frozenset({"built"})
"""Says of a layer of Keras that its variables exist, so in a resumed process when they do. A `tf.Module` means what it likes."""


def stored_names(cls: type) -> frozenset[str]:
    """Return the names of the attributes that the methods of a class store, as far as the class and its bases are the program's."""
    return _stored_names(cls)


@lru_cache(maxsize=512)
def stored_outside(file: str) -> frozenset[str]:
    """Return the names of the attributes that a source file stores on objects but a method's `self`: `model.counter += 1`."""
    try:
        tree = parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return frozenset()
    nodes = list(ast.walk(tree))
    in_classes = {id(node) for cls in nodes if isinstance(cls, ast.ClassDef) for node in ast.walk(cls)}
    attributes = (node for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store))
    stored = {node.attr for node in attributes if id(node) not in in_classes or ast.unparse(node.value) != "self"}
    return frozenset(stored | {name for node in nodes if (name := _set_by_name(node)) is not None}) - _BUILT_LAZILY


@lru_cache(maxsize=512)
def stored_on_names(file: str) -> frozenset[tuple[str, str]]:
    """Return what a source file stores attributes on, with their names: (`np`, `step`) for `np.step += 1`, dotted names whole."""
    try:
        nodes = list(ast.walk(parse(Path(file).read_bytes())))
    except (OSError, SyntaxError, ValueError):
        return frozenset()
    stored = [node for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)]
    return frozenset((name, node.attr) for node in stored if _DOTTED.fullmatch(name := ast.unparse(node.value)))


def _set_by_name(node: ast.AST) -> str | None:
    """Return the name that a call `setattr(object, "name", value)` stores under."""
    match node:
        case ast.Call(ast.Name("setattr"), [_, ast.Constant(str(name)), _]):
            return name
    return None


def is_of_framework(cls: type) -> bool:
    """Return whether a class is Keras's or TensorFlow's."""
    return module_of(cls).partition(".")[0] in _FRAMEWORKS


@lru_cache(maxsize=512)
def _stored_names(cls: Hashable) -> frozenset[str]:
    assert isinstance(cls, type)
    functions = (item for base in cls.__mro__ if is_own_class(base) for item in vars(base).values())
    codes = [code for item in functions for function in _functions(item) for code in _codes(function.__code__)]
    stored = {i.argval for code in codes for i in dis.get_instructions(code) if i.opname == "STORE_ATTR"}
    by_name = {text for code in codes if _BY_NAME & set(code.co_names) for text in code.co_consts if isinstance(text, str)}
    is_keras = any(module_of(base).partition(".")[0] == "keras" for base in cls.__mro__)
    return frozenset(stored | by_name) - (_BUILT_LAZILY if is_keras else frozenset())


def _functions(item: object) -> Iterator[FunctionType]:
    """Yield the functions behind what a class holds: methods, properties, and what decorators wrap."""
    for function in (item, *(getattr(item, name, None) for name in ("__func__", "__wrapped__", "fget", "fset"))):
        if isinstance(function, FunctionType):
            yield function


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
