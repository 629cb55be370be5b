"""Names (keys) for objects by their order of creation, the same in every run of a program.

The order of creation alone gives no stable name: optimizer slots and metrics are made when they are first used, and a
resumed process first uses them at another moment. So an object is named within the object whose method was making it
(its owner, on the Python stack): the n-th `kernel` made by the first `Dense` made by the first `Sequential`. Only the
counts at the top, for objects that the program itself makes, depend on how far the run is; a checkpoint holds them.
Objects that are never made ahead (tf.data's datasets and iterators) always count there: a program's loop may run in a
method of its own model. A checkpoint also holds the counts of other objects that such a loop makes, or that the
program's code makes in an owner's method at several moments (a metric for each epoch, a layer in each call). Objects
made at one moment and still alive need no count: a resumed process makes them again.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import CodeType, FrameType

from detrain.python.inspect.frames import is_user_file, names_of, outwards

TOP = ""
_APART = "~"
"""The start of the temporary keys of objects that are made again, until they get their own keys."""


class Births:
    """The registry of named objects, which may own others. Objects are held weakly."""

    def __init__(self) -> None:
        self._keys: dict[int, tuple[weakref.ref[object], str]] = {}
        self._counts: dict[str, dict[str, int]] = {}
        self._given: str | None = None
        self.is_aside = False
        """Whether a library makes objects just to look at them."""
        self.is_apart = False
        """Whether objects made now get their names, and their values, later."""
        self._turns_apart = 0
        self._of_loop: frozenset[CodeType] | None = None
        """The code of the training loop and of its callers; None outside of a loop."""
        self._made_in_loop: set[int] = set()
        self._once: dict[tuple[str, str], tuple[int, object]] = {}
        """For objects that the program's code has made in owners' methods inside the loop, by (owner, label): the count
        before the first of them, and its moment."""
        self._found_alive: dict[tuple[str, str], int] = {}
        self._going_on: set[tuple[str, str]] = set()
        """(owner, label) of objects that the loop makes again and again: a resumed process makes only the next ones."""
        self.moment: Callable[[], object] = lambda: None
        """Returns the run's position."""
        self.is_building: Callable[[], bool] = lambda: False
        """Returns whether a part is being built that a resumed process builds again."""

    def begin_loop(self, frame: FrameType | None) -> None:
        """Note that the program enters a training loop in this frame."""
        self._of_loop = frozenset(each.f_code for each in outwards(frame))

    def end_loop(self) -> None:
        """Note that the program has left the loop: a resumed process repeats all that it makes until the next loop."""
        self._of_loop = None

    @contextlib.contextmanager
    def naming(self, key: str) -> Iterator[None]:
        """Inside, give this key to the next new object: it replaces an object of the first run."""
        self._given = key
        try:
            yield
        finally:
            self._given = None

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Inside, name and count no objects: they are thrown away at once, and how often they are made depends on the
        way to a cut.
        """
        before, self.is_aside = self.is_aside, True
        try:
            yield
        finally:
            self.is_aside = before

    def register(self, value: object, label: str, frame: FrameType | None = None) -> str:
        """Name a new object after its owner, its label and its turn; return the key, empty for an object that is thrown
        away at once.
        """
        known = self.key(value)
        if known is not None or self.is_aside:
            return known or ""
        key = self._given
        if key is None:
            key = self.next_key(label, frame or sys._getframe(1), value)
        else:
            self._count_given(key)
        self._given = None
        if self.is_apart and not key.startswith(_APART):
            self._turns_apart += 1
            key = f"{_APART}{self._turns_apart}{_APART}{key}"
        return self._enter(value, key)

    def _enter(self, value: object, key: str) -> str:
        identity = id(value)

        def forget(_reference: object) -> None:
            self._keys.pop(identity, None)
            self._made_in_loop.discard(identity)

        self._keys[identity] = (weakref.ref(value, forget), key)
        if self._of_loop is not None and not self.is_building():
            self._made_in_loop.add(identity)
        return key

    def _count_given(self, key: str) -> None:
        """Count the turn of an object that was made again under a given key."""
        owner, _, name = key.rpartition("/")
        label, _, turn = name.rpartition(".")
        label, made = (label, int(turn) + 1) if label and turn.isdecimal() else (name, 1)
        counts = self._counts.setdefault(owner, {})
        counts[label] = max(counts.get(label, 0), made)

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        """Inside, objects are made in place of the first run's: give them temporary keys until they are renamed, and
        let them take no turns.
        """
        counts = {owner: dict(labels) for owner, labels in self._counts.items()}
        self.is_apart = True
        try:
            yield
        finally:
            self.is_apart = False
            self._counts = counts

    def nameless(self) -> list[object]:
        """Return the live objects that were made apart and have not been renamed."""
        return [value for key, value in self.alive() if key.startswith(_APART)]

    def rename(self, value: object, key: str | None) -> None:
        """Give an object that was made again the key that it had in the first run; with None, remove its key."""
        self._keys.pop(id(value), None)
        self._made_in_loop.discard(id(value))
        if key is not None:
            self._enter(value, key)
            self._made_in_loop.add(id(value))

    def counts_of(self, owners: Iterable[str]) -> dict[str, dict[str, int]]:
        """Return the number of objects of each label that these owners have made."""
        return {owner: dict(self._counts[owner]) for owner in owners if owner in self._counts}

    def set_counts_of(self, owner: str, counts: Mapping[str, int]) -> None:
        """Set counts of an owner, which new objects continue."""
        self._counts.setdefault(owner, {}).update(counts)

    def register_at_top(self, value: object, label: str) -> str:
        """Name a new object by its turn among all objects of the program: the loop may run in a method of a model, and
        make such an object in each epoch.
        """
        key, self._given = self._given, None
        return self._enter(value, self.next_key(label, None) if key is None else key)

    def next_key(self, label: str, frame: FrameType | None, value: object = None) -> str:
        """Return the key of the next object with this label that the innermost owner on the stack makes."""
        owner, at = self._owner(frame, object, value)
        counts = self._counts.setdefault(owner, {})
        turn = counts.get(label, 0)
        counts[label] = turn + 1
        if at is not None and self._of_loop is not None and not self.is_building() and _is_of_program(frame, at):
            group, now = (owner, label), self.moment()
            if at.f_code in self._of_loop or self._once.setdefault(group, (turn, now))[1] != now:
                self._going_on.add(group)
        return _key(owner, label, turn)

    def is_of_loop(self, value: object) -> bool:
        """Return whether the loop has made an object, other than in lazy building."""
        return id(value) in self._made_in_loop and self.key(value) is not None

    def recreated_counts(self) -> dict[str, dict[str, int]]:
        """Return, by owner and label, the counts of the objects that the loop makes again and again."""
        once = {group: self._counts[group[0]][group[1]] for group in self._once.keys() - self._going_on}
        if any(count != self._found_alive.get(group) for group, count in once.items()):
            gc.collect()
            self._found_alive.update(once)
        alive = {key for key, _ in self.alive()} if once else set()
        for group, count in once.items():
            if not any(_key(*group, turn) in alive for turn in range(self._once[group][0], count)):
                self._going_on.add(group)
        found: dict[str, dict[str, int]] = {}
        for owner, label in sorted(self._going_on):
            found.setdefault(owner, {})[label] = self._counts[owner][label]
        return found

    def set_recreated_counts(self, counts: Mapping[str, Mapping[str, int]]) -> None:
        """Set the counts that `recreated_counts` returned, which new objects continue."""
        for owner, labels in counts.items():
            self._counts.setdefault(owner, {}).update(labels)
            self._going_on.update((owner, label) for label in labels)

    def key(self, value: object) -> str | None:
        """Return the key of a registered object."""
        entry = self._keys.get(id(value))
        return entry[1] if entry is not None and entry[0]() is value else None

    def alive(self) -> list[tuple[str, object]]:
        """Return every live registered object, after its key."""
        return [(key, value) for reference, key in list(self._keys.values()) if (value := reference()) is not None]

    def find(self, key: str) -> object | None:
        """Return the live object with a key."""
        for reference, known in self._keys.values():
            if known == key:
                return reference()
        return None

    def living(self, kind: type) -> Iterator[tuple[str, object]]:
        """Yield the live objects of a kind, each after its key."""
        for reference, key in list(self._keys.values()):
            value = reference()
            if isinstance(value, kind):
                yield key, value

    def top_counts(self) -> dict[str, int]:
        """Return the number of objects of each label that the program itself has made."""
        return dict(self._counts.get(TOP, {}))

    def set_top_counts(self, counts: dict[str, int]) -> None:
        """Set the counts, so that new objects of the program get the names that they had in the first run."""
        self._counts[TOP] = dict(counts)

    def owner(self, frame: FrameType | None, kind: type, value: object = None) -> str:
        """Return the key of the innermost registered object of a kind whose method is on the stack, or `TOP`."""
        return self._owner(frame, kind, value)[0]

    def _owner(self, frame: FrameType | None, kind: type, value: object) -> tuple[str, FrameType | None]:
        for each in outwards(frame):
            code = each.f_code
            if code.co_argcount and code.co_varnames[0] == "self":
                owner = names_of(each).get("self")
                key = self.key(owner) if owner is not value and isinstance(owner, kind) else None
                if key is not None:
                    return key, each
        return TOP, None


def _is_of_program(frame: FrameType | None, outermost: FrameType) -> bool:
    """Return whether code of the program is on the stack between a frame and `outermost`: if not, a library makes the
    object in lazy building.
    """
    for each in outwards(frame):
        if is_user_file(each.f_code.co_filename):
            return True
        if each is outermost:
            break
    return False


def _key(owner: str, label: str, turn: int) -> str:
    name = f"{label}.{turn}" if turn else label
    return f"{owner}/{name}" if owner else name
