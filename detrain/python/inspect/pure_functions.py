"""Functions that cache their results (`functools.lru_cache`), and would return the same again: a resumed run begins
with an empty cache, and computes the results anew.
"""

from __future__ import annotations

import builtins
import dis
import gc
import itertools
import math
import types
from functools import lru_cache
from typing import Any, Final

from detrain.base.compiled_sources import source_of
from detrain.python.inspect.held import walk
from detrain.python.inspect.named import user_modules
from detrain.python.inspect.names import computes

_PLAIN: Final = (type(None), bool, int, float, complex, str, bytes, range, slice)
_MAKING: Final = frozenset(
    {
        *("bool", "bytes", "complex", "dict", "enumerate", "filter", "float", "frozenset", "int", "list", "map", "range"),
        *("reversed", "set", "str", "tuple", "zip", "ValueError", "TypeError", "KeyError", "IndexError"),
    }
)
"""Python's types with new objects that depend only on the arguments."""
_OUTSIDE: Final = frozenset({"IMPORT_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"})
_MOST: Final = 10_000


def is_recomputable(cache: Any) -> bool:
    """Return whether all results in a function's cache are plain, and were computed from plain values alone.

    The answer is False if the program reads the cache's counts (`cache_info`): a new cache has others.
    """
    is_counted = any(_names_counts(module.__file__ or "") for module in user_modules().values())
    return not is_counted and is_pure(cache, set()) and _holds_plain_values(cache)


@lru_cache(maxsize=1 << 10)
def _names_counts(file: str) -> bool:
    """Return whether a source file contains the name `cache_info`."""
    try:
        return b"cache_info" in source_of(file)
    except OSError:
        return False


def is_pure(function: Any, seen: set[int]) -> bool:
    """Return whether the code of a function shows that its result depends only on its arguments."""
    function = getattr(function, "__wrapped__", function)
    if id(function) in seen:
        return True
    seen.add(id(function))
    if type(function) is not types.FunctionType or function.__closure__ or not _are_plain(function.__defaults__):
        return False
    return all(_is_inside(each, function, seen) for each in dis.get_instructions(function.__code__))


def _is_inside(instruction: dis.Instruction, function: types.FunctionType, seen: set[int]) -> bool:
    if instruction.opname == "LOAD_CONST" and isinstance(instruction.argval, types.CodeType):
        return False  # a function inside may read other values
    if instruction.opname != "LOAD_GLOBAL":
        return instruction.opname not in _OUTSIDE
    name = instruction.argval
    if name in function.__globals__:
        value = function.__globals__[name]
        return value is math or is_pure(value, seen)
    return name in _MAKING or computes(getattr(builtins, name, None))


def _holds_plain_values(cache: Any) -> bool:
    """Return whether keys and results of a cache are plain; the garbage collector shows its content."""
    held = [each for each in gc.get_referents(cache) if each is not cache.__wrapped__ and each is not vars(cache)]
    first = [each for part in held for each in ([*part.keys(), *part.values()] if type(part) is dict else [part])]
    plain = (*_PLAIN, object, type)  # `object`: a mark between arguments
    found = list(itertools.islice(walk(first, _below, lambda _: None), _MOST + 1))
    return len(found) <= _MOST and all(type(each) in plain or _is_of_cache(each) for each in found)


def _is_of_cache(value: object) -> bool:
    return type(value) is tuple or type(value).__name__ in ("_lru_list_elem", "_HashedSeq")


def _below(value: Any) -> list[Any]:
    if not _is_of_cache(value):
        return []
    return list(value) if type(value).__name__ == "_HashedSeq" else gc.get_referents(value)


def _are_plain(values: object) -> bool:
    return values is None or (isinstance(values, tuple) and all(type(each) in _PLAIN for each in values))
