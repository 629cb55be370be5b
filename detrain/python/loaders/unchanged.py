"""Whether steps have changed anything that the next loads of an iterator read.

Trials of faults share batches that one of them has loaded. That is exact if the code that loads, a generator of the
program's, reads nothing that a step has changed since: neither its variables nor any object that these lead to.
"""

from __future__ import annotations

import gc
import types
from typing import Any, Final

import numpy as np
import xxhash

from detrain.base.plain_types import NUMBERS_AND_TEXTS
from detrain.python.codec.recipes import describe
from detrain.python.inspect.frames import is_user_file
from detrain.python.inspect.progress import HANDS_ON, is_plain_iterator, is_progress_bar, iterators_in
from detrain.python.inspect.random_state import is_stream, state_of
from detrain.python.loaders.loads_read import COLLECTIONS, Suspended, reached

_DEEPEST: Final = 32
_MOST: Final = 1 << 18
"""Objects and items that one look goes over at most."""
_MOST_BYTES: Final = 1 << 28
"""Bytes of arrays that one look goes over at most: a hundredth of a second or two."""


class Reads:
    """The variables and objects that an iterator reads when it loads its next batches, as they are now."""

    def __init__(self, iterator: object) -> None:
        self._source = _source(iterator)
        self._held: list[object] = []
        """The objects that the digest names by their addresses: none of these is used again while they are held."""
        self._digest = self._look(self._held)

    @property
    def is_known(self) -> bool:
        """Whether all that the loads read can be looked at."""
        return self._digest != ""

    def is_same(self) -> bool:
        """Return whether they are all as they were."""
        return self.is_known and self._look([]) == self._digest

    def _look(self, held: list[object]) -> str:
        """Return a digest, and note which objects it names by their addresses; empty if something cannot be looked at."""
        if self._source is None:
            return ""
        state, size, count = xxhash.xxh3_128(), 0, 0
        for place, value, is_data in reached(self._source, deepest=_DEEPEST, most_items=_MOST):
            found = _written(value, held) if is_data else _written_object(value)
            size, count = size + getattr(value, "nbytes", 0), count + 1
            if found is None or size > _MOST_BYTES or count > _MOST:
                return ""
            state.update(f"{place};".encode())
            for part in found:
                state.update(part)
        return state.hexdigest()


def _source(iterator: object) -> object:
    """Return what an iterator reads as a tree of suspended generators; None if it is of another kind."""
    if isinstance(iterator, types.GeneratorType) and is_user_file(iterator.gi_code.co_filename):
        return Suspended.of(iterator)
    if isinstance(iterator, HANDS_ON) or is_progress_bar(iterator):
        inner = [_source(each) for each in iterators_in(gc.get_referents(iterator))]
        return None if None in inner or not inner else tuple(inner)
    return () if is_plain_iterator(iterator) else None


def _written_object(value: object) -> list[bytes] | None:
    """Return what an object that is no data says of itself beside what it leads to; None if it may hold more."""
    if is_stream(value):
        return [repr(state_of(value)).encode()] if not _has_arrays(state_of(value)) else _written(_flat(state_of(value)), [])
    return None if describe(value) is None else [type(value).__qualname__.encode()]


def _written(value: Any, held: list[object]) -> list[bytes] | None:
    """Return data as bytes; None for a variable of a framework, whose value may change in place."""
    if isinstance(value, (range, *NUMBERS_AND_TEXTS)):
        return [(hex(value) if type(value) is int else repr(value)).encode("utf-8", "surrogatepass")]
    if type(value) in COLLECTIONS:
        parts = [_written(each, held) for each in (value.values() if isinstance(value, dict) else value)]
        return None if None in parts else [f"{type(value).__name__} {len(value)};".encode(), *(b for p in parts for b in p or ())]
    if isinstance(value, np.ndarray):
        return [f"{value.dtype.str} {value.shape};".encode(), np.ascontiguousarray(value).view(np.uint8).data]
    if hasattr(type(value), "assign"):
        return None
    held.append(value)
    return [f"{id(value)} {getattr(value, '_version', '')};".encode()]
