"""The program's objects as they were when it entered the loop, so that only later changes count as changes.

Objects that are not data have an address, the path at which they were found first. A resumed process comes to the loop
in the same way, so that the address leads to its own such object.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any, Final

import msgspec

from detrain.python.inspect.names import names_of_function, static_name
from detrain.python.inspect.object_graph import ABSENT

_MARK: Final = "detrain's baseline"


class Baseline(msgspec.Struct):
    """The objects that were there when the loop was entered, and digests of their values."""

    arrays: dict[str, list[Callable[[], object]]] = {}
    """Large arrays and constant tensors by digest, as functions that return them, or None if they are gone."""
    paths: dict[str, str] = {}
    """Digest of each array by its path."""
    memories: dict[str, tuple[str, tuple[int, int]]] = {}
    """By the address of a memory of tensors: the digest of the bytes that tensors view, and their range."""
    data: dict[str, int] = {}
    """The identity of each name's object, except objects that others may hold when the name is read no more."""
    bound_names: set[str] = set()
    """The names that were bound."""
    _bound: dict[str, Callable[[], object]] = {}
    _graphs: dict[int, object] = {}
    _known: dict[int, Callable[[], object]] = {}
    _addresses: dict[int, str] = {}
    _by_address: dict[str, Callable[[], object]] = {}
    _sets: dict[int, frozenset[int]] = {}
    _positions: dict[int, object] = {}
    _inside: dict[tuple[int, object], Callable[[], object]] = {}
    _places: dict[int, list[tuple[Callable[[], object], object]]] = {}
    _told: dict[int, set[object]] = {}
    _names: dict[int, frozenset[str]] = {}
    _functions: dict[int, tuple[Callable[[], object], object, list[object]]] = {}
    _methods: dict[int, tuple[Callable[[], object], dict[str, object]]] = {}

    def add_array(self, digest: str, value: object, *, is_held: bool) -> None:
        """Note an array or a constant tensor; `is_held`: keep it alive. A state in JAX consists of arrays only, and a
        step that replaces them must be able to free the old ones.
        """
        self.arrays.setdefault(digest, []).append((lambda: value) if is_held else weakref.ref(value))

    def add(self, value: object, path: str = "") -> None:
        """Note an object, by a weak reference if it allows one. Without a path it gets no address."""
        if self.has(value) and (not path or id(value) in self._addresses):
            return
        reference = self._known[id(value)] = _reference(value)
        self._addresses.pop(id(value), None)
        if path:
            address = path if path not in self._by_address else f"{path} #{len(self._by_address)}"
            self._addresses[id(value)] = address
            self._by_address[address] = reference

    def bind(self, name: str, value: object) -> None:
        """Note the object that a name was bound to."""
        self._bound[name] = _reference(value)

    def is_bound(self, name: str, value: object) -> bool:
        """Return whether `bind` has noted that a name was bound to this object."""
        return name in self._bound and self._bound[name]() is value

    def bind_static(self, value: object) -> None:
        """Note a module, or a function or class that a name in a module leads to.

        Several may say that they have one name: `functools.wraps` gives a wrapper that of the function inside.
        """
        self.bind(static_name(value), value)
        self.bind(f"{static_name(value)} {id(value)}", value)

    def is_of_loop(self, value: Any) -> bool:
        """Return whether the loop has defined a function or class, under its own name, in a module that was there."""
        name = static_name(value)
        module, _, qualified = name.partition(":")
        return f"{module}:" in self._bound and qualified.isidentifier() and not self.is_bound(f"{name} {id(value)}", value)

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

    def add_graph(self, value: object, graph: Any) -> None:
        """Note what computed a tensor, if gradients go back through that. It is marked, not kept alive: it may hold
        much memory, and the program may let go of it.
        """
        if graph is not None:
            self._graphs[id(value)] = graph.metadata.setdefault(_MARK, object())  # an earlier baseline may have marked it

    def has_graph(self, value: object, graph: Any) -> bool:
        """Return whether gradients go back from a tensor through what they went through before."""
        mark = self._graphs.get(id(value)) if graph is not None and self.has(value) else None
        return mark is not None and graph.metadata.get(_MARK) is mark

    def add_position(self, value: object, position: object) -> None:
        """Note the position of an object that hands out one value after another."""
        if position is not None:
            self._positions[id(value)] = position

    def is_at(self, value: object, position: object) -> bool:
        """Return whether an object is at the position that was noted, or has none."""
        return self._positions.get(id(value)) == position

    def add_inside(self, value: object, steps: object, held: object) -> None:
        """Note an object, or a digest of it, that a library's object holds behind some steps."""
        self._inside[id(value), steps] = _reference(held)
        with contextlib.suppress(TypeError):
            self._places.setdefault(id(held), []).append((weakref.ref(value), steps))

    def place_of(self, held: object) -> tuple[str, object] | None:
        """Return where an object was that a library's object held: the address of that, and the steps from there."""
        for holder, steps in self._places.get(id(held), ()):
            owner = holder()
            if owner is not None and self.has_inside(owner, steps, held) and (address := self.address(owner)):
                return address, steps
        return None

    def has_inside(self, value: object, steps: object, held: object) -> bool:
        """Return whether an object that was there held this object or digest behind these steps."""
        known = self._inside.get((id(value), steps))
        if known is None or not self.has(value):
            return False
        return known() == held if isinstance(held, str) else known() is held

    def add_told(self, value: object, missed: set[object]) -> None:
        """Note the numbers and texts that an object's class reports of it, but no graph has."""
        if missed:
            self._told[id(value)] = missed

    def told(self, value: object) -> set[object]:
        """Return the numbers and texts that `add_told` noted for an object that was there."""
        return self._told.get(id(value), set()) if self.has(value) else set()

    def add_names(self, value: object, names: Iterable[str]) -> None:
        """Note the names of an object's attributes that are state."""
        self._names[id(value)] = frozenset(names)

    def names(self, value: object) -> frozenset[str]:
        """Return the names of the attributes that were state, of an object that was there."""
        return self._names.get(id(value), frozenset()) if self.has(value) else frozenset()

    def add_function(self, function: FunctionType) -> None:
        """Note the code and the names of a function."""
        self._functions[id(function)] = weakref.ref(function), function.__code__, names_of_function(function)

    def is_other(self, function: FunctionType) -> bool:
        """Return whether a function that was there has other code or other names now."""
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


def _reference(value: object) -> Callable[[], object]:
    """Return a weak reference to an object, or a strong one if its class allows none."""
    try:
        return weakref.ref(value)
    except TypeError:
        return lambda: value
