"""Questions that the codec asks while it walks a program's objects: to frameworks about their own objects, and about
the program, its files and its generators.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Protocol

import numpy as np

from detrain.base.digest import Array
from detrain.base.options import Mode
from detrain.python.inspect.object_graph import Item, SharedTensor

_UNREAD: Final = np.empty(0)


class TensorLeaves(Protocol):
    """A framework's tensors as leaves of Python objects: read them, and make them. A framework without some kind of
    tensor keeps the default methods.
    """

    constant_type: type | None = None
    """The type of immutable tensors; None if the framework has none."""

    def to_array(self, value: object) -> Array | None:
        """Return a tensor's or variable's value, or None for anything else. It may share memory."""
        return None

    def constant(self, value: object) -> Array | None:
        """Return the value of an immutable tensor, or None for anything else. It may share memory."""
        return None

    def form(self, value: object) -> list[Item] | None:
        """Return, as data, the adapter's name and the properties of an immutable tensor besides its value. None if it
        has none, or for any other object.
        """
        return None

    def make_constant(self, array: Array, form: list[Item] | None = None) -> object | None:
        """Return an immutable tensor with a value and a form; None if the form is of another adapter."""
        return None

    def parts(self, value: object) -> tuple[str, list[object]] | None:
        """Return the kind and the parts of a tensor that consists of several parts, or None for anything else."""
        return None

    def parts_of_new(self, value: object) -> tuple[str, list[object]] | None:
        """Like `parts`, for objects that only need it if the loop has made them: an iterator over a dataset."""
        return None

    def remake(self, kind: str, parts: list[Any], current: object) -> object | None:
        """Return a tensor of a kind with these parts: `current` if it is that tensor or can become it.

        None for other kinds.
        """
        return None


class SharedTensors(Protocol):
    """Tensors that are changed in place, and may share their memory with others: leaves of Python objects. They
    are restored in place, so that all objects that hold one see the restored value.
    """

    def is_shared(self, value: object) -> bool:
        """Return whether an object is such a tensor."""

    def is_computed(self, value: object) -> bool:
        """Return whether an object is such a tensor, computed from weights: gradients would go back through it."""

    def look(self, value: object) -> SharedTensor | None:
        """Return the record of such a tensor, or None for any other object."""

    def read(self, memory: Any, *, holds: bool) -> Array:
        """Return the bytes ([byte] uint8) of a memory, in host memory. The caller must read them at once; with `holds`,
        they stay unchanged while the program goes on.
        """

    def fill(self, memory: Any, size_bytes: int, write: Callable[[Array], None]) -> bool:
        """Have `write` fill a memory of `size_bytes` bytes, as an array [byte] uint8. Return whether that was done: the
        size may not fit."""

    def new_memory(self, size_bytes: int, write: Callable[[Array], None], form: list[Item]) -> object:
        """Return a new memory of `size_bytes` bytes, filled by `write`, on the device or in the file of this form."""

    def span(self, memory: Any) -> tuple[int, int]:
        """Return the address of a memory and its size in bytes; the size is 0 if it is not in host memory."""

    def array_of(self, memory: Any) -> Array:
        """Return an array [byte] uint8 that shares a memory and keeps it alive."""

    def memory_in(self, array: Array) -> object:
        """Return a memory that shares the bytes of an array [byte] uint8."""

    def put(self, form: list[Item], memory: Any, current: object, base: object) -> object:
        """Return the tensor with a form on a memory, as a view of `base` if that is not None: `current` if it is that
        tensor or can become it, else a new one. Raises ValueError if none can be made.
        """

    def set_parts(self, tensor: Any, parts: list[Any]) -> None:
        """Set the parts of a tensor, as `look` returned them."""


class ObjectRules(Protocol):
    """Rules for objects of the framework's own classes in a program's state. A framework without such objects keeps
    the default methods.
    """

    on_functions: frozenset[str] = frozenset()
    """Names of attributes that the framework stores on the program's functions for its own use: they are no state."""

    def is_holder(self, value: object) -> bool:
        """Return whether an object is of the framework's own class, and its attributes are state of
        the loop (a callback).
        """
        return False

    def is_container(self, value: object) -> bool:
        """Return whether an object is a list, dict or set of the framework that holds the program's objects."""
        return False

    def holds_variables(self, value: object) -> bool:
        """Return whether an object holds variables: if the loop has made it, it cannot be restored."""
        return False

    def is_of_loop(self, value: object) -> bool:
        """Return whether the loop itself has made an object with variables, and not by building an object lazily:
        nothing makes it again in a resumed run.
        """
        return False

    def is_spent(self, value: object) -> bool:
        """Return whether an object is used up, so that no code can read from it any more."""
        return False


