"""Names of classes and functions in a graph, and the closed rules by which a name from a file may become an object
again.

Nothing is imported, and no attribute hook of a module runs. Only definitions of the program itself, types that hold
data and functions of libraries that only compute are found: a file must not be able to bind `eval` or `os.system` to a
name of the program.
"""

from __future__ import annotations

import abc
import argparse
import builtins
import collections
import datetime
import decimal
import fractions
import gc
import inspect
import os
import pathlib
import re
import struct
import subprocess
import sys
import threading
import time
import types
import typing
import uuid
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Final, TypeVar

import numpy as np

from detrain.base import keras_backend
from detrain.base.framework_names import KNOWN, MODULES
from detrain.base.libraries import said, saying
from detrain.base.plain_types import BASES, CONTAINERS
from detrain.python.inspect.enums import is_enum
from detrain.python.inspect.frames import is_user_file
from detrain.python.inspect.object_graph import ABSENT
from detrain.python.inspect.random_state import STREAMS

T = TypeVar("T")

STATIC: Final = (
    type,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.ModuleType,
    types.MethodType,
    staticmethod,
    classmethod,
    property,
)
"""Kinds of objects that stay as the process has them."""

OF_CLASSES: Final = (
    *(types.WrapperDescriptorType, types.MethodDescriptorType, types.ClassMethodDescriptorType),
    *(types.GetSetDescriptorType, types.MemberDescriptorType, property, type(vars(abc.ABC)["_abc_impl"])),
    *(types.GenericAlias, types.UnionType),
)
"""Types of the parts of classes, which stay as the classes do: descriptors, annotations."""

NAMES: Final = ("__name__", "__qualname__", "__module__", "__doc__")
"""Attributes of a function with its names and its description."""

METHODS: Final = (types.MethodType, types.BuiltinMethodType, types.MethodWrapperType)
"""Types of bound methods, and of built-in functions, which are bound to their module."""

_PLAIN: Final = (
    *(*argparse.Namespace.__mro__[:-1], types.SimpleNamespace, subprocess.CompletedProcess, threading.local),
    *(collections.ChainMap, collections.UserDict, collections.UserList, collections.UserString),
)
"""Classes of the standard library whose objects consist of their attributes."""
VALUES: Final = (
    *(float, int, str, bytes, complex, tuple, datetime.datetime, datetime.date, datetime.time, datetime.timedelta),
    decimal.Decimal,
)
"""Types of values that tell `copy` and `pickle` themselves from which parts to make them again."""
_ARRAYS_OF_NUMPY: Final = (np.matrix, np.ma.MaskedArray, np.recarray)
"""NumPy's classes of arrays with attributes; its others lie in files."""
MADE_FROM_PARTS: Final = (*VALUES, OSError, BaseException, np.ndarray)
"""Bases of classes with objects that are made again from parts, special bases first."""
_PLAIN_BY_NAME: Final = {f"{cls.__module__}:{cls.__qualname__}": cls for cls in _PLAIN}
_TRANSPARENT_MODULES: Final = ("typing", "abc", "_collections_abc", "collections.abc", "contextlib")
_COMPUTING: Final = frozenset({"math", "cmath", "_operator"}).union(*(each.computing for each in KNOWN))
"""Modules with functions that only compute."""
_CLOCKS: Final = frozenset(
    f"{name}{unit}"
    for name in ("clock_gettime", "monotonic", "perf_counter", "process_time", "thread_time", "time")
    for unit in ("", "_ns")
)
"""Functions of `time` that keep no state."""
_BUILTINS: Final = frozenset(
    {
        *("abs", "all", "any", "ascii", "bin", "callable", "chr", "divmod", "format", "hash", "hex", "isinstance", "issubclass"),
        *("iter", "len", "max", "min", "next", "oct", "ord", "pow", "repr", "round", "sorted", "sum"),
    }
)
"""Built-in functions that a file may name: none of them acts outside of the process, or runs a text."""
_NUMPY: Final = frozenset(
    {
        *(
            "all",
            "amax",
            "amin",
            "any",
            "argmax",
            "argmin",
            "argsort",
            "around",
            "average",
            "clip",
            "cumprod",
            "cumsum",
            "diagonal",
        ),
        *("dot", "max", "mean", "median", "min", "prod", "ptp", "ravel", "repeat", "reshape", "round", "searchsorted", "sort"),
        *("squeeze", "std", "sum", "swapaxes", "take", "trace", "transpose", "var"),
    }
)
"""Functions of NumPy that only compute, besides its ufuncs."""
_DISPATCHED: Final = type(np.mean)
_DATA_TYPES: Final = (
    *(*CONTAINERS.values(), *_ARRAYS_OF_NUMPY),
    *(datetime.datetime, datetime.date, datetime.time, datetime.timedelta, decimal.Decimal, fractions.Fraction),
    *(pathlib.Path, pathlib.PosixPath, uuid.UUID, np.ndarray, np.dtype, inspect.Parameter.empty, types.NoneType),
    *((typing.Any,) if isinstance(typing.Any, type) else ()),
    *{kind for kind in np.sctypeDict.values() if isinstance(kind, type)},
)


