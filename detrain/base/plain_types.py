"""The types that plain data is made of: numbers, texts, arrays and Python's containers. Whoever has to tell data from
all else asks here."""

from __future__ import annotations

import collections
from types import NoneType
from typing import Any, Final

import numpy as np

SCALARS: Final = frozenset({NoneType, bool, int, float, complex, str, bytes})
"""Python's own. A value of a class that derives from one of them is none."""
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
"""By the names of their kinds."""
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
