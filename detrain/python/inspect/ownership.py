"""Objects of libraries that hold nothing but data: an environment of gymnasium, a scaler of scikit-learn, a meter.

They are captured like objects of the program (attributes, slots, items of a container), but only as a whole: if one
part is no data, no part is restored, because a part of a library's state may not fit the rest. Such an object is named
when it changes (detrain.python.inspect.progress). The same holds for the program's classes that derive from a
library's.
"""

from __future__ import annotations

import functools
import sys
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from detrain.base.libraries import entry, said
from detrain.base.plain_types import CONTAINERS, SCALARS
from detrain.python.inspect.held import held_by, walk
from detrain.python.inspect.names import (
    FRAMEWORKS,
    METHODS,
    OF_CLASSES,
    by_class,
    class_name,
    container_base,
    find_type,
    is_data_of_python,
    is_laid_open,
    is_library_class,
    is_own_class,
    module_of,
    shows_library_class,
)
from detrain.python.inspect.tables import is_table

_MAX_OBJECTS: Final = 100_000
_KEPT: Final = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType, np.dtype, *OF_CLASSES)
"""Types of objects that stay as the process has them."""


@by_class
def extends_library(cls: type) -> bool:
    """Return whether a class is the program's, and derives from a library's class but from none of a framework."""
    tops = {module_of(base).partition(".")[0] for base in cls.__mro__}
    return is_own_class(cls) and any(map(is_library_class, cls.__mro__)) and tops.isdisjoint(FRAMEWORKS)


@by_class
def is_data_class(cls: type) -> bool:
    """Return whether objects of a class hold nothing but data, and nothing that Python does not see."""
    return (is_library_class(cls) or is_data_of_python(cls) or extends_library(cls)) and is_laid_open(cls)


@by_class
def makes_plainly(cls: Any) -> bool:
    """Return whether an object of a data class can be made without the class's own code: the class does not keep
    account of its objects, return existing ones, or act when one is deleted."""
    if hasattr(cls, "__del__") or type(cls).__call__ is not type.__call__ or issubclass(cls, threading.local):
        return False
    if container_base(cls) is not None or cls.__new__ is object.__new__ or issubclass(cls, tuple):
        return True
    maker = next(base for base in cls.__mro__ if "__new__" in vars(base))
    return is_own_class(maker) or _makes_another(cls)


def _makes_another(cls: Any) -> bool:
    """Return whether a library's own `__new__`, called as `copy` does, makes a new object each time."""
    try:
        made = [cls.__new__(cls) for _ in range(2)]
    except Exception:  # an edge: a stranger's code, which may need more arguments
        return False
    return made[0] is not made[1] and all(type(each) is cls for each in made)


@by_class
def makes(cls: type) -> Mapping[str, int] | None:
    """Return the arguments of a call that makes a fresh object of a class; None if objects are made without a call."""
    return next((found for base in cls.__mro__ if (found := entry(module_of(base)).made.get(base.__qualname__)) is not None), None)


def new_object(cls: Any) -> Any:
    """Return a new object of a class without C state: by the call in the table of libraries, else without its code."""
    if (arguments := makes(cls)) is not None:
        return cls(**arguments)
    base: Any = container_base(cls)
    if base is not None:
        return base.__new__(cls)
    return types.SimpleNamespace.__new__(cls) if issubclass(cls, types.SimpleNamespace) else object.__new__(cls)


@by_class
def of_last_use(cls: type) -> frozenset[str]:
    """Return the attributes that are no state in objects of a library's class."""
    bases = [base for base in cls.__mro__ if said(module_of(base), "computed")]
    computed = {name for base in bases for name, item in vars(base).items() if isinstance(item, functools.cached_property)}
    return frozenset(computed) | _said_of_attributes(cls, "last_use")


@by_class
def lists(cls: type) -> frozenset[str]:
    """Return the attributes in which objects of a library's class only list objects that they were given."""
    return _said_of_attributes(cls, "listed")


@by_class
def answers(cls: type) -> frozenset[str]:
    """Return the methods of a library's class that return data which an output object was given."""
    return _said_of_attributes(cls, "answers")


def _said_of_attributes(cls: type, fact: str) -> frozenset[str]:
    return frozenset().union(*(getattr(entry(module_of(base)), fact).get(base.__qualname__, ()) for base in cls.__mro__))


def find_data_class(name: str, current: object) -> type | None:
    """Return a data class by its name: one of an imported module, or the live object's class if it has the name."""
    for cls in (find_type(name), type(current)):
        if cls is not None and class_name(cls) == name and is_data_class(cls):
            return cls
    return None


def data_in(value: object, is_state: Callable[[object], bool]) -> set[int] | None:
    """Return the identities of all objects that an object of a library reaches, if all of them are data, else None.

    `is_state` tells whether any other object counts as data.
    """
    found: set[int] = set()
    for item in walk([value], _data_below, most=sys.maxsize):
        if type(item) in SCALARS or _stays(item):
            continue
        found.add(id(item))
        is_data = _is_data_or_calls(item) or is_state(item) or any(item is each for each in (sys.stdout, sys.stderr, sys.stdin))
        if not is_data or len(found) > _MAX_OBJECTS:
            return None
    return found


def _stays(item: object) -> bool:
    return isinstance(item, _KEPT) or module_of(type(item)) == "typing" or shows_library_class(item)


def _is_data_or_calls(item: object) -> bool:
    cls = type(item)
    is_data = cls in CONTAINERS.values() or (is_data_class(cls) and not is_table(item))
    return is_data or cls in METHODS or isinstance(item, functools.partial)


def _data_below(item: Any) -> Sequence[object]:
    cls = type(item)
    if cls in SCALARS or _stays(item) or not _is_data_or_calls(item):
        return ()
    if cls in METHODS:  # tqdm keeps the `__next__` of an iterator
        return (item.__self__,)
    if isinstance(item, functools.partial):
        return (item.func, item.args, item.keywords, vars(item))
    gone = of_last_use(cls) | lists(cls)
    return [held for (kind, name), held in held_by(item) if kind != "." or name not in gone]
