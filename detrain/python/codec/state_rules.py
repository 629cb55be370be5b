"""Rules for data: which objects are data, which hashes are those of values, which attributes of an object are state."""

from __future__ import annotations

import collections
import datetime
import functools
import threading
import types
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from detrain.base.dtypes import dtype_name
from detrain.base.plain_types import CONTAINERS, NUMBERS_AND_TEXTS
from detrain.python.codec.baseline import Baseline
from detrain.python.codec.recipes import VALUE_CLASSES, describe
from detrain.python.inspect.enums import is_enum, is_of_enum, member_attributes, members_of
from detrain.python.inspect.frames import has_user_code, is_user_file
from detrain.python.inspect.hooks import Hooks
from detrain.python.inspect.names import STATIC, computes, container_base, is_own_class, is_user_class, own_attributes, value_base
from detrain.python.inspect.ownership import data_in, is_data_class
from detrain.python.inspect.progress import is_open_for_writing
from detrain.python.inspect.random_state import STREAMS
from detrain.python.inspect.stored_attributes import is_of_framework, program_names
from detrain.python.inspect.tables import is_table
from detrain.python.process.reducers import reduction_of

_VALUE_TYPES: Final = (*NUMBERS_AND_TEXTS, *VALUE_CLASSES)
"""Types whose hashes depend on the value only, in every process of the same hash seed."""
_STATE_TYPES: Final = (*(*_VALUE_TYPES, bytearray, slice, np.ndarray, datetime.time, datetime.timedelta, *STREAMS),)
_LOCKS: Final = (type(threading.Lock()), type(threading.RLock()))
_LARGE: Final = 500
"""A data object that leads to more objects than this stays as it is while it has not changed."""
_DEEP_STATE: Final = 8
"""Containers of data are not nested deeper than this in an object of a library."""


