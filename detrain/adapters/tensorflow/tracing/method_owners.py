"""Compiled methods: TensorFlow compiles one anew for each object, and a resumed run must know which was whose.

Objects have no names in the run; those of one class are told apart by the things with a name that they hold.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable
from typing import Any, Final

from detrain.adapters.lazy_building import BuiltUnit
from detrain.adapters.stable_names import Births
from detrain.python.inspect.names import is_user_class

_MOST_HELD: Final = 64
"""So many things that one object holds tell it from others."""


class MethodOwners:
    """What the objects held that functions were compiled for."""

    def __init__(self, births: Births) -> None:
        self._births = births
        self._held: weakref.WeakKeyDictionary[Any, dict[str, str]] = weakref.WeakKeyDictionary()
        """Of the functions that are compiled for each object with a method:
        what the object held when they were made."""
        self._before: dict[str, dict[str, str]] = {}
        """The same, by the keys of the functions that the run had before it was resumed."""

    def note(self, function: Any, instance: object) -> dict[str, str]:
        """Note what an object holds that a function is being compiled for; return it."""
        held = self._held[function] = self.held_by(instance)
        return held

    def of(self, function: Any) -> dict[str, str]:
        """Return what the object of a function held; nothing for a function that has none."""
        return self._held.get(function, {}) if function is not None else {}

    def note_before(self, units: Iterable[BuiltUnit]) -> None:
        """Note what the run had before it was resumed."""
        self._before |= {unit.owner: unit.held for unit in units}

    def make(self, key: str, function: Any) -> None:
        """Have a method compiled, by looking it up, for the one object that it was compiled for under this key."""
        name, held = key.rpartition("/")[2].partition(".")[0], self._before.get(key, {})
        instances = _instances(name, function)
        if len(instances) > 1:
            instances = [each for each in instances if _agree(held, self.held_by(each))]
        if len(instances) == 1:
            getattr(instances[0], name)

    def known_by(self, key: str, held: dict[str, str]) -> str | None:
        """Return the key that the run had for a function, compiled for an object that holds this,
        before it was resumed."""
        same = [known for known, was in self._before.items() if known.partition(".")[0] == key and _agree(was, held)]
        return same[0] if len(same) == 1 and self._births.find(same[0]) is None else None

    def held_by(self, value: Any, path: str = "", depth: int = 3) -> dict[str, str]:
        """Return the keys of the objects with one that an object holds, by where:
        what tells it from others of its class."""
        key = self._births.key(value)
        if key is not None or not depth:
            return {path: key} if key is not None else {}
        if isinstance(value, dict):
            items = [(str(name), each) for name, each in value.items()]
        elif isinstance(value, list | tuple):
            items = [(str(number), each) for number, each in enumerate(value[:_MOST_HELD])]
        else:
            items = list(getattr(value, "__dict__", {}).items()) if is_user_class(type(value)) else []
        found: dict[str, str] = {}
        for name, each in items[:_MOST_HELD]:
            found |= self.held_by(each, f"{path}.{name}", depth - 1)
        return found


def _instances(name: str, function: Any) -> list[Any]:
    """Return the objects alive that have a function as a method with this name."""
    alive = gc.get_objects()
    classes = [each for each in alive if isinstance(each, type)]
    kinds = {id(each) for each in classes if any(vars(base).get(name) is function for base in each.__mro__)}
    return [each for each in alive if id(type(each)) in kinds]


def _agree(was: dict[str, str], now: dict[str, str]) -> bool:
    """Return whether two objects hold the same, as far as both hold anything at one place."""
    common = was.keys() & now.keys()
    return bool(common) and all(was[path] == now[path] for path in common)