_OPEN: Final = frozenset[str]().union(*(each.open_modules for each in KNOWN))
_CLOSED: Final = tuple(name for each in KNOWN for name in each.closed)
_NAMED: Final = tuple(name for each in KNOWN for name in each.named)
_FUNCTIONS_OF: Final = dict(pair for each in KNOWN for pair in each.functions_of)
_OPEN_AGAIN: Final = tuple(name for each in KNOWN for name in each.open_again)
_HEAP_TYPE: Final = 1 << 9
"""`Py_TPFLAGS_HEAPTYPE` (Include/object.h): set for classes written in Python, and for some written in C."""
FRAMEWORKS: Final = MODULES | saying("apart") | {"detrain"}
_DATA_OF_PYTHON: Final = frozenset({"argparse", "collections", "configparser", "queue", "_queue", "statistics", "string"})
"""Modules of Python with classes that hold the program's objects."""
OF_PROCESS: Final = (
    *("_", "abc", "builtins", "ctypes", "functools", "gc", "importlib", "inspect", "logging", "runpy"),
    *("multiprocessing", "selectors", "signal", "site", "socket", "ssl", "subprocess", "sys", "threading", "traceback"),
    *("types", "typing", "warnings", "weakref", "zipimport", "concurrent.futures.thread", "concurrent.futures.process"),
)
"""Prefixes of the names of modules of Python's library with objects that belong to the process, are code, or are
handled separately."""
_OUTSIDE: Final = ("asyncio", "bdb", "cProfile", "dbm", "os", "pdb", "profile", "shelve", "tempfile", "trace", "unittest")
"""Further such prefixes, for objects that stand for something outside of the process."""
_POINTER: Final = struct.calcsize("P")
_MOST_CLASSES: Final = 1 << 14


def by_class(function: Callable[[Any], T]) -> Callable[[Any], T]:
    """Cache a function's results by class."""
    return lru_cache(maxsize=_MOST_CLASSES)(function)


def module_of(cls: type) -> str:
    """Return the name of a class's module; empty for some classes of extensions (SWIG's)."""
    return str(getattr(cls, "__module__", ""))


def class_name(cls: type) -> str:
    """Return a class's name in a graph, `module:qualified.name`."""
    return f"{module_of(cls)}:{cls.__qualname__}"


def type_name(value: object) -> str:
    """Return the name of an object's class as messages show it."""
    return f"{module_of(type(value))}.{type(value).__qualname__}".removeprefix("builtins.")


def static_name(value: Any) -> str:
    """Return the name in a graph of a function, class or module, or of a module's namespace."""
    if isinstance(value, types.ModuleType):
        return f"{value.__name__}:"
    if type(value) is dict:
        return f"{value['__name__']}:__dict__"
    if isinstance(value, np.ufunc):
        return f"numpy:{value.__name__}"
    if type(value) is types.BuiltinFunctionType:
        owner, _, name = value.__qualname__.rpartition(".")
        if owner in _FUNCTIONS_OF:
            return f"{_FUNCTIONS_OF[owner]}:{name}"
    return f"{getattr(value, '__module__', None) or ''}:{getattr(value, '__qualname__', '') or ''}"