class DataRules:
    """Tells data from objects that stay as they are. `collects`: the baseline is being made, and all objects count."""

    def __init__(self, hooks: Hooks, baseline: Baseline, *, collects: bool) -> None:
        self._hooks, self._baseline, self._collects = hooks, baseline, collects
        self._whole: set[int] = set()
        """Identities of the objects that data objects lead to; the caller keeps these alive."""
        self._large: set[int] = set()
        self._partly: set[int] = set()

    def is_data(self, value: object) -> bool:
        """Return whether an object is a library's and data through and through: it is captured as a whole."""
        if not is_data_class(type(value)) or id(value) in self._partly or is_table(value):
            return False
        if id(value) not in self._whole:
            # The program has put the items into a container.
            found = data_in(value, self._is_leaf) if container_base(type(value)) is None else {id(value)}
            if found is None:
                self._partly.add(id(value))
                return False
            self._whole |= found
            if len(found) > _LARGE:
                self._large.add(id(value))
        return True

    def is_large(self, value: object) -> bool:
        """Return whether a data object is so large that it is captured only if it has changed."""
        return id(value) in self._large

    def _is_leaf(self, value: object) -> bool:
        is_known = is_plain_state(value) or self._hooks.variable(value) is not None or self._is_tensor(value)
        return is_known or (_is_free_lock(value) and (self._collects or self._baseline.has(value)))  # it stays

    def is_walkable(self, value: Any, depth: int = 0) -> bool:
        """Return whether an attribute can be described: data, with objects inside that stay as they are."""
        if self.is_state(value) or self._collects or isinstance(value, (*STATIC, functools.partial)) or computes(value):
            return True
        if (held := self._held(value, with_keys=True)) is not None:
            return depth < _DEEP_STATE and all(self.is_walkable(item, depth + 1) for item in held)
        return self._hooks.variable(value) is not None or self._baseline.has(value)

    def is_of_library(self, value: Any, depth: int = 0) -> bool:
        """Return whether an attribute is the library's through and through: layers, variables, losses, and containers
        of these.
        """
        cls = type(value)
        if (held := self._held(value)) is not None:
            return bool(held) and depth < _DEEP_STATE and all(self.is_of_library(item, depth + 1) for item in held)
        if computes(value):
            return False
        if isinstance(value, types.FunctionType):
            return not is_user_file(value.__code__.co_filename)
        is_framework = is_of_framework(cls) and not self._hooks.is_holder(value) and not self.is_marked(value)
        return self._hooks.variable(value) is not None or (is_framework and not self._is_tensor(value))

    def attributes(self, value: object) -> dict[str, object]:
        """Return the program's attributes on an object of a library, or of a class that derives from a library's: data,
        and library objects that the program chose."""
        own = own_attributes(value) or {}
        of_program = program_names(type(value), self._hooks.stored_outside, own)
        names = own.keys() if self._hooks.is_holder(value) else of_program
        chosen = of_program if is_own_class(type(value)) else frozenset()
        stored = {name: item for name, item in list(own.items()) if name in names}
        return {
            name: item
            for name, item in stored.items()
            if not self.is_of_library(item) or (name in chosen and (self.is_choice(item) or self.is_made(item)))
        }

    def is_made(self, value: Any, depth: int = 0) -> bool:
        """Return whether the loop has made an object that building ahead will not make: a loss, a schedule, an
        optimizer.
        """
        if (held := self._held(value)) is not None:
            return depth < _DEEP_STATE and any(self.is_made(item, depth + 1) for item in held)
        if self._hooks.holds_variables(value):
            is_new = self._hooks.is_of_loop(value)
        else:
            is_new = callable(value) and hasattr(type(value), "get_config")
        return is_new and not self.is_choice(value)

    def is_choice(self, value: Any, depth: int = 0) -> bool:
        """Return whether the program may have put a library's object in the place of another: one older than the loop,
        a data set, or one that the loop has made and a resume makes again (a compiled function, a variable)."""
        if (held := self._held(value)) is not None:
            return depth < _DEEP_STATE and all(self.is_choice(item, depth + 1) for item in held)
        is_known = self._collects or self._baseline.has(value)
        is_new_variable = self._hooks.variable(value) is not None and self._hooks.is_of_loop(value)
        wrapped = getattr(value, "__wrapped__", None)
        is_data_set = hasattr(type(value), "element_spec")  # of tf.data
        return is_known or is_new_variable or is_data_set or has_user_code(getattr(wrapped, "__func__", wrapped))

    def is_marked(self, value: object) -> bool:
        """Return whether the program has put attributes on an object of a framework: `model.counter = 0`."""
        return is_of_framework(type(value)) and not self._hooks.stored_outside.isdisjoint(own_attributes(value) or ())

    def is_state(self, value: Any, depth: int = 0) -> bool:
        """Return whether an attribute of a library's object is data, and not a part that the library builds there."""
        cls = type(value)
        if is_open_for_writing(value) or is_table(value) or describe(value) is not None or reduction_of(cls) is not None:
            return True
        if is_enum(cls) or issubclass(cls, _STATE_TYPES):
            return cls is not np.ndarray or dtype_name(value.dtype) is not None
        if (held := self._held(value, with_keys=True)) is not None:
            return depth < _DEEP_STATE and all(self.is_state(item, depth + 1) for item in held)
        if is_user_class(cls) or value_base(cls) is not None:
            return True
        if self.is_data(value):
            return True
        if is_own_class(cls) or self._hooks.is_holder(value):
            return self._collects or self._baseline.has(value)
        return self._hooks.variable(value) is None and self._is_tensor(value)

    def _held(self, value: Any, *, with_keys: bool = False) -> list[Any] | None:
        """Return the items (`with_keys`: and keys) of a container of Python or a framework; None for other objects."""
        if type(value) not in CONTAINERS.values() and not self._hooks.is_container(value):
            return None
        keys = list(value) if with_keys and isinstance(value, dict) else []
        return [*keys, *(value.values() if isinstance(value, dict) else value)]

    def _is_tensor(self, value: object) -> bool:
        is_tensor = self._hooks.is_shared(value) or self._hooks.tensor(value) is not None
        return is_tensor or self._hooks.parts(value) is not None


def plain(value: Any) -> object:
    """Return the content of a framework's list, dict or set as a plain one, or the tuple inside a wrapper."""
    if isinstance(value, tuple):
        return value.__wrapped__  # type: ignore[attr-defined]
    return next(base(value) for base in (collections.OrderedDict, dict, list, set) if isinstance(value, base))


def is_plain_state(value: object) -> bool:
    """Return whether a value is data of a kind that needs no framework."""
    cls = type(value)
    if issubclass(cls, np.ndarray):
        return cls is np.ndarray and dtype_name(value.dtype) is not None  # type: ignore[attr-defined]
    is_known = is_table(value) or describe(value) is not None or reduction_of(cls) is not None
    return is_known or is_enum(cls) or issubclass(cls, _STATE_TYPES) or is_user_class(cls) or value_base(cls) is not None


def _is_free_lock(value: object) -> bool:
    return isinstance(value, _LOCKS) and repr(value).startswith("<unlocked")


def has_contents(cell: types.CellType) -> bool:
    """Return whether a closure's variable is bound."""
    try:
        cell.cell_contents  # noqa: B018 - reading it is the test
    except ValueError:
        return False
    return True


_NOTHING: Final[Mapping[str, object]] = types.MappingProxyType({})


