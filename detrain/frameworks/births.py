"""Names for objects by the order of their birth, the same in every run of a program.

The order of creation alone is not a name: optimizer slots and metrics come into being when they are first used, and a resumed
process first uses them at another moment. So an object is named within the object whose method was making it (its owner, on the
Python stack): the n-th `kernel` made by the first `Dense` made by the first `Sequential`. Only the counts at the top, where the
program itself makes things, depend on how far the run is; they are part of a checkpoint. What is never made ahead (sets of tf.data
and their iterators) is always counted there: a program's loop may run in a method of its own model.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Iterator
from types import FrameType

TOP = ""


class Births:
    """The registry of owners. Objects are held weakly."""

    def __init__(self) -> None:
        self._keys: dict[int, tuple[weakref.ref[object], str]] = {}
        self._counts: dict[str, dict[str, int]] = {}
        self._given: str | None = None

    @contextlib.contextmanager
    def naming(self, key: str) -> Iterator[None]:
        """Give the next new object this key: it is made again for one that the first run had."""
        self._given = key
        try:
            yield
        finally:
            self._given = None

    def register(self, value: object, label: str, frame: FrameType | None = None) -> str:
        """Name a new object after its owner, its label and its turn; return the key."""
        known = self.key(value)
        if known is not None:
            return known
        key = self._given or self.next_key(label, frame or sys._getframe(1), value)
        self._given = None
        return self._enter(value, key)

    def _enter(self, value: object, key: str) -> str:
        identity = id(value)
        self._keys[identity] = (weakref.ref(value, lambda _ref: self._keys.pop(identity, None)), key)
        return key

    def register_at_top(self, value: object, label: str) -> str:
        """Name a new object by its turn among all of the program: the method of a model that trains may make it, epoch by epoch."""
        return self._enter(value, self.next_key(label, None))

    def next_key(self, label: str, frame: FrameType | None, value: object = None) -> str:
        """Return the key of the next object with this label that the innermost owner on the stack makes."""
        owner = self.owner(frame, object, value)
        counts = self._counts.setdefault(owner, {})
        turn = counts.get(label, 0)
        counts[label] = turn + 1
        name = f"{label}.{turn}" if turn else label
        return f"{owner}/{name}" if owner else name

    def key(self, value: object) -> str | None:
        """Return the key of a registered object."""
        entry = self._keys.get(id(value))
        return entry[1] if entry is not None and entry[0]() is value else None

    def alive(self) -> list[tuple[str, object]]:
        """Return every registered object that is alive, after its key."""
        return [(key, value) for reference, key in list(self._keys.values()) if (value := reference()) is not None]

    def find(self, key: str) -> object | None:
        """Return the live object with a key."""
        for reference, known in self._keys.values():
            if known == key:
                return reference()
        return None

    def living(self, kind: type) -> Iterator[tuple[str, object]]:
        """Yield the keys and objects of a kind that are alive."""
        for reference, key in list(self._keys.values()):
            value = reference()
            if isinstance(value, kind):
                yield key, value

    def top_counts(self) -> dict[str, int]:
        """Return how many of each label the program itself has made."""
        return dict(self._counts.get(TOP, {}))

    def set_top_counts(self, counts: dict[str, int]) -> None:
        """Set the counts, so that what the program makes from here on is named as in the first run."""
        self._counts[TOP] = dict(counts)

    def owner(self, frame: FrameType | None, kind: type, value: object = None) -> str:
        """Return the key of the innermost registered object of a kind whose method is on the stack, or `TOP`."""
        while frame is not None:
            code = frame.f_code
            if code.co_argcount and code.co_varnames[0] == "self":
                owner = frame.f_locals.get("self")
                if owner is not value and isinstance(owner, kind):
                    key = self.key(owner)
                    if key is not None:
                        return key
            frame = frame.f_back
        return TOP