class LoaderPositions(Protocol):
    """Positions of the framework's loaders. `Adapter.set_state` restores them."""

    def positions(self, mode: Mode) -> tuple[dict[str, Array], list[str]]:
        """Return the positions of live loaders as data by their keys, and the reasons why others have none.

        With `forward`, only those of loaders that cannot be drawn from again; with `seek`, those of any size.
        """

    def is_loader(self, value: object) -> bool:
        """Return whether `Adapter.set_state` restores the position of an object."""

    def no_position(self, value: object) -> str:
        """Return the reason why such an object, if it lives on from one epoch to the next, cannot be set to its
        position; empty if it can be.
        """
        return ""

    def loader_key(self, loader: object) -> str:
        """Return the name of a loader of the framework with its own position; empty for any other object."""

    def called(self) -> Mapping[str, object]:
        """Return the Python objects that live pipelines call, by keys that are the same in
        every run of the program.
        """
        return {}


class Hooks:
    """The questions of the codec. Those about the program are answered for an unknown program; a subclass knows one."""

    stored_outside: frozenset[str] = frozenset()
    """Names of attributes that the program stores on objects other than `self`."""

    def __init__(
        self,
        leaves: Sequence[TensorLeaves] = (),
        shared: Mapping[str, SharedTensors] = MappingProxyType({}),
        rules: Sequence[ObjectRules] = (),
        loaders: Sequence[LoaderPositions] = (),
    ) -> None:
        """Make the hooks of frameworks with these parts; `shared` is by the names of the adapters."""
        self._leaves, self._shared, self._rules, self._loaders = leaves, shared, rules, loaders
        self._constants = tuple(each.constant_type for each in leaves if each.constant_type is not None)
        self._is_unread = False
        self.on_functions = frozenset[str]().union(*(each.on_functions for each in rules))
        """Names of attributes that frameworks store on the program's functions for their own use."""

    def files(self) -> Sequence[str]:
        """Return the source files of the program."""
        return ()

    def names_ahead(self) -> frozenset[str]:
        """Return the names that are read by code of the program that is still to run."""
        return frozenset()

    def tensor(self, value: object) -> Array | None:
        """Return the array of a constant tensor, or None for anything else."""
        if self._is_unread:
            return _UNREAD if isinstance(value, self._constants) else None
        return next((found for each in self._leaves if (found := each.constant(value)) is not None), None)

    def is_shared(self, value: object) -> bool:
        """Return whether an object is a tensor that is changed in place."""
        return any(each.is_shared(value) for each in self._shared.values())

    def shared(self, value: object) -> SharedTensor | None:
        """Return the record of such a tensor, or None for any other object."""
        return next((found for each in self._shared.values() if (found := each.look(value)) is not None), None)

    def tensors_of(self, owner: str) -> Any:
        """Return the `SharedTensors` of an adapter, or None if there is no adapter with this name."""
        return self._shared.get(owner)

    def unread(self) -> Hooks:
        """Return the same hooks, with a `tensor` that only recognizes a constant tensor and does not read it."""
        found = copy.copy(self)
        found._is_unread = True
        return found

    def is_generator(self, _value: object) -> bool:
        """Return whether an object is a framework's generator of random numbers."""
        return False

    def tensor_form(self, value: object) -> list[Item] | None:
        """Return the properties of a constant tensor besides its value; None if it has none."""
        return next((found for each in self._leaves if (found := each.form(value)) is not None), None)

    def make_tensor(self, array: Array, form: list[Item] | None = None) -> object:
        """Return the constant tensor of an array and a form: the inverse of `tensor`."""
        found = sorted(self._leaves, key=lambda each: each.constant_type is None)  # frameworks with such tensors come first
        return next((made for each in found if (made := each.make_constant(array, form)) is not None), array)

    def parts(self, value: object) -> tuple[str, list[object]] | None:
        """Return the kind and the parts of a tensor that consists of several parts, or None for anything else."""
        return next((found for each in self._leaves if (found := each.parts(value)) is not None), None)

    def parts_of_new(self, value: object) -> tuple[str, list[object]] | None:
        """Like `parts`, for objects that only need it if the loop has made them: an
        iterator over a dataset.
        """
        return next((found for each in self._leaves if (found := each.parts_of_new(value)) is not None), None)

    def remake(self, kind: str, parts: list[Any], current: object) -> object | None:
        """Return a tensor of such a kind with these parts: `current` if it is that tensor or can become it."""
        return next((found for each in self._leaves if (found := each.remake(kind, parts, current)) is not None), None)

    def variable(self, _value: object) -> list[Item] | None:
        """Return the description of a variable with a value that a framework captures; None for any other object."""
        return None

    def find_variable(self, _described: list[Item], _makes: bool) -> object | None:
        """Return the variable with a description, or None. If there is none and `_makes` is true, make one."""
        return None

    def is_holder(self, value: object) -> bool:
        """Return whether the attributes of an object of a framework's class are state (a callback)."""
        return any(each.is_holder(value) for each in self._rules)

    def is_container(self, value: object) -> bool:
        """Return whether an object is a framework's list, dict or set that holds the program's objects."""
        return any(each.is_container(value) for each in self._rules)

    def holds_variables(self, value: object) -> bool:
        """Return whether an object is of a framework and holds its own variables: if the loop has made it, it cannot be
        restored.
        """
        return any(each.holds_variables(value) for each in self._rules)

    def is_of_loop(self, value: object) -> bool:
        """Return whether the loop itself has made such an object, and not by building an object lazily."""
        return any(each.is_of_loop(value) for each in self._rules)

    def is_loader(self, value: object) -> bool:
        """Return whether an object yields items one after another, and a framework restores its position."""
        return any(each.is_loader(value) for each in self._loaders)

    def no_position(self, value: object) -> str:
        """Return the reason why a framework cannot set such an object to its position; empty if it can."""
        return next((reason for each in self._loaders if (reason := each.no_position(value))), "")

    def loader_state(self, _value: object, /) -> tuple[int, object] | None:
        """Return (number of the protocol, position) if an object of a library offers its position, else None."""
        return None

    def set_loader(self, _value: object, _which: int, _state: object, /) -> bool:
        """Set an object to such a position; return whether that was possible."""
        return False

    def is_known_file(self, _value: object) -> bool:
        """Return whether a resumed run restores the position of an open file."""
        return False

    def follow(self, _value: object) -> None:
        """Begin to follow an object that is no data, when a loop is entered."""

    def pulled(self, _value: object) -> list[Item] | None:
        """Return the position of a generator of the program, or None if it is not known."""
        return None

    def is_drawn_by_bodies(self, _value: object) -> bool:
        """Return whether a loop body has drawn from a generator with an unknown position."""
        return False

    def replay(self, _value: object, _state: list[Item]) -> bool:
        """Pull a generator to a position; return whether it has yielded the same items."""
        return False
