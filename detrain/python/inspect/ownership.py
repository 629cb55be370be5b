"""Objects of libraries that hold nothing but data: an environment of gymnasium, a scaler of scikit-learn, a meter.

They are captured as objects of the program are, but only as a whole: where one attribute is no data, none is set,
because a part of a stranger's state may not fit the rest. What then changes is named (detrain.python.inspect.progress).
The same holds for what a library keeps in objects of the program's classes that derive from its own.
"""

from __future__ import annotations

import sys
import types
from typing import Any, Final

import numpy as np

from detrain.base.framework_names import MODULES
from detrain.python.inspect.names import is_own_class, module_of, own_attributes
from detrain.python.inspect.object_graph import CONTAINERS
from detrain.python.inspect.pandas_tables import is_table

FRAMEWORKS: Final = MODULES | {
    *("jax", "jaxlib", "torch", "tensorboard"),
    *("numpy", "h5py", "google", "absl", "wrapt", "detrain"),
}
_DATA_OF_PYTHON: Final = frozenset({"argparse", "collections", "configparser", "queue", "_queue", "statistics", "string"})
"""Modules of Python whose classes hold what the program puts there."""
_COMPILED: Final = ("numba.core.", "numba.np.ufunc.")
"""Where libraries keep functions that they have compiled: what is in them says nothing of the program."""
_MAX_OBJECTS: Final = 500
_MAX_DEPTH: Final = 12
_SCALARS: Final = (type(None), bool, int, float, complex, str, bytes)
_KEPT: Final = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType, np.dtype)
"""Stay as the process has them."""


_verdicts: dict[type, bool] = {}
_extending: dict[type, bool] = {}


def is_library_class(cls: type) -> bool:
    """Return whether a class is of a library that is neither Python's own nor a framework."""
    if cls not in _verdicts:
        _verdicts[cls] = _is_of_library(cls)
    return _verdicts[cls]


def _is_of_library(cls: type) -> bool:
    module = module_of(cls)
    is_data = cls is np.poly1d or module.startswith("numpy.polynomial.")
    top = "" if is_data else module.partition(".")[0]
    is_known = top not in sys.stdlib_module_names or top in _DATA_OF_PYTHON
    return is_known and top not in FRAMEWORKS and not module.startswith(_COMPILED) and not is_own_class(cls)


def extends_library(cls: type) -> bool:
    """Return whether a class of the program derives from such a class, and from none of a framework."""
    if cls not in _extending:
        tops = {module_of(base).partition(".")[0] for base in cls.__mro__}
        _extending[cls] = is_own_class(cls) and any(map(is_library_class, cls.__mro__)) and tops.isdisjoint(FRAMEWORKS)
    return _extending[cls]


def is_library_object(value: object) -> bool:
    """Return whether an object is of such a class, or of one that derives from it, and has attributes."""
    cls = type(value)
    return (is_library_class(cls) or extends_library(cls)) and own_attributes(value) is not None and not is_table(value)


def is_data_object(value: object, is_state: Any) -> bool:
    """Return whether an object of a library is data through and through.

    `is_state` says so of what is no such object.
    """
    return is_library_object(value) and _is_whole(value, is_state, set(), 0)


def _is_whole(value: object, is_state: Any, seen: set[int], depth: int) -> bool:
    if id(value) in seen:
        return True
    if len(seen) >= _MAX_OBJECTS or depth > _MAX_DEPTH:
        return False
    seen.add(id(value))
    cls = type(value)
    if cls in _SCALARS or isinstance(value, _KEPT) or any(value is stream for stream in (sys.stdout, sys.stderr, sys.stdin)):
        return True
    if cls in CONTAINERS.values():
        parts: list[object] = [*value.keys(), *value.values()] if isinstance(value, dict) else list(value)  # type: ignore[call-overload]
    elif cls is types.MethodWrapperType:  # of an iterator: tqdm keeps its `__next__`
        parts = [value.__self__]  # type: ignore[attr-defined]
    elif is_library_object(value):
        parts = list((own_attributes(value) or {}).values())
    else:
        return bool(is_state(value))
    return all(_is_whole(part, is_state, seen, depth + 1) for part in parts)