_DATA_TYPES_BY_NAME: Final = {class_name(cls): cls for cls in _DATA_TYPES}


def find_static(name: str) -> object:
    """Return a function, class or module of the program that is already imported, or a type that holds data, or ABSENT.

    Functions of libraries that only compute are found, too.
    """
    if name in _DATA_TYPES_BY_NAME:
        return _DATA_TYPES_BY_NAME[name]
    module_name, _, qualified = name.partition(":")
    module = sys.modules.get(module_name)
    is_user = isinstance(module, types.ModuleType) and is_user_module(module)
    if not qualified:
        return module if is_user else ABSENT
    found = at_name(module, qualified)
    if name.startswith(_NAMED):
        found = found.__func__ if isinstance(found, staticmethod) else found
        is_named = isinstance(found, types.FunctionType | types.BuiltinFunctionType | type)
        return found if is_named and static_name(found) == name else ABSENT
    if isinstance(found, type) and (is_open(found) or (is_library_class(found) and is_laid_open(found))):
        return found if class_name(found) == name else ABSENT
    if computes(found):
        return found if static_name(found) == name else ABSENT
    # From the builtins only types (the factory of a defaultdict); from a program's module only its own definitions, not
    # its imports.
    if not (isinstance(found, type) or (is_user and isinstance(found, types.FunctionType))):
        return ABSENT
    return found if (is_user or module_name == "builtins") and static_name(found) == name else ABSENT


def computes(value: object) -> bool:
    """Return whether a value is a function of a library that only computes or tells the time, and can be found by its
    name.
    """
    kind = type(value)
    if kind is np.ufunc:
        return vars(np).get(value.__name__) is value  # type: ignore[attr-defined]
    if kind is _DISPATCHED:
        name = getattr(value, "__name__", "")
        return name in _NUMPY and vars(np).get(name) is value
    if kind is not types.FunctionType and kind is not types.BuiltinFunctionType:
        return False
    module: Any = getattr(value, "__module__", None)
    known = {"builtins": (builtins, _BUILTINS), "time": (time, _CLOCKS)}.get(module)
    if known is not None:
        return value.__name__ in known[1] and vars(known[0]).get(value.__name__) is value  # type: ignore[attr-defined]
    return module in _COMPUTING and at_name(sys.modules.get(module), value.__qualname__) is value  # type: ignore[attr-defined]


def is_bound(value: object) -> bool:
    """Return whether a value is a method bound to an object, which may have a state.

    Built-in functions are bound to their module, those of pybind11 to a record of the function that they call.
    """
    if type(value) not in METHODS:
        return False
    owner: Any = value.__self__  # type: ignore[attr-defined]
    is_record = type(owner).__module__ == "pybind11_builtins" or type(owner).__name__ == "PyCapsule"
    return not is_record and not isinstance(owner, type | types.ModuleType | None)


def is_findable(value: object) -> bool:
    """Return whether a function, class or module can be found by its name."""
    return find_static(static_name(value)) is value


def find_class(name: str, current: object) -> type | None:
    """Return a class of the program by its name, or the class of the live object if that has the name (one
    defined in a function).
    """
    if name in _PLAIN_BY_NAME:
        return _PLAIN_BY_NAME[name]
    found = find_static(name)
    if isinstance(found, type):
        return found
    for cls in (*_named(name), type(current)):
        if isinstance(cls, type) and class_name(cls) == name and (is_open(cls) or (cls is type(current) and is_own_class(cls))):
            return cls
    return None


def find_method(owner: object, name: str) -> object:
    """Return a method of an object by its name, or ABSENT. No hook of the class runs."""
    method: Any = next((vars(base)[name] for base in type(owner).__mro__ if name in vars(base)), None)
    is_method = type(method) in (types.FunctionType, types.MethodDescriptorType, types.WrapperDescriptorType) or type(
        method
    ).__name__.startswith("cython_")
    return method.__get__(owner) if is_method else ABSENT


