"""Variables of TensorFlow at a moment, held by reference, and what iterators hand out after it.

Iterators cannot be set back. What they hand out after a moment is kept while the moment is held, and handed out again.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, eq=False, weakref_slot=True)
class TensorFlowHeldState:
    """The variables, and what names and counts them, at a moment."""

    generation: int
    built: int
    """Pieces of building until then."""
    values: dict[str, Any]
    uninitialized: frozenset[str]
    births: dict[str, int]
    made: dict[str, int]
    given: dict[str, int]
    iterators: weakref.WeakSet[Any]
    """Those that there were."""
    draws: tuple[int, dict[str, int]]
    """Of eager random ops."""
    pulls: list[tuple[weakref.ref[Any], Any]] = field(default_factory=list)
    """What iterators have handed out since, until the next moment that was held."""
    sets: list[tuple[weakref.ref[Any], str, object]] = field(default_factory=list)
    """Attributes of Keras's objects that have been set since, likewise, and what they were."""
    following: TensorFlowHeldState | None = None
    made_by_load: dict[str, int] | None = None
    """How many iterators over each shuffled set the load behind this moment made."""


class IteratorPulls:
    """What iterators hand out after a moment that is held."""

    def __init__(self) -> None:
        self._latest: weakref.ref[TensorFlowHeldState] | None = None
        self._again: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()
        self.is_loading = False
        """Inside the load of a batch loop, whose batches the loop's wrapper keeps."""
        self.by_python: set[str] = set()
        """Iterators that bodies have advanced and whose pipelines run Python: it may draw, count, or change what bodies
        read."""

    @property
    def latest(self) -> TensorFlowHeldState | None:
        """The newest moment, while its holder keeps it."""
        return None if self._latest is None else self._latest()

    def follow(self, held: TensorFlowHeldState) -> None:
        """A moment has been held."""
        if (before := self.latest) is not None:
            before.following = held
        self._latest = weakref.ref(held)

    def next(self, iterator: Any, original: Callable[[Any], Any]) -> Any:
        """Return the next element of an iterator: one that was taken back, or a new one."""
        waiting = self._again.get(iterator)
        value = waiting.pop(0) if waiting else original(iterator)
        latest = None if self.is_loading else self.latest
        if latest is not None:
            latest.pulls.append((weakref.ref(iterator), value))
            name = getattr(iterator, "detrain_python", "")
            if name and iterator in latest.iterators:
                self.by_python.add(name)
        return value

    def has_waiting(self, iterator: Any) -> bool:
        """Return whether an iterator has elements to hand out again, so that it is further than what draws from it."""
        return bool(self._again.get(iterator))

    def take_back(self, held: TensorFlowHeldState) -> None:
        """Take back what was handed out since a moment."""
        taken: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()
        for moment in chain(held):
            for reference, value in moment.pulls:
                iterator = reference()
                if iterator is not None and iterator in held.iterators:
                    taken.setdefault(iterator, []).append(value)
        for iterator, values in taken.items():
            self._again[iterator] = values + self._again.get(iterator, [])
            iterator.detrain_pulled -= len(values)
        held.pulls, held.following, self._latest = [], None, weakref.ref(held)


def chain(held: TensorFlowHeldState | None) -> Iterator[TensorFlowHeldState]:
    while held is not None:
        yield held
        held = held.following
