"""Python state -> graph, what stays as it is, and what it holds.

Functions and classes stay by name, and what they hold is state. A function that the loop has made is written by the
digest of its source, to be made again from the program's own: a graph holds no code. Objects of libraries stay where
they are; what they lead to of a framework's or of the program's is state, though no other name leads there.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

from detrain.base.digest import digest_array
from detrain.python.codec.encode_leaves import UNSEEN, LeafEncoder
from detrain.python.codec.state_rules import class_attributes, class_methods, functions_in, may_hold_state
from detrain.python.inspect import function_source
from detrain.python.inspect.fingerprint import Steps, closes_over, digest_of_tensor, shown_steps, state_inside
from detrain.python.inspect.frames import has_user_code
from detrain.python.inspect.function_source import holds_state
from detrain.python.inspect.graph import Item, Node
from detrain.python.inspect.names import (
    class_name,
    find_static,
    find_type,
    is_findable,
    is_library_class,
    is_own_class,
    is_user_class,
    names_of_function,
    static_name,
    type_name,
)
from detrain.python.inspect.object_graph import CONTAINERS, HARMLESS, LOADS_TRAINED, shown
from detrain.python.inspect.output_only import is_output_only
from detrain.python.inspect.ownership import extends_library
from detrain.python.inspect.stored_attributes import program_names


class Strangers(LeafEncoder):
    """The encoding of what objects of libraries hold that do not count as data themselves."""

    def _encode_opaque(self, number: int, value: object, path: str, *, is_captured: bool = False) -> Node:
        moved = len(self._moved)
        node = super()._encode_opaque(number, value, path, is_captured=is_captured)
        is_given = is_captured or node.kind == "loader"  # it takes its whole state back itself
        if not is_given and (is_library_class(type(value)) or extends_library(type(value))):
            is_training = self._note_inside(value, path)
            if is_training and len(self._moved) > moved and not is_output_only(value):
                self._lost.append(f"{shown(path)} ({type_name(value)}: {LOADS_TRAINED})")
        return node

    def _note_inside(self, value: object, path: str) -> bool:
        """Encode what an object of a library leads to that is state by itself: modules, optimizers, tensors, objects of
        the program.

        What it has come to hold since the loop was entered is lost, or what loading the same batches brings there.
        Returns whether something is trained among it.
        """
        is_training = False
        address = None if self._finds_again else self._baseline.address(value)
        if self._is_loader or (address is None and not self._finds_again):
            return False
        for steps, item in state_inside(value, self._is_state_inside):
            place = f"{path}{shown_steps(steps)}"
            is_training |= callable(getattr(type(item), "zero_grad", None))
            constant = self._hooks.tensor(item)
            held = item if constant is None else digest_array(constant)
            if self._collects:
                self._baseline.add_inside(value, steps, held)
                if constant is None:
                    self.encode(item, place)
            elif self._finds_again or self._baseline.has_inside(value, steps, held):
                if constant is None:
                    self._note_stranger(value, Node("inside", [steps], [self.encode(item, place)], there=address), place)
            else:
                self._note_other(value, address, steps, item, place)
        return is_training

    def _note_stranger(self, owner: object, node: Node, place: str) -> None:
        self._classes[f"class|{place}"] = self._node(owner, node)

    def _note_other(self, owner: object, address: str | None, steps: Steps, item: object, place: str) -> None:
        """Name what an object of a library has come to hold; where loading may have put it there, a resumed run sees
        whether it has.
        """
        if is_output_only(owner):
            return
        if self._are_loads_replayed and not self._is_alone:
            self._moved.append(f"{shown(place)} ({type_name(item)})")
            digest = digest_of_tensor(item, self._hooks)
            if digest is not None:
                self._note_stranger(owner, Node("inside", [steps, digest], [None], there=address), place)
                return
            self._name(place, item, f"{type_name(item)}: {UNSEEN}")
            return
        self._name(place, item, f"{type_name(item)}: an object of a library holds it since")

    def _is_state_inside(self, item: object) -> bool:
        cls = type(item)
        if cls in CONTAINERS.values():
            return False
        is_of_program = is_user_class(cls) or is_own_class(cls) or holds_state(item)
        is_tensor = self._hooks.is_shared(item) or self._hooks.tensor(item) is not None
        return is_of_program or is_tensor or self._hooks.is_generator(item)


class Functions(Strangers):
    """The encoding of what a program's code is: functions and classes, those that the loop has made included."""

    def _encode_static(self, number: int, value: Any, path: str) -> Node:
        is_made = type(value) is types.FunctionType and self._is_of_loop(value) and not is_findable(value)
        if is_made and function_source.source(value) is not None:  # a hook, say, that a method of a library has made
            return self._encode_function(number, value, path)
        node = self._described(number, value, path)
        if closes_over(value):
            self._note_inside(value, path)
        return node

    def _described(self, number: int, value: Any, path: str) -> Node:
        return Node("static", static_name(value), there=self._address(number, value, path))

    def _encode_function(self, number: int, value: Any, path: str) -> Node:
        """A function stays as it is, and one that the loop has made is made again from the program's source; what its
        closure, its defaults and its attributes hold is state."""
        cells = dict(zip(value.__code__.co_freevars, value.__closure__ or (), strict=True))
        is_new, is_other = self._is_of_loop(value), self._baseline.is_other(value)
        if self._collects:
            self._baseline.add_function(value)
        source = function_source.source(value) if is_new or is_other else None
        names = self.encode(tuple(names_of_function(value)), path) if is_new or is_other else None
        holds = [self.encode(getattr(value, each), f"{path}.{each}") for each in ("__defaults__", "__kwdefaults__")]
        inside = [self.encode(cell, f"{path}.<{name}>") for name, cell in cells.items()]
        own = self._encode_pairs({name: item for name, item in vars(value).items() if name not in self._hooks.on_functions}, path)
        if is_new and source is not None and self._are_known(cells, source):
            return Node("defined", list(source.key), [*holds, names, self._encode_annotations(value, path), *inside], own)
        if is_other and (source is None or not has_user_code(value)):
            return self._lose(number, path, "function: its code is not in the source")
        key = [list(source.key)] if is_other and source is not None else []
        named = [*holds, names if key else None, *inside]
        return Node("function", [static_name(value), *key], named, own, self._address(number, value, path))

    def _are_known(self, cells: Mapping[str, types.CellType], source: function_source.FunctionSource) -> bool:
        """Return whether all who share the variables of a function that the loop has made are captured with it."""
        if self._cells is None:
            return not cells
        of_frames = {id(cell) for cell in self._cells.values()}
        return not any(function_source.may_go_on(source, name) for name, cell in cells.items() if id(cell) not in of_frames)

    def _encode_annotations(self, value: types.FunctionType, path: str) -> Item:
        """Encode what the arguments of a function are said to be: texts, and classes by name.
        Other such things are named."""
        pairs: list[Item] = []
        for name, item in list(value.__annotations__.items()):
            if item is None or type(item) is str:
                pairs.append([name, self.encode(item, path)])
            elif isinstance(item, type) and find_type(class_name(item)) is item:
                pairs.append([name, self._node(item, Node("type", class_name(item)))])
            else:
                self._lost.append(f"{shown(f'{path}.__annotations__[{name!r}]')} ({type_name(item)}{HARMLESS})")
        return self._node(None, Node("dict", named=pairs))

    def _encode_class(self, number: int, value: type, path: str) -> Node:
        """A class stays as it is; its attributes that are not methods are state, and so is what methods hold.

        Methods that hold nothing are written only where they are not those that were there when the loop was entered.
        """
        if self._collects:
            for name, item in list(vars(value).items()):
                # a namedtuple, named without its class
                if isinstance(item, type) and is_own_class(item) and not is_findable(item):
                    self._baseline.add(item, f"{path}.{name}")
        known = self._baseline.methods(value)
        attributes = class_attributes(value, known or {})
        if not is_user_class(value):  # it derives from a library's
            names = program_names(value, self._hooks.stored_outside, attributes)
            stored = {name: item for name, item in attributes.items() if name in names or not self._kinds.is_of_library(item)}
            attributes = self._state(value, stored, path, is_own=True)
        address = self._address(number, value, path)
        methods = class_methods(value, known or {})
        if self._collects:
            self._baseline.add_methods(value, methods)
        before = known or methods
        changed = {
            name: item
            for name, item in methods.items()
            if self._collects
            or before.get(name) is not item
            or may_hold_state(item)
            or any(map(self._baseline.is_other, functions_in(item)))
        }
        gone = [name for name in before if name not in methods]
        named = self._encode_pairs(attributes, path)
        items = [self._node(None, Node("dict", named=self._encode_pairs(changed, path))), *self._encode_all(gone, path)]
        return Node("class", class_name(value), items, named, address)

    def _state(self, owner: object, stored: Mapping[str, object], path: str, *, is_own: bool) -> dict[str, object]:
        """Return those of such attributes that can be described, or that no run goes on without.
        Others are named if `is_own`."""
        state = {}
        for name, item in stored.items():
            is_new = self._hooks.holds_variables(item) and self._hooks.is_of_loop(item)
            # What a model of the program's makes and keeps, its method may make anew in each epoch.
            is_needed = is_new and not self._hooks.holds_variables(owner)
            if is_needed or self._kinds.is_walkable(item) or self._hooks.parts(item) is not None:
                state[name] = item
            elif not self._collects and is_own:
                self._name(f"{path}.{name}", item, type_name(item))
        return state

    def _address(self, number: int, value: object, path: str) -> str | None:
        """Return the address of a function or class whose name does not lead to it; name it if it has none."""
        if self._is_of_loop(value):
            self._lose(number, path, type_name(value))
        if self._collects:  # also what its name leads to: that may lead to another one later
            self._baseline.add(value, "" if self._is_unordered else path)
        if is_findable(value):
            return None
        return self._baseline.address(value)

    def _is_of_loop(self, value: object) -> bool:
        """Return whether the loop has made a function or class."""
        if self._collects:
            return False
        if not is_findable(value):
            return not self._baseline.has(value)
        return self._baseline.is_of_loop(value) or self._is_put_into_class(value)

    def _is_put_into_class(self, value: Any) -> bool:
        """Return whether the loop has put a function or class into a class, under a name that says it is from there."""
        owner_name, _, name = static_name(value).rpartition(".")
        owner = find_static(owner_name)
        methods = self._baseline.methods(owner) if isinstance(owner, type) else None
        held = None if methods is None else methods.get(name)
        return methods is not None and held is not value and value not in functions_in(held)
