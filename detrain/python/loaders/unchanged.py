"""Whether steps have changed anything that the next loads of an iterator read.

Trials of faults share the batches that one of them has loaded. That is exact if the loading code, a generator of the
program, reads nothing that a step has changed since: neither its variables nor any object reachable from them.
"""

from __future__ import annotations

import enum
import gc
import sys
import types
from typing import Any, Final

import numpy as np
import xxhash

from detrain.base.digest import ToArray, digest_value
from detrain.python.codec.recipes import describe
from detrain.python.inspect.frames import is_user_file
from detrain.python.inspect.names import is_laid_open, is_own_class, is_user_module
from detrain.python.inspect.progress import HANDS_ON, is_plain_iterator, is_progress_bar, iterators_in
from detrain.python.inspect.random_state import is_stream, state_of
from detrain.python.inspect.stored_attributes import is_of_framework
from detrain.python.loaders.loads_read import Suspended, reached

_BY_ADDRESS: Final = (type, types.FunctionType, types.CodeType, enum.Enum)
_MOST_OBJECTS: Final = 1 << 16
_MOST_BYTES: Final = 1 << 28
"""Bytes of arrays: their digest takes a hundredth of a second or two."""


class Reads:
    """The variables and objects that an iterator reads when it loads its next batches, as they are now."""

    def __init__(self, iterator: object, to_array: ToArray = lambda _value: None) -> None:
        self._to_array = to_array
        self._source = _source(iterator)
        self._named: list[object] = []
        """The objects that the digest knows by address: while they are held, no other object gets such an address."""
        self._digest = self._look(self._named)

    @property
    def is_known(self) -> bool:
        """Whether the digest covers all objects that the loads read."""
        return self._digest != ""

    def is_same(self) -> bool:
        """Return whether all of them are as they were."""
        return self.is_known and self._look([]) == self._digest

    def _look(self, named: list[object]) -> str:
        """Return a digest, and list the objects that it knows by address; empty if it cannot cover everything."""
        if self._source is None:
            return ""

        def address(value: Any) -> np.ndarray[Any, Any] | None:
            cls = type(value)
            if not hasattr(cls, "__array__") or isinstance(value, np.generic | np.memmap):
                return None
            if is_of_framework(cls) and not hasattr(cls, "assign") and not hasattr(cls, "_version"):
                named.append(value)
                return np.array([id(value)])
            array = self._to_array(value)  # it may change in place; PyTorch's `_version` does not count all changes
            if array is None:
                raise ValueError(value)
            return array

        def meet(value: object) -> None:
            if len(numbers) == _MOST_OBJECTS or (isinstance(value, types.ModuleType) and is_user_module(value)):
                raise ValueError(value)  # a module holds more than the loads read
            state.update(f"{numbers.setdefault(id(value), len(numbers))} {type(value).__qualname__};".encode())
            known = value.code if isinstance(value, Suspended) else value
            if isinstance(known, _BY_ADDRESS):
                named.append(known)
                state.update(f"{id(known)};".encode())
            elif is_own_class(type(value)) and not is_stream(value) and not is_laid_open(type(value)):
                raise ValueError(value)  # it may hold more than it shows

        numbers: dict[int, int] = {}
        """The objects that have been met, which the walk keeps alive, by address."""
        state, bytes_left = xxhash.xxh3_128(), _MOST_BYTES
        walk = reached(self._source, deepest=sys.maxsize, most_items=sys.maxsize, meet=meet)
        try:
            for count, (place, value, is_data) in enumerate(walk):
                bytes_left -= getattr(value, "nbytes", 0)
                if bytes_left < 0 or count == _MOST_OBJECTS:
                    return ""
                data = state_of(value) if is_stream(value) else value if is_data else type(value).__qualname__
                if data is not value and not is_stream(value) and describe(value) is None:
                    return ""  # it may hold more than its parts
                state.update(f"{place} {digest_value(data, address)};".encode())
        except ValueError:
            return ""
        return str(state.hexdigest())


def _source(iterator: object) -> object:
    """Return the suspended code of an iterator's generators; None if code of another kind loads."""
    if isinstance(iterator, types.GeneratorType) and is_user_file(iterator.gi_code.co_filename):
        return Suspended.of(iterator)
    if isinstance(iterator, HANDS_ON) or is_progress_bar(iterator):
        inner = [_source(each) for each in iterators_in(gc.get_referents(iterator))]
        return tuple(inner) if inner and None not in inner else None
    return () if is_plain_iterator(iterator) else None