def find_enum(name: str, current: object) -> type[Any] | None:
    """Return an enumeration of any imported module: its members are data."""
    module_name, _, qualified = name.partition(":")
    for found in (at_name(sys.modules.get(module_name), qualified), type(current)):
        if isinstance(found, type) and is_enum(found) and class_name(found) == name:
            return found
    return None


def find_namedtuple(name: str) -> Any:
    """Return a class of named tuples of any imported module: its objects are data.

    None if there is none of this name.
    """
    module_name, _, qualified = name.partition(":")
    found = at_name(sys.modules.get(module_name), qualified)
    if not (isinstance(found, type) and issubclass(found, tuple) and hasattr(found, "_fields")):
        return None
    return found if class_name(found) == name else None


def names_of_function(function: types.FunctionType) -> list[object]:
    """Return the names and the description of a function: the attributes `NAMES`."""
    return [function.__name__, function.__qualname__, function.__module__, function.__doc__]


def find_type(name: str) -> type | None:
    """Return a class in any imported module. It serves only as an annotation of an argument: nothing calls it."""
    return next((each for each in _named(name) if isinstance(each, type) and class_name(each) == name), None)


def find_warning(name: str) -> type[Warning] | None:
    """Return a class of warnings of any imported module."""
    module_name, _, qualified = name.partition(":")
    found = at_name(sys.modules.get(module_name), qualified)
    return found if isinstance(found, type) and issubclass(found, Warning) else None


def _named(name: str) -> Iterator[object]:
    """Yield the object under a qualified name in a module; then the object under it in the module's classes, if there
    is just one: `Item = NamedTuple("Item", ...)` in a class has a name without the class.
    """
    module_name, _, qualified = name.partition(":")
    module = sys.modules.get(module_name)
    yield at_name(module, qualified)
    classes = [each for each in list(vars(module).values()) if isinstance(each, type)] if module is not None else []
    found = {id(vars(each)[qualified]): vars(each)[qualified] for each in classes if qualified in vars(each)}
    yield from found.values() if len(found) == 1 else ()


def at_name(module: object, qualified: str) -> object:
    """Follow a qualified name through the dictionaries of a module and its classes, so that no `__getattr__` runs."""
    found = module
    for part in qualified.split("."):
        if not isinstance(found, types.ModuleType if found is module else type):
            return ABSENT
        found = vars(found).get(part, ABSENT)
    return found


def is_user_module(module: types.ModuleType | None) -> bool:
    """Return whether a module is the program's own."""
    file = getattr(module, "__file__", None) or ""
    # A module that a framework makes as it runs may name a file without a folder (`torch.ops`).
    return is_user_file(file) and (os.path.isabs(file) or getattr(module, "__name__", "").partition(".")[0] not in MODULES)


def is_namespace(value: object) -> bool:
    """Return whether a value is the dictionary of a module that is not the program's: `globals()` of a library."""
    name = value.get("__name__") if type(value) is dict else None
    module = sys.modules.get(name) if type(name) is str else None
    return isinstance(module, types.ModuleType) and vars(module) is value and not is_user_module(module)


def shows_library_class(value: object) -> bool:
    """Return whether a value is the read-only view of the names in a class that is not the program's."""
    inside = gc.get_referents(value)[0] if type(value) is types.MappingProxyType else None
    name = inside.get("__module__") if type(inside) is dict else None
    return type(name) is str and not is_user_module(sys.modules.get(name))


def is_made_module(value: object) -> bool:
    """Return whether an object is a module that the program has made by hand: it comes from no import and no file."""
    if not isinstance(value, types.ModuleType) or sys.modules.get(value.__name__) is value:
        return False
    return not is_user_module(value) and not getattr(value, "__spec__", None)


def is_own_class(cls: type) -> bool:
    """Return whether a class is defined in the program, with any base classes."""
    return is_user_module(sys.modules.get(module_of(cls)))


@by_class
def is_open(cls: type) -> bool:
    """Return whether a class is, or derives from, a framework's class whose objects consist of their attributes, and
    has no base written in C: a module of PyTorch, an optimizer, a data set.
    """
    return any(_is_open_module(module_of(base).partition(".")[0]) for base in cls.__mro__) and is_laid_open(cls)


