"""What the loads of a batch loop read of which its bodies write: loaded again from the state of the epoch's start, they
may yield others.

A sampler that draws hard examples reads losses that bodies note; a data set reads a difficulty that they set. What the
program's code leads to from the loader is looked at before and behind a load, in the first batches of an epoch and at
each cut: what changes while no load is running, a body has changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import xxhash

from detrain.base.losses import LOADS_READ
from detrain.base.plain_types import NUMBERS_AND_TEXTS
from detrain.python.inspect.stored_attributes import is_of_framework
from detrain.python.loaders.reached import COLLECTIONS, reached, some

_FIRST: Final = 3
"""In so many batches of an epoch, the first ones whose bodies run here, it is looked who changes what."""
_DEEPEST: Final = 7
_MOST_ITEMS: Final = 256
_MOST_BYTES: Final = 16 << 20


class LoadsRead:
    """Finds out, in each epoch anew, what bodies have changed of what loads read."""

    def __init__(self) -> None:
        self._last: dict[str, str] = {}
        self._by_loads: set[str] = set()
        self._by_bodies: set[str] = set()
        self._source: object = None
        self._heads = 0

    def begin_epoch(self) -> None:
        """What is there now is there again when a run resumes in this epoch."""
        self._last, self._by_bodies, self._source, self._heads = {}, set(), None, 0

    def at_head(self, source: object) -> None:
        """A batch is about to be loaded from what the loop goes over."""
        self._source = source if self._heads < _FIRST else None
        self._heads += 1
        self._by_bodies |= self._changed(self._source)

    def behind_load(self) -> None:
        """It has been loaded."""
        source, self._source = self._source, None  # where the loop is left, plain Python lets go of it
        self._by_loads |= self._changed(source)

    def lost(self, source: object) -> list[str]:
        """Return, at a cut, what bodies have changed, in words."""
        self._by_bodies |= self._changed(source) - self._by_loads
        return [f"{place} ({LOADS_READ})" for place in sorted(self._by_bodies)]

    def _changed(self, source: object) -> set[str]:
        if source is None:
            return set()
        states: dict[str, Any] = {}
        passed: set[str] = set()
        for place, value, is_data in reached(source, deepest=_DEEPEST, most_items=_MOST_ITEMS):
            if isinstance(value, Iterator) and is_of_framework(type(value)):
                passed.add(place)  # it has a position, which says how far it is; its workers move by themselves
            elif place and is_data and place not in passed:
                _update(states.setdefault(place, xxhash.xxh3_128()), value)
        before, self._last = self._last, {place: state.hexdigest() for place, state in states.items()}
        return {place for place, now in self._last.items() if before.get(place, now) != now}


def _update(state: Any, value: Any) -> None:
    if isinstance(value, (range, *NUMBERS_AND_TEXTS)):
        state.update((hex(value) if type(value) is int else repr(value)).encode("utf-8", "surrogatepass"))
    elif type(value) in COLLECTIONS:
        state.update(f"{len(value)};".encode())
        for each in () if isinstance(value, set | frozenset) else some(value, _MOST_ITEMS):
            _update(state, each)
    elif (version := getattr(value, "_version", None)) is not None:  # a tensor of PyTorch's counts its changes
        state.update(f"{id(value)} {version} {tuple(value.shape)}".encode())
    elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
        flat = value.reshape(-1)
        state.update(np.ascontiguousarray(flat[:: value.nbytes // _MOST_BYTES + 1]).tobytes())
    else:
        state.update(f"{type(value).__name__} {id(value)}".encode())
