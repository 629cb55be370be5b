"""What the program held when it entered the loop: what only changes later counts as changed.

Objects that are not data have an address, the path at which they were found first. A resumed process comes to the loop
in the same way, so that the address leads to its own such object.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any

import msgspec

from detrain.python.inspect.names import names_of_function, static_name
from detrain.python.inspect.object_graph import ABSENT


class Baseline(msgspec.Struct):
    """What was there when the loop was entered."""

    arrays: dict[str, list[Callable[[], object]]] = {}
    """Large arrays and constant tensors by digest, as what returns them, or None where they are gone."""
    paths: dict[str, str] = {}
    """Digest of each array by its path."""
    memories: dict[str, tuple[str, tuple[int, int]]] = {}
    """Of each memory of tensors, by its address: the digest of what was looked at, and which bytes that was."""
    data: dict[str, int] = {}
    """Identity of what each name was bound to, but for what others may hold when the name is read no more."""
    bound_names: set[str] = set()
    """What was bound to anything."""
    _bound: dict[str, Callable[[], object]] = {}
    _known: dict[int, Callable[[], object]] = {}
    _addresses: dict[int, str] = {}
    _by_address: dict[str, Callable[[], object]] = {}
    _sets: dict[int, frozenset[int]] = {}
    _positions: dict[int, object] = {}
    _inside: dict[tuple[int, object], Callable[[], object]] = {}
    _told: dict[int, set[object]] = {}
    _names: dict[int, frozenset[str]] = {}
    _functions: dict[int, tuple[Callable[[], object], object, list[object]]] = {}
    _methods: dict[int, tuple[Callable[[], object], dict[str, object]]] = {}

    def add_array(self, digest: str, value: object, *, is_held: bool) -> None:
        """Note an array or a constant tensor; `is_held`: keep it alive. A state of JAX's is all arrays, and a step that
        replaces them lets the old ones go.
        """
        self.arrays.setdefault(digest, []).append((lambda: value) if is_held else weakref.ref(value))

    def add(self, value: object, path: str = "") -> None:
        """Note an object, without keeping it alive if that can be had. Without a path it has no address."""
        if self.has(value) and (not path or id(value) in self._addresses):
            return
        try:
            reference: Callable[[], object] = weakref.ref(value)
        except TypeError:
            reference = lambda: value  # noqa: E731
        self._known[id(value)] = reference
        self._addresses.pop(id(value), None)
        if path:
            address = path if path not in self._by_address else f"{path} #{len(self._by_address)}"
            self._addresses[id(value)] = address
            self._by_address[address] = reference

    def bind(self, name: str, value: object) -> None:
        """Note to which object a name was bound."""
        try:
            self._bound[name] = weakref.ref(value)
        except TypeError:
            self._bound[name] = lambda: value

    def is_bound(self, name: str, value: object) -> bool:
        """Return whether a name was bound to this object, and `bind` was told so."""
        return name in self._bound and self._bound[name]() is value

    def bind_static(self, value: object) -> None:
        """Note a module, or a function or class that a name in one leads to."""
        self.bind(static_name(value), value)

    def is_of_loop(self, value: Any) -> bool:
        """Return whether the loop has defined a function or class, which its name leads to, in a
        module that was there.
        """
        name = static_name(value)
        module, _, qualified = name.partition(":")
        return f"{module}:" in self._bound and qualified.isidentifier() and not self.is_bound(name, value)

    def has(self, value: object) -> bool:
        """Return whether an object was there."""
        known = self._known.get(id(value))
        return known is not None and known() is value

    def address(self, value: object) -> str | None:
        """Return the address of an object that was there."""
        return self._addresses.get(id(value)) if self.has(value) else None

    def at(self, address: str | None) -> object:
        """Return the object at an address, or ABSENT."""
        found = self._by_address[address]() if address in self._by_address else None
        return ABSENT if found is None else found

    def add_position(self, value: object, position: object) -> None:
        """Note where an object is that hands out one thing after another."""
        if position is not None:
            self._positions[id(value)] = position

    def is_at(self, value: object, position: object) -> bool:
        """Return whether an object is where it was, or has no position."""
        return self._positions.get(id(value)) == position

    def add_inside(self, value: object, steps: object, held: object) -> None:
        """Note what an object of a library holds, behind some steps: an object, or a digest of it."""
        try:
            self._inside[id(value), steps] = weakref.ref(held)
        except TypeError:
            self._inside[id(value), steps] = lambda: held

    def has_inside(self, value: object, steps: object, held: object) -> bool:
        """Return whether an object that was there held this behind these steps."""
        known = self._inside.get((id(value), steps))
        if known is None or not self.has(value):
            return False
        return known() == held if isinstance(held, str) else known() is held

    def add_told(self, value: object, missed: set[object]) -> None:
        """Note what the class of an object says that it holds, and no graph has."""
        if missed:
            self._told[id(value)] = missed

    def told(self, value: object) -> set[object]:
        """Return what the class of an object that was there said then, and no graph had."""
        return self._told.get(id(value), set()) if self.has(value) else set()

    def add_names(self, value: object, names: Iterable[str]) -> None:
        """Note under which names an object held what is state."""
        self._names[id(value)] = frozenset(names)

    def names(self, value: object) -> frozenset[str]:
        """Return the names under which an object that was there held what is state."""
        return self._names.get(id(value), frozenset()) if self.has(value) else frozenset()

    def add_function(self, function: FunctionType) -> None:
        """Note what a function does, and what it is called."""
        self._functions[id(function)] = weakref.ref(function), function.__code__, names_of_function(function)

    def is_other(self, function: FunctionType) -> bool:
        """Return whether a function that was there does something else now, or is called otherwise."""
        known, code, names = self._functions.get(id(function), (None, None, None))
        is_known = known is not None and known() is function
        return is_known and (code is not function.__code__ or names != names_of_function(function))

    def add_methods(self, cls: type, methods: dict[str, object]) -> None:
        """Note the methods of a class."""
        self._methods[id(cls)] = weakref.ref(cls), methods

    def methods(self, cls: type) -> dict[str, object] | None:
        """Return the methods that a class had, or None if it was not there."""
        known, methods = self._methods.get(id(cls), (None, None))
        return methods if known is not None and known() is cls else None

    def add_set(self, value: object, elements: list[object]) -> None:
        """Note the elements of a set."""
        self.add(value)
        self._sets[id(value)] = frozenset(map(id, elements))

    def has_set(self, value: object, elements: list[object]) -> bool:
        """Return whether a set was there with just these elements."""
        return self.has(value) and self._sets.get(id(value)) == frozenset(map(id, elements))
