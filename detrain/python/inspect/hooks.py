"""What the codec asks of others while it goes through a program's objects: what frameworks say of theirs, and what is
known of the program, its files and its generators.
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
    """A framework's tensors as leaves of Python objects: how one is read, and how one is made. A framework has none of
    what is not written out.
    """

    constant_type: type | None = None
    """The type of immutable tensors; None: the framework has none."""

    def to_array(self, value: object) -> Array | None:
        """Return a tensor's or variable's value, or None for anything else. It may share memory."""
        return None

    def constant(self, value: object) -> Array | None:
        """Return the value of an immutable tensor, or None for anything else. It may share memory."""
        return None

    def form(self, value: object) -> list[Item] | None:
        """Return, as data, what tells an immutable tensor from another one of the same value, begun by the adapter's
        name; None: nothing does, or it is anything else.
        """
        return None

    def make_constant(self, array: Array, form: list[Item] | None = None) -> object | None:
        """Return an immutable tensor of a value and a form; None if the form is another adapter's."""
        return None

    def parts(self, value: object) -> tuple[str, list[object]] | None:
        """Return the kind of a tensor of several parts and these, or None for anything else."""
        return None

    def parts_of_new(self, value: object) -> tuple[str, list[object]] | None:
        """Like `parts`, of what stays as the process has it unless the loop has made it: an iterator over a dataset."""
        return None

    def remake(self, kind: str, parts: list[Any], current: object) -> object | None:
        """Return the tensor of a kind with these parts, `current` if it is that or can become it;

        None for other kinds.
        """
        return None


class SharedTensors(Protocol):
    """Tensors that are changed in place, and may share their memory with others: leaves of Python objects, which are
    put back in place, so that whoever holds one sees it.
    """

    def is_shared(self, value: object) -> bool:
        """Return whether an object is such a tensor."""

    def is_computed(self, value: object) -> bool:
        """Return whether an object is such a tensor that weights went into: gradients would go back through it."""

    def look(self, value: object) -> SharedTensor | None:
        """Return what such a tensor is, or None for anything else."""

    def read(self, memory: Any, *, holds: bool) -> Array:
        """Return the bytes [byte] uint8 of a memory, in the host's, to be read at once; with `holds` they stay as they
        are while the program goes on.
        """

    def fill(self, memory: Any, size_bytes: int, write: Callable[[Array], None]) -> bool:
        """Have so many bytes written into a memory, by `write` (into an array [byte] uint8); or return that they do not
        fit."""

    def new_memory(self, size_bytes: int, write: Callable[[Array], None], form: list[Item]) -> object:
        """Return a memory with so many bytes, by `write`, where a tensor of this form has its own."""

    def span(self, memory: Any) -> tuple[int, int]:
        """Return the address of a memory and its size in bytes; no size if it is not in the host's."""

    def array_of(self, memory: Any) -> Array:
        """Return an array [byte] uint8 that lies in a memory, and keeps it alive."""

    def memory_in(self, array: Array) -> object:
        """Return a memory that lies in an array [byte] uint8."""

    def put(self, form: list[Item], memory: Any, current: object, base: object) -> object:
        """Return the tensor of a form at a memory, a view of `base` if that is not None: `current` if it is that, or
        can become it, else a new one. Raises ValueError where none can be made.
        """

    def set_parts(self, tensor: Any, parts: list[Any]) -> None:
        """Give a tensor the parts that `look` told."""


class ObjectRules(Protocol):
    """What the framework's own classes mean for the state of a program's objects. A framework that has no such objects
    says nothing of them.
    """

    on_functions: frozenset[str] = frozenset()
    """Names of attributes that the framework stores on functions of the program for itself: they are no state."""

    def is_holder(self, value: object) -> bool:
        """Return whether the attributes of an object of the framework's own class are state of
        the loop (a callback).
        """
        return False

    def is_container(self, value: object) -> bool:
        """Return whether an object is a list, dict or set of the framework's around what the program put there."""
        return False

    def holds_variables(self, value: object) -> bool:
        """Return whether an object holds variables: one that the loop has made cannot be put back."""
        return False

    def is_of_loop(self, value: object) -> bool:
        """Return whether the loop has made an object with variables, not as it built something lazily: none makes it
        again.
        """
        return False

    def is_spent(self, value: object) -> bool:
        """Return whether an object has served its time, so that nothing can be read from it any more."""
        return False


class LoaderPositions(Protocol):
    """How far the framework's loaders are. `Adapter.set_state` brings them back."""

    def positions(self, mode: Mode) -> tuple[dict[str, Array], list[str]]:
        """Return the positions of loaders alive, as data by their keys, and why others have none.

        With `forward` only of those that cannot be drawn from again, with `seek` of any size.
        """

    def is_loader(self, value: object) -> bool:
        """Return whether an object is one whose position `Adapter.set_state` brings back."""

    def no_position(self, value: object) -> str:
        """Return why such an object, if it lives on from an epoch to the next, cannot be put where it is; empty if it
        can be.
        """
        return ""

    def loader_key(self, loader: object) -> str:
        """Return the name of a loader of the framework's that has a position of its own; empty for any other object."""

    def called(self) -> Mapping[str, object]:
        """Return the Python objects that pipelines alive call, by keys that are the same in
        every run of the program.
        """
        return {}