def _is_open_module(top: str) -> bool:
    return top in _OPEN or (top == "keras" and keras_backend.in_process() != "tensorflow")


@by_class
def is_library_class(cls: type) -> bool:
    """Return whether a class is of a library, Python and frameworks aside; some of their data classes count, too."""
    module = module_of(cls)
    is_data = cls is np.poly1d or module.startswith("numpy.polynomial.")
    top = "" if is_data else module.partition(".")[0]
    is_known = top not in sys.stdlib_module_names or top in _DATA_OF_PYTHON
    return is_known and top not in FRAMEWORKS and not said(module, "compiled") and not is_own_class(cls)


@by_class
def is_data_of_python(cls: type) -> bool:
    """Return whether a class is of Python's own library, and its objects hold the program's data: a message, a
    calendar, a context that does nothing.
    """
    module = module_of(cls)
    return module.partition(".")[0] in sys.stdlib_module_names and not module.startswith((*OF_PROCESS, *_OUTSIDE))


@by_class
def is_laid_open(cls: type) -> bool:
    """Return whether objects of a class consist of attributes, slots and container items: no base of the class is
    written in C, except Python's containers."""
    if issubclass(cls, type | BaseException):
        return False
    plain = (object, tuple, *_PLAIN, *BASES) if hasattr(cls, "_fields") else (object, *_PLAIN, *BASES)
    return all(base in plain or _is_transparent(base) or _is_of_python(base) for base in cls.__mro__)


def is_frozen(cls: type) -> bool:
    """Return whether a class is open, and its objects are values, which are replaced and never changed: a `TrainState`
    of flax, a module of equinox (its metaclass forbids changes).
    """
    is_dataclass = getattr(getattr(cls, "__dataclass_params__", None), "frozen", False) is True
    return is_open(cls) and (is_dataclass or module_of(type(cls)).startswith("equinox."))


def is_made_open(cls: type) -> bool:
    """Return whether a class is open, and was made while the program ran: it cannot be found by its name."""
    return is_open(cls) and find_class(class_name(cls), None) is not cls


@by_class
def named_fields(cls: Any) -> tuple[str, ...] | None:
    """Return the fields of a class as `collections.namedtuple` makes it, with nothing added; None for any other."""
    fields = vars(cls).get("_fields")
    if cls.__bases__ != (tuple,) or type(cls) is not type or type(fields) is not tuple:
        return None
    plain: Any = _named_tuple(module_of(cls), cls.__name__, fields)
    is_plain = plain is not None and vars(cls).keys() == vars(plain).keys() and not vars(cls)["_field_defaults"]
    return fields if is_plain and getattr(cls.__new__, "__defaults__", ()) is None else None


def named_tuple_by(text: str, known: type | None) -> type | None:
    """Return the class of named tuples for a text, `module:name(field,field)`: the `known` one, if it has these fields,
    or one made anew.
    """
    match = re.fullmatch(r"([\w.]+):(\w+)\(([\w,]*)\)", text)
    if match is None:
        return None
    fields = tuple(match[3].split(",")) if match[3] else ()
    has_these = known is not None and hasattr(known, "_fields") and named_fields(known) == fields
    return known if has_these else _named_tuple(match[1], match[2], fields)


@lru_cache(maxsize=_MOST_CLASSES)
def _named_tuple(module: str, name: str, fields: tuple[str, ...]) -> type | None:
    try:
        return collections.namedtuple(name, fields, module=module)
    except ValueError:
        return None


def _is_transparent(base: type) -> bool:
    return module_of(base) in _TRANSPARENT_MODULES


def _is_of_python(cls: type) -> bool:
    name = class_name(cls)
    return _has_no_more_than_slots(cls) and (name.startswith(_OPEN_AGAIN) or not name.startswith(_CLOSED))


def _has_no_more_than_slots(cls: Any) -> bool:
    """Return whether a class adds to the objects of its base only room for slots, a dictionary and weak references, and
    no fields of C."""
    members = sum(isinstance(item, types.MemberDescriptorType) for item in vars(cls).values())
    base, room = cls.__base__, members if "__slots__" in vars(cls) else 0  # a class written in C may have members, too
    for name in ("__dictoffset__", "__weakrefoffset__"):  # negative: in front of the object, or behind its items
        room += (getattr(cls, name) > 0 and getattr(base, name) <= 0) or (
            cls.__itemsize__ > 0 and getattr(cls, name) < -1 and not getattr(base, name)
        )
    return bool(cls.__flags__ & _HEAP_TYPE) and cls.__basicsize__ - base.__basicsize__ == room * _POINTER


