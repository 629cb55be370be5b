"""TensorFlow's variables at a moment, held by reference, and the elements that iterators hand out after it.

Iterators cannot be set back. The elements that they hand out after a moment are kept while the moment is held, and
handed out again.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, eq=False, weakref_slot=True)
class TensorFlowHeldState:
    """The variables at a moment, and the counts that name new objects."""

    generation: int
    built: int
    """The number of pieces of lazy building until then."""
    values: dict[str, Any]
    uninitialized: frozenset[str]
    births: dict[str, int]
    made: dict[str, int]
    given: dict[str, int]
    iterators: weakref.WeakSet[Any]
    """The iterators that existed at the moment."""
    draws: tuple[int, dict[str, int]]
    """The draws of eager random ops."""
    pulls: list[tuple[weakref.ref[Any], Any]] = field(default_factory=list)
    """Elements that iterators have handed out since, until the next held moment."""
    sets: list[tuple[weakref.ref[Any], str, object]] = field(default_factory=list)
    """Attributes of Keras's objects that have been set in the same time, with their values before."""
    following: TensorFlowHeldState | None = None
    made_by_load: dict[str, int] | None = None
    """How many iterators over each shuffled set the load after this moment made."""


class IteratorPulls:
    """The elements that iterators hand out after a held moment."""

    def __init__(self) -> None:
        self._latest: weakref.ref[TensorFlowHeldState] | None = None
        self._again: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()
        self.is_loading = False
        """True inside the load of a batch loop, whose batches the loop's wrapper keeps."""
        self.by_python: set[str] = set()
        """Keys of iterators that bodies have advanced and whose pipelines run Python: it may draw, count, or change
        values that bodies read."""

    @property
    def latest(self) -> TensorFlowHeldState | None:
        """The newest held moment; None if nobody keeps it any more."""
        return None if self._latest is None else self._latest()

    def follow(self, held: TensorFlowHeldState) -> None:
        """Note that a moment has been held."""
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
        """Return whether an iterator has elements to hand out again, and so is further than its reader."""
        return bool(self._again.get(iterator))

    def take_back(self, held: TensorFlowHeldState) -> None:
        """Take back the elements that were handed out since a moment."""
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
