"""The types of plain data: numbers, texts, arrays and Python's containers. All code that must tell plain data from
other objects uses them."""

from __future__ import annotations

import collections
import collections.abc
from types import NoneType
from typing import Any, Final

import numpy as np

SCALARS: Final = frozenset({NoneType, bool, int, float, complex, str, bytes})
"""Python's own scalar types. A value of a class that derives from one is not meant."""
ARRAYS: Final = (np.ndarray, np.generic)
NUMBERS_AND_TEXTS: Final = (*SCALARS, np.generic)
CONTAINERS: Final[dict[str, Any]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "deque": collections.deque,
    "dict": dict,
    "OrderedDict": collections.OrderedDict,
    "Counter": collections.Counter,
    "defaultdict": collections.defaultdict,
}
"""Types of containers by the names of their kinds."""
IN_ORDER: Final = (list, tuple, collections.deque)
BASES: Final = (
    collections.OrderedDict,
    collections.Counter,
    collections.defaultdict,
    dict,
    list,
    set,
    collections.deque,
)
"""Containers that a class of the program may derive from, special ones first."""


def is_iterator(value: object) -> bool:
    """Return whether a value is an iterator. Its class says so: an object may have no attribute `__class__`, as that
    through which NumPy's `NpzFile` gives its arrays as attributes."""
    return issubclass(type(value), collections.abc.Iterator)