def is_user_class(cls: type) -> bool:
    """Return whether a class and all of its bases are the program's own, Python's containers and plain classes aside.

    Metaclasses count, too: one that keeps the only instance of each of its classes holds state.
    """
    allowed = (object, tuple, *_PLAIN, *BASES) if hasattr(cls, "_fields") else (object, *_PLAIN, *BASES)
    if is_open(cls):
        return True
    return (cls in allowed or is_own_class(cls)) and all(
        base in (*allowed, type) or _is_transparent(base) or is_own_class(base) for base in cls.__mro__
    )


@by_class
def value_base(cls: type) -> Any:
    """Return the base in `MADE_FROM_PARTS` from which a class derives (`class Meters(float)`), or None. An object of
    the class is made from its parts, and has attributes besides.
    """
    base = next((base for base in MADE_FROM_PARTS if issubclass(cls, base)), None)
    if base is None or is_enum(cls) or hasattr(cls, "_fields"):
        return None
    is_known = issubclass(base, BaseException) or cls in _ARRAYS_OF_NUMPY
    if not is_known and (cls is base or not (is_own_class(cls) or is_library_class(cls))):
        return None
    rest = [each for each in cls.__mro__ if each not in base.__mro__ and each not in _ARRAYS_OF_NUMPY]
    return base if all(_adds_attributes_alone(each, base) for each in rest) else None


def _adds_attributes_alone(cls: type, base: type) -> bool:
    """Return whether a class adds only attributes and slots to such a base, and making an object runs no code of a
    library, which may keep account of its objects.
    """
    if module_of(cls) == "builtins":
        return cls.__basicsize__ == base.__basicsize__  # true for most of Python's exceptions
    hooks = {"__array_finalize__"} if is_own_class(cls) else {"__new__", "__del__", "__array_finalize__"}
    return (_is_transparent(cls) or _is_of_python(cls)) and hooks.isdisjoint(vars(cls))


@by_class
def foreign_base(cls: type) -> type:
    """Return the first class among a class and its bases that is not the program's."""
    return next(base for base in cls.__mro__ if not is_own_class(base))


def container_base(cls: type) -> type | None:
    """Return the container from which a class derives, or None."""
    return next((base for base in BASES if issubclass(cls, base)), None)


def stream_base(cls: type) -> type | None:
    """Return the random generator from which a class of the program derives, or None."""
    return next((base for base in STREAMS if issubclass(cls, base)), None) if is_own_class(cls) else None


def own_attributes(value: object) -> dict[str, object] | None:
    """Return the dictionary of an object, or None if it has none. No hook of its class runs."""
    if not _shows_dictionary(type(value)):
        return None
    if issubclass(type(value), threading.local):
        return vars(value)  # the attributes of this thread
    try:
        own: dict[str, object] = object.__getattribute__(value, "__dict__")
    except (AttributeError, TypeError):  # a class may have another class's descriptors (TensorFlow's ShouldUseWrapper)
        return None
    return own


@by_class
def _shows_dictionary(cls: type) -> bool:
    """Return whether `__dict__` is Python's own, and not a property that returns another dictionary (munch's). In
    `SimpleNamespace` it is a member.
    """
    found = next((vars(base)["__dict__"] for base in cls.__mro__ if "__dict__" in vars(base)), None)
    return found is None or isinstance(found, types.GetSetDescriptorType | types.MemberDescriptorType)


def slots_of(cls: type) -> dict[str, Any]:
    """Return the slots of a class and its bases by name, as descriptors, so that no `__getattr__` runs."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if base not in BASES:
            found.update({name: item for name, item in vars(base).items() if isinstance(item, types.MemberDescriptorType)})
    found.pop("__dict__", None)  # see `own_attributes`
    return found