class Hooks:
    """What the codec asks of others. What it asks of the program is answered for one of which nothing is known."""

    stored_outside: frozenset[str] = frozenset()
    """Names of attributes that the program stores on objects other than `self`."""

    def __init__(
        self,
        leaves: Sequence[TensorLeaves] = (),
        shared: Mapping[str, SharedTensors] = MappingProxyType({}),
        rules: Sequence[ObjectRules] = (),
        loaders: Sequence[LoaderPositions] = (),
    ) -> None:
        """Make those of frameworks that have these; `shared`: by the names of the adapters."""
        self._leaves, self._shared, self._rules, self._loaders = leaves, shared, rules, loaders
        self._constants = tuple(each.constant_type for each in leaves if each.constant_type is not None)
        self._is_unread = False
        self.on_functions = frozenset[str]().union(*(each.on_functions for each in rules))
        """Names of attributes that frameworks store on functions of the program for themselves."""

    def files(self) -> Sequence[str]:
        """Return the source files of the program."""
        return ()

    def names_ahead(self) -> frozenset[str]:
        """Return the names that code of the program reads which is still to run."""
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
        """Return what such a tensor is, or None for anything else."""
        return next((found for each in self._shared.values() if (found := each.look(value)) is not None), None)

    def tensors_of(self, owner: str) -> Any:
        """Return the `SharedTensors` of an adapter, or None where there is none of this name."""
        return self._shared.get(owner)

    def unread(self) -> Hooks:
        """Return the same hooks, but for `tensor`, which tells a constant tensor and does not read it."""
        found = copy.copy(self)
        found._is_unread = True
        return found

    def is_generator(self, _value: object) -> bool:
        """Return whether an object is a generator of random numbers of a framework's."""
        return False

    def tensor_form(self, value: object) -> list[Item] | None:
        """Return what a constant tensor is besides its value; None: nothing."""
        return next((found for each in self._leaves if (found := each.form(value)) is not None), None)

    def make_tensor(self, array: Array, form: list[Item] | None = None) -> object:
        """Return the constant tensor of an array and a form: the inverse of `tensor`."""
        found = sorted(self._leaves, key=lambda each: each.constant_type is None)  # those come first that have such tensors
        return next((made for each in found if (made := each.make_constant(array, form)) is not None), array)

    def parts(self, value: object) -> tuple[str, list[object]] | None:
        """Return the kind of a tensor of several parts and these, or None for anything else."""
        return next((found for each in self._leaves if (found := each.parts(value)) is not None), None)

    def parts_of_new(self, value: object) -> tuple[str, list[object]] | None:
        """Like `parts`, of what stays as the process has it, unless the loop has made it: an
        iterator over a dataset.
        """
        return next((found for each in self._leaves if (found := each.parts_of_new(value)) is not None), None)

    def remake(self, kind: str, parts: list[Any], current: object) -> object | None:
        """Return the tensor of such a kind with these parts: the live one if it is that, or can become it."""
        return next((found for each in self._leaves if (found := each.remake(kind, parts, current)) is not None), None)

    def variable(self, _value: object) -> list[Item] | None:
        """Describe a variable, whose value a framework captures; None for anything else."""
        return None

    def find_variable(self, _described: list[Item], _makes: bool) -> object | None:
        """Return the variable with a description, made anew if need be and wanted, or None."""
        return None

    def is_holder(self, value: object) -> bool:
        """Return whether the attributes of an object of a framework's class are state (a callback)."""
        return any(each.is_holder(value) for each in self._rules)

    def is_container(self, value: object) -> bool:
        """Return whether an object is a framework's list, dict or set around what the program put there."""
        return any(each.is_container(value) for each in self._rules)

    def holds_variables(self, value: object) -> bool:
        """Return whether an object is a framework's with variables of its own: if the loop has made it, it cannot be
        put back.
        """
        return any(each.holds_variables(value) for each in self._rules)

    def is_of_loop(self, value: object) -> bool:
        """Return whether the loop has made such an object, and that not as it built something lazily."""
        return any(each.is_of_loop(value) for each in self._rules)

    def is_loader(self, value: object) -> bool:
        """Return whether an object hands out one thing after another, and is brought to where it was by a framework."""
        return any(each.is_loader(value) for each in self._loaders)

    def no_position(self, value: object) -> str:
        """Return why a framework cannot put such an object where it is; empty if it can."""
        return next((reason for each in self._loaders if (reason := each.no_position(value))), "")

    def loader_state(self, _value: object, /) -> tuple[int, object] | None:
        """Return the position that an object of a library offers, by which of its protocols, or None."""
        return None

    def set_loader(self, _value: object, _which: int, _state: object, /) -> bool:
        """Set an object to such a position; return whether that could be done."""
        return False

    def is_known_file(self, _value: object) -> bool:
        """Return whether an open file is brought to where it was."""
        return False

    def follow(self, _value: object) -> None:
        """Hear of an object that is no data when a loop is entered."""

    def pulled(self, _value: object) -> list[Item] | None:
        """Return how far a generator of the program is, or None if that is not known."""
        return None

    def is_drawn_by_bodies(self, _value: object) -> bool:
        """Return whether a body has moved a generator of which that is not known."""
        return False

    def replay(self, _value: object, _state: list[Item]) -> bool:
        """Bring a generator to where another was; return whether it has yielded the same."""
        return False