def class_attributes(cls: type, known: Mapping[str, object] = _NOTHING) -> dict[str, object]:
    """Return the attributes of a class that are state: no methods (among them those `known`), no descriptors, no names
    of Python's own.
    """
    if hasattr(cls, "_fields"):
        return {}
    static = (*STATIC, functools.cached_property, types.MemberDescriptorType, types.GetSetDescriptorType)
    found = {
        name: item
        for name, item in list(vars(cls).items())
        if known.get(name, _NOTHING) is not item
        and not (name.startswith("__") and name.endswith("__"))
        and name != "_abc_impl"
        and not issubclass(type(item), static)
    }
    if not is_enum(cls):
        return found
    members = members_of(cls)
    plain_found = {name: item for name, item in found.items() if name not in members and not is_of_enum(name)}
    return plain_found | {name: member for name, member in members.items() if member_attributes(member)}


_OF_ANNOTATIONS: Final = ("__annotate__", "__annotate_func__")
"""Names of the function by which Python 3.14 computes a class's annotations: it leads to the namespace of the class."""


def class_methods(cls: type, known: Mapping[str, object] = _NOTHING) -> dict[str, object]:
    """Return the code that a class holds, which the program may replace: functions, wrappers of functions, classes.

    Methods that Python calls by itself count if they are written in the program. Items in `known` are not looked at.
    """
    if hasattr(cls, "_fields"):
        return {}
    is_own = is_user_class(cls)
    found = {}
    for name, item in list(vars(cls).items()):
        if name in _OF_ANNOTATIONS:
            continue
        if known.get(name, _NOTHING) is item:
            found[name] = item
            continue
        if not issubclass(type(item), (*STATIC, functools.cached_property)) or (
            name.startswith("__") and name.endswith("__") and not any(map(has_user_code, functions_in(item)))
        ):
            continue
        if is_own or any(map(has_user_code, functions_in(item))) or (isinstance(item, type) and is_own_class(item)):
            found[name] = item
    return found


def functions_in(item: Any) -> tuple[Any, ...]:
    """Return a function by itself, or the functions inside a wrapper, with None for those that it lacks."""
    cls = type(item)
    if cls is types.FunctionType:
        return (item,)
    return tuple(getattr(item, part) for part in WRAPPERS[cls.__name__][1]) if is_wrapper(item) else ()


def is_wrapper(item: object) -> bool:
    """Return whether an attribute of a class is a function in one of Python's wrappers."""
    return type(item).__name__ in WRAPPERS and WRAPPERS[type(item).__name__][0] is type(item)


WRAPPERS: Final[dict[str, tuple[Any, tuple[str, ...]]]] = {
    "staticmethod": (staticmethod, ("__func__",)),
    "classmethod": (classmethod, ("__func__",)),
    "property": (property, ("fget", "fset", "fdel")),
    "cached_property": (functools.cached_property, ("func",)),
}
"""Python's wrappers of functions in a class, by name: the class, and the names of the attributes with the functions."""


def may_hold_state(item: Any) -> bool:
    """Return whether a function holds objects that its calls may change: a closure, attributes, defaults that are no
    constants.
    """
    if type(item) is types.FunctionType:
        defaults = (*(item.__defaults__ or ()), *(item.__kwdefaults__ or {}).values())
        closes_over = item.__closure__ is not None and item.__code__.co_freevars != ("__class__",)
        holds = closes_over or bool(item.__dict__) or not all(type(each) in _CONSTANTS for each in defaults)
        return holds and has_user_code(item)
    return is_own_class(item) if isinstance(item, type) else any(map(may_hold_state, functions_in(item)))


_CONSTANTS: Final = frozenset({bool, int, float, complex, str, bytes, type(None)})


def read_slot(slot: Any, value: object) -> tuple[object] | None:
    """Return the value in a slot, as a tuple of one, past the hooks of the class; None if the slot is not set."""
    try:
        return (slot.__get__(value),)
    except AttributeError:
        return None


def _is_nan(value: object) -> bool:
    """Return whether a value is a NaN: it is found only by its identity, and its hash is its address."""
    return bool(value != value)  # noqa: PLR0124


def has_value_hash(value: object) -> bool:
    """Return whether a hash depends on the value, in every process of the same hash seed, and not on an address."""
    cls = type(value)
    if cls in (tuple, frozenset) or (issubclass(cls, tuple) and cls.__hash__ is tuple.__hash__):
        return all(map(has_value_hash, value))  # type: ignore[call-overload]
    if value is None:  # a constant from 3.12 on
        return bool(hash(None) == 0xFCA86420)
    if is_enum(cls) or issubclass(cls, (*_VALUE_TYPES, datetime.time, datetime.timedelta)):
        return cls.__hash__ is not object.__hash__ and not _is_nan(value)
    return cls.__hash__ is not object.__hash__ and is_user_class(cls)
