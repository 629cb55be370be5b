"""Graph -> Python state: puts values back into live objects, in place, so that all who hold them see it."""

from __future__ import annotations

import collections
import contextlib
import enum
import functools
import struct
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from detrain.python.codec.decode_leaves import Leaves
from detrain.python.codec.set_order import can_become, fill, freeze
from detrain.python.codec.state_rules import (
    WRAPPERS,
    class_attributes,
    class_methods,
    functions_in,
    has_contents,
    is_plain_state,
    plain,
    read_slot,
)
from detrain.python.codec.stdlib_objects import parts, remake
from detrain.python.inspect import function_source
from detrain.python.inspect.frames import has_user_code
from detrain.python.inspect.library_reads import is_consulted
from detrain.python.inspect.names import (
    NAMES,
    STATIC,
    class_name,
    container_base,
    find_method,
    find_static,
    is_own_class,
    is_user_class,
    own_attributes,
    slots_of,
    static_name,
    stream_base,
    type_name,
)
from detrain.python.inspect.object_graph import ABSENT, CONTAINERS, Item, deep_calls, key_path
from detrain.python.inspect.ownership import is_data_object
from detrain.python.inspect.pandas_tables import KINDS, MOMENTS, become, make_moment, make_table
from detrain.python.inspect.progress import place_of
from detrain.python.inspect.stored_attributes import program_names

_HASHED_ALIKE: Final = frozenset({bool, int, float, str, bytes, type(None)})
"""Kinds of keys that stay where they lie in a dictionary: an object of the program may have another hash now."""

_NO_SOURCE: Final = "the source of {0!r} has no function {1!r} that does what this one did"


class Decoder(Leaves):
    """Puts a graph back. Objects that the process has are filled in place, so that others who hold them see it."""

    def decode(self, item: Item, current: object, path: str) -> object:
        """Return the value of an item. `current` is the live object at its place, or `ABSENT`."""
        if not isinstance(item, list):
            return current if _is_same(current, item) else item  # who pickles tells one text from two that are equal
        number = item[0]
        if number in self._made:
            return self._made[number]
        if self._is_inside:
            value = self._decode_node(number, self._nodes[number], current, path)
        else:
            self._is_inside = True
            try:
                with deep_calls():
                    value = self._decode_node(number, self._nodes[number], current, path)
            finally:
                self._is_inside = False
        # A tuple inside itself is made where it is met again; and what is absent here may be there at another place.
        return value if value is ABSENT else self._made.setdefault(number, value)

    def _decode_node(self, number: int, node: list[Item], current: Any, path: str) -> Any:
        kind = node[0]
        if kind in ("list", "tuple", "deque"):
            return self._decode_sequence(number, node, current, path)
        if kind in ("set", "frozenset"):
            return self._decode_set(number, node, current, path)
        if kind in CONTAINERS:
            return self._decode_dict(number, node, current, path)
        if kind == "object":
            return self._decode_user_object(number, node, current, path)
        if kind in ("opaque", "static"):
            return self._keep(node, current)
        if kind == "derived":
            return self._decode_derived(number, node, current, path)
        if kind == "held":
            return self._decode_held(node, current, path)
        if kind == "generator":
            return self._keep(["opaque", node[1], node[2]], current)
        if kind == "loader":
            return self._decode_loader(node, current, path)
        if kind == "made":
            return self._decode_made(node, current, path)
        if kind in ("function", "class"):
            return self._decode_static_with_state(number, node, current, path)
        if kind == "defined":
            return self._decode_defined(number, node, path)
        if kind == "cell":
            return self._decode_cell(number, node, current, path)
        if kind == "wrapped":
            return self._decode_wrapped(node, current, path)
        if kind in ("method", "partial"):
            return self._decode_bound(node, current, path)
        if kind == "annotated":
            return self._decode_annotated(number, node, current, path)
        if kind in ("ndarray", "tensor", "same", "view", "objects"):
            return self._decode_array(number, node, current, path)
        if kind in ("random", "RandomState", "Generator", "bits", "seeds"):
            return self._decode_rng(node, current, path)
        if kind == "variable":
            found = self._hooks.find_variable(node[1], True)
            if found is None:
                self._miss(path, f"the variable {node[1][1]!r} is not there")
            return current if found is None else found
        return self._decode_value(node, current, path)

    def replay_generators(self) -> None:
        """Bring the generators of the program to where they were, before anything else is set: what they read is as it was."""
        for node in self._nodes:
            if node[0] == "generator":
                found = self._baseline.at(node[2])
                if found is ABSENT or not self._hooks.replay(found, node[3]):
                    self._miss(node[2], "the generator does not yield again what it did")

    def _keep(self, node: list[Item], current: object) -> object:
        """Return the object that stays as the process has it: the one at its address, of its name, or at its place."""
        kind, name, address, *place = node
        found = self._baseline.at(address)
        if found is not ABSENT and name != (static_name(found) if kind == "static" else type_name(found)):
            found = ABSENT
        if found is ABSENT and kind == "static":
            found = find_static(name)
        if found is ABSENT and kind == "static" and issubclass(type(current), STATIC) and static_name(current) == name:
            found = current
        if found is ABSENT and kind == "opaque" and type_name(current) == name:
            found = current
        if place and found is not ABSENT and place_of(found) != place[0]:
            if isinstance(found, Iterator):  # what it hands on next would be another thing
                self._miss(address, f"{name} is not where the first run had it, though the same batches were loaded again")
            elif is_consulted(found, address, self._hooks.files()):
                self.astray_and_read.append(f"{address} ({name})")
            else:
                self.astray.append(f"{address} ({name})")
        return found

    def _decode_loader(self, node: list[Item], current: object, path: str) -> object:
        """Set an object of a library to the position that it offered."""
        found = self._keep(["opaque", node[1], node[2]], current)
        state = self.decode(node[4], ABSENT, f"{path}.state")
        if found is not ABSENT and (state is ABSENT or not self._hooks.set_loader(found, node[3], state)):
            self._miss(path, "it takes no position")
        return found

    # Containers.

    def _decode_sequence(self, number: int, node: list[Item], current: Any, path: str) -> Any:
        kind, items = node[0], node[1]
        if kind == "tuple":
            return tuple(self._items(items, list(current) if type(current) is tuple else [], path))
        target: Any = current if self._claim(current, CONTAINERS[kind]) else CONTAINERS[kind]()
        self._made[number] = target
        self._fill_sequence(target, node, path)
        return target

    def _fill_sequence(self, target: Any, node: list[Item], path: str) -> None:
        base: Any = list if isinstance(target, list) else collections.deque
        old = list(base.__iter__(target))
        values = self._items(node[1], old, path)
        if not _are_same(old, values) or (node[2:] and target.maxlen != node[2]):
            base.__init__(target, values, *node[2:])

    def _decode_set(self, number: int, node: list[Item], current: Any, path: str) -> Any:
        kind, items, how = node
        if kind == "frozenset":
            values = self._elements(items, current if type(current) is frozenset else (), path)
            if how == "kept" and _has_elements(current, values):
                return current
            values = self._present(values, path)
            made = freeze(values, "list" if how == "kept" else how)
            if how == "kept" or list(map(id, made)) != list(map(id, values)):
                self._miss(path)
            return made
        is_live = type(current) is set and (how == "kept" or can_become(current, how)) and self._claim(current, set)
        target: Any = current if is_live else set()
        self._made[number] = target
        self._fill_set(target, items, how, path)
        return target

    def _fill_set(self, target: set[Any], items: list[Item], how: Any, path: str) -> None:
        values = self._elements(items, list(set.__iter__(target)), path)
        if how == "kept" and _has_elements(target, values):
            return
        if not fill(target, self._present(values, path), None if how == "kept" else how) or how == "kept":
            self._miss(path)

    def _elements(self, items: list[Item], old: Iterable[object], path: str) -> list[object]:
        """Decode the elements of a set. A place in it says nothing, so that live ones are found by their class."""
        by_class: dict[str, list[object]] = {}
        for element in list(old):
            by_class.setdefault(class_name(type(element)), []).append(element)
        values = []
        for index, item in enumerate(items):
            node = self._nodes[item[0]] if isinstance(item, list) else [""]
            candidates = by_class.get(node[1]) if node[0] == "object" else None
            values.append(self.decode(item, candidates.pop(0) if candidates else ABSENT, f"{path}[{index}]"))
        return values

    def _present(self, values: list[object], path: str) -> list[object]:
        for index, value in enumerate(values):
            if value is ABSENT:
                self._miss(f"{path}[{index}]")
        return [value for value in values if value is not ABSENT]

    def _decode_dict(self, number: int, node: list[Item], current: Any, path: str) -> Any:
        cls = CONTAINERS[node[0]]
        target: Any = current if self._claim(current, cls) else cls()
        self._made[number] = target
        self._fill_dict(cls, target, node, path)
        return target

    def _fill_dict(self, cls: Any, target: Any, node: list[Item], path: str) -> None:
        base = cls if cls is collections.OrderedDict else dict
        old, before = dict(dict.items(target)), _keys(base, target)
        pairs = []
        for index, (key_item, value_item) in enumerate(node[1]):
            key = self.decode(key_item, before[index] if index < len(before) else ABSENT, f"{path} key")
            if key is ABSENT:
                self._miss(f"{path} key")
                continue
            value = self.decode(value_item, old.get(key, ABSENT), key_path(path, key))
            if value is ABSENT:  # without its key, so that a program that makes what is not there does so
                self._miss(key_path(path, key))
                continue
            pairs.append((key, value))
        keys = [key for key, _ in pairs]
        if not (all(type(key) in _HASHED_ALIKE for key in keys) and _are_same(before, keys)):
            base.clear(target)
        for key, value in pairs:
            base.__setitem__(target, key, value)
        if cls is collections.defaultdict:
            target.default_factory = self._required(node[2], target.default_factory or ABSENT, f"{path}.default_factory")

    # Objects of the program.

    def _decode_user_object(self, number: int, node: list[Item], current: Any, path: str) -> Any:
        _kind, name, attributes, slots, content = node
        cls = self._class(name, current)
        if cls is None:
            self._miss(path, f"class {name!r} is not there")
            return current
        target: Any = current if self._claim(current, cls) else _new(cls)
        self._made[number] = target
        if content is not None:
            base: Any = container_base(cls)
            if base is set:
                self._fill_set(target, content[1], content[2], path)
            elif issubclass(base, dict):
                self._fill_dict(base, target, content, path)
            else:
                self._fill_sequence(target, content, path)
        own = own_attributes(target)
        if attributes is None:
            object.__setattr__(target, "__dict__", target)
        elif own is not None:
            self._fill_attributes(own, attributes, path)
        if slots or slots_of(cls):
            self._fill_slots(target, slots_of(cls), slots, path)
        return target

    def _decode_derived(self, number: int, node: list[Item], current: Any, path: str) -> Any:
        """Set the attributes that are the program's in an object that stays as the process has it."""
        _kind, name, address, pairs, stream, *place = [*node, None] if len(node) == 4 else node
        found: Any = self._keep(["opaque", name, address, *place], current)
        if stream is not None and found is not ABSENT and stream_base(type(found)) is not None:
            self._set_stream(stream, found, path)
        own = None if found is ABSENT else own_attributes(found)
        if own is None:
            return found
        is_data = is_data_object(found, is_plain_state)
        if is_data:
            names = {pair[0] for pair in pairs}
        elif self._hooks.is_holder(found):
            names = {pair[0] for pair in pairs} if is_own_class(type(found)) else set(own)
        elif is_own_class(type(found)):
            names = set(program_names(type(found), self._hooks.stored_outside, (pair[0] for pair in pairs)))
        else:
            names = set(self._hooks.stored_outside)
        self._made[number] = found
        if not is_data and not self._hooks.is_holder(found) and not names.issuperset(pair[0] for pair in pairs):
            self._miss(path, f"{type_name(found)} held only data, and holds more here")
        deleted = {pair[0] for pair in pairs if isinstance(pair[1], list) and self._nodes[pair[1][0]] == ["absent"]}
        # The variables of a layer of Keras's that is not built, its `build` will make.
        is_unbuilt, kept = own.get("built", True) is False and "built" not in names, names - deleted
        pairs = [pair for pair in pairs if pair[0] in kept and not (is_unbuilt and self._is_to_come(pair[1]))]
        new = self._attributes(pairs, dict(own), path)
        own.update({key: value for key, value in new.items() if own.get(key, ABSENT) is not value})
        for gone in deleted & own.keys():
            delattr(found, gone)  # which frameworks keep account of
        if is_data:  # what the loop has deleted, or the first run had not made yet
            for gone in [key for key, value in own.items() if key not in names and is_plain_state(value)]:
                del own[gone]
        return found

    def _is_to_come(self, item: Item) -> bool:
        """Return whether an item is a variable that is still to be built, or a container with such in it."""
        seen: set[int] = set()
        left = [item]
        while left:
            item = left.pop()
            if not isinstance(item, list) or item[0] in seen:
                continue
            seen.add(item[0])
            node: list[Any] = self._nodes[item[0]]
            if node[0] == "variable" and not node[2] and self._hooks.find_variable(node[1], False) is None:
                return True
            items = [node[2]] if node[0] == "held" else node[1] if node[0] in CONTAINERS else []
            left += [pair[1] for pair in items] if issubclass(CONTAINERS.get(node[0], list), dict) else items
        return False

    def _decode_held(self, node: list[Item], current: Any, path: str) -> Any:
        """Fill a framework's list, dict or set by its own methods: it also keeps account of what it holds."""
        is_live = type_name(current) == node[1] and self._hooks.is_container(current)
        old: Any = plain(current) if is_live else ABSENT
        before, values = list(old) if is_live else [], dict(old) if isinstance(old, dict) else {}
        new: Any = self.decode(node[2], old, path)  # which may fill `old` itself
        if not is_live or type(old) is not type(new):
            return new
        if isinstance(new, tuple):
            return current if list(map(id, before)) == list(map(id, new)) else type(current)(new)
        try:
            _refill(current, values, new)
        except (TypeError, ValueError) as error:  # Keras: a layer that has been built takes no further one
            self._miss(path, f"what it holds cannot be put back ({error})")
        return current

    def _decode_made(self, node: list[Item], current: Any, path: str) -> Any:
        """Decode an iterator, a writer of CSV, a file in memory or a table from its parts."""
        _kind, kind, items = node
        if kind in KINDS or kind in MOMENTS:
            return self._decode_of_pandas(kind, items, current, path)
        now = None if current is ABSENT else parts(current) or self._hooks.parts(current)
        old = now[1] if now is not None and now[0] == kind else []
        values = [
            self._required(item, old[index] if index < len(old) else ABSENT, f"{path}[{index}]") for index, item in enumerate(items)
        ]
        made = self._hooks.remake(kind, values, current)
        if made is None:
            with contextlib.suppress(TypeError, ValueError):  # of parts that are not there
                made = remake(kind, values, current)
        if made is None:
            self._miss(path, f"this Python cannot make {kind}")
        return ABSENT if made is None else made

    def _decode_of_pandas(self, kind: str, items: list[Item], current: Any, path: str) -> Any:
        values = [self._required(item, ABSENT, f"{path}[{index}]") for index, item in enumerate(items)]
        try:
            made = make_moment(kind, values) if kind in MOMENTS else make_table(kind, values)
        except Exception as error:  # an edge: another version of pandas, or none
            self._miss(path, f"{kind} cannot be made again ({type(error).__name__})")
            return ABSENT
        if kind in MOMENTS or not self._claim(current, type(made)):
            return made
        become(current, made)
        return current

    def _attributes(self, pairs: list[Item], old: Mapping[str, object], path: str) -> dict[str, object]:
        """Decode attributes; one that is absent stays as it is, and is named."""
        new: dict[str, object] = {}
        for name_item, item in pairs:
            name: Any = self.decode(name_item, ABSENT, path)
            value = self.decode(item, old.get(name, ABSENT), f"{path}.{name}")
            if value is ABSENT:
                self._miss(f"{path}.{name}")
                value = old.get(name, ABSENT)
            if value is not ABSENT:
                new[name] = value
        return new

    def _fill_attributes(self, own: dict[str, object], pairs: list[Item], path: str) -> None:
        new = self._attributes(pairs, dict(own), path)
        if list(own) != list(new) or any(own[name] is not value for name, value in new.items()):
            own.clear()
            own.update(new)

    def _decode_annotated(self, number: int, node: list[Item], current: Any, path: str) -> Any:
        """A tensor with attributes, which may lead to it again."""
        before = dict(getattr(current, "__dict__", {}))
        found = self._decode_node(number, node[1], current, path)
        own = getattr(found, "__dict__", None)
        if own is None:
            return found
        self._made[number] = found
        own.update(before)  # objects are put back in place
        self._fill_attributes(own, node[2], path)
        return found

    def _fill_slots(self, target: object, slots: Mapping[str, Any], pairs: list[Item], path: str) -> None:
        old = {name: found[0] for name, slot in slots.items() if (found := read_slot(slot, target)) is not None}
        new = self._attributes(pairs, old, path)
        for name in slots.keys() & (old.keys() | new.keys()):
            try:
                if name not in new:
                    slots[name].__delete__(target)
                elif old.get(name, ABSENT) is not new[name]:
                    slots[name].__set__(target, new[name])
            except AttributeError:  # of a class of C: it is what it was made with
                self._miss(f"{path}.{name}")

    def _decode_static_with_state(self, number: int, node: list[Item], current: Any, path: str) -> Any:
        kind, name, address, *state = node
        found: Any = self._keep(["static", name, address], current)
        if found is ABSENT:
            return ABSENT
        self._made[number] = found
        if kind == "function" and has_user_code(found):
            if len(state) > 4:  # it does something else than when the loop was entered
                self._name_function(found, state[4][3], path)
                self._set_code(found, state[4][:3], path)
            self._fill_function(found, state[:4], path)
        elif kind == "class" and isinstance(found, type) and is_own_class(found):
            old = class_attributes(found)
            new = self._attributes(state[0], old, path)
            members: Mapping[str, object] = getattr(found, "__members__", {}) if issubclass(found, enum.Enum) else {}
            for gone in old.keys() - new.keys() - members.keys() if is_user_class(found) else ():
                delattr(found, gone)
            for attribute, value in new.items():
                if old.get(attribute, ABSENT) is not value and attribute not in members:
                    setattr(found, attribute, value)
            if len(state) > 1:  # an earlier version did not write methods
                self._fill_methods(found, state[1], state[2], path)
        return found

    def _fill_methods(self, cls: type, pairs: list[Item], gone: list[Item], path: str) -> None:
        """Set the methods of a class. Those that were not written are those of when the loop was entered."""
        live = class_methods(cls)
        new = (self._baseline.methods(cls) or live) | self._attributes(pairs, live, path)
        for name in live.keys() - new.keys() | {str(self.decode(item, ABSENT, path)) for item in gone}:
            if name in vars(cls):
                delattr(cls, name)
            new.pop(name, None)
        for name, value in new.items():
            if live.get(name, ABSENT) is not value:
                setattr(cls, name, value)
                if isinstance(value, functools.cached_property) and value.attrname is None:
                    value.__set_name__(cls, name)

    def _decode_wrapped(self, node: list[Item], current: Any, path: str) -> Any:
        kind = WRAPPERS[node[1]][0]
        old = functions_in(current) if type(current) is kind else ()
        new = self._items(node[2], list(old), path)
        return current if old and _is_alike(old, tuple(new)) else kind(*new)

    def _decode_cell(self, number: int, node: list[Item], current: Any, path: str) -> Any:
        current = self._cells.get(number, current)
        if type(current) is not types.CellType:
            return ABSENT
        self._made[number] = self._cells[number] = current
        old = current.cell_contents if has_contents(current) else ABSENT
        if len(node) == 1:
            if old is not ABSENT:
                del current.cell_contents
            return current
        value = self.decode(node[1], old, path)
        if value is ABSENT:
            self._miss(path)
        elif value is not old:
            current.cell_contents = value
        return current

    def hold_cells(self, cells: Mapping[str, types.CellType]) -> None:
        """Take the variables of the calls that go on, by where they are, and those of functions that are there, for those of the
        first run: what the loop has made may share them. Before anything is decoded."""
        for key, item in self.roots.items():
            kind, _, place = key.partition("|")
            if kind == "cells" and place in cells:
                self._cells[item[0]] = cells[place]
        for node in self._nodes:
            found = self._keep(["static", *node[1:3]], ABSENT) if node[0] == "function" else ABSENT
            if isinstance(found, types.FunctionType):
                self._cells.update(zip([item[0] for item in node[3]], found.__closure__ or (), strict=False))

    def _name_function(self, function: types.FunctionType, names: list[Item], path: str) -> None:
        for name, item in zip(NAMES, names, strict=True):
            setattr(function, name, self.decode(item, ABSENT, f"{path}.{name}"))

    def _set_code(self, function: types.FunctionType, key: list[str], path: str) -> None:
        source = function_source.find(*key)
        if source is None or len(source.code.co_freevars) != len(function.__code__.co_freevars):
            self._miss(path, _NO_SOURCE.format(*key))
        else:
            function.__code__ = source.code

    def _decode_defined(self, number: int, node: list[Item], path: str) -> object:
        """Make a function again that the loop had made: its code is that of the program's own source."""
        _kind, module_name, qualified, digest, names, annotations, *state = node
        source = function_source.find(module_name, qualified, digest)
        if source is None or len(source.code.co_freevars) != len(state[0]):
            self._miss(path, _NO_SOURCE.format(module_name, qualified))
            return ABSENT
        cells = [self._cells.setdefault(item[0], types.CellType()) for item in state[0]]
        function = types.FunctionType(source.code, vars(sys.modules[module_name]), closure=tuple(cells))
        self._made[number] = function
        self._name_function(function, names, path)
        said = {name: self.decode(item, ABSENT, path) for name, item in annotations}
        function.__annotations__ = {name: value for name, value in said.items() if value is not ABSENT}
        self._fill_function(function, state, path)
        return function

    def _fill_function(self, function: types.FunctionType, state: list[Item], path: str) -> None:
        cells, defaults, keywords, attributes = state
        live = function.__closure__ or ()
        if len(live) != len(cells):
            self._miss(path, "the function closes over other names than it did")
            return
        for name, cell, item in zip(function.__code__.co_freevars, live, cells, strict=True):
            if self.decode(item, cell, f"{path}.<{name}>") is not cell:
                self._miss(f"{path}.<{name}>", "another function has it for itself, which shared it")
        for name, item in (("__defaults__", defaults), ("__kwdefaults__", keywords)):
            old = getattr(function, name)
            new = self._required(item, old, f"{path}.{name}")
            if not _is_alike(old, new):
                setattr(function, name, new)
        kept = {name: item for name, item in vars(function).items() if name in self._hooks.on_functions}
        self._fill_attributes(vars(function), attributes, path)
        vars(function).update(kept)

    def _decode_bound(self, node: list[Item], current: Any, path: str) -> Any:
        """A bound method or a partial call: made anew where what it is bound to is not what the live one is bound to."""
        if node[0] == "partial":
            is_live = type(current) is functools.partial
            old = (current.func, current.args, current.keywords) if is_live else (ABSENT,) * 3
            parts: list[Any] = [
                self._required(item, part, f"{path}.{n}")
                for item, part, n in zip(node[1:], old, ("func", "args", "keywords"), strict=True)
            ]
            if is_live and all(map(_is_alike, old, parts)):
                return current
            return functools.partial(parts[0], *parts[1], **parts[2]) if callable(parts[0]) else ABSENT
        is_live = type(current) in (types.MethodType, types.BuiltinMethodType)
        owner = self.decode(node[2], current.__self__ if is_live else ABSENT, f"{path}.__self__")
        if node[3] is None:
            method = find_method(owner, node[1])
        else:  # not the method that the class has under this name
            function = self.decode(node[3], getattr(current, "__func__", ABSENT), f"{path}.__func__")
            method = types.MethodType(function, owner) if isinstance(function, types.FunctionType) else ABSENT
        return current if is_live and current == method else method


def _new(cls: type) -> Any:
    """Return a new object without running the program's code."""
    base: Any = container_base(cls)
    if base is not None:
        return base.__new__(cls)
    return types.SimpleNamespace.__new__(cls) if issubclass(cls, types.SimpleNamespace) else object.__new__(cls)


def _has_elements(current: object, values: list[object]) -> bool:
    """Return whether a live set is the one with these elements, as far as they could be found."""
    base: Any = next((base for base in (set, frozenset) if isinstance(current, base)), None)
    if base is None:
        return False
    live = list(base.__iter__(current))
    found = {id(value) for value in values if value is not ABSENT}
    return len(live) == len(values) and (found <= set(map(id, live)) or live == values)


def _keys(base: Any, target: Any) -> list[Any]:
    try:
        return list(base.keys(target))
    except KeyError:  # what derives from OrderedDict may have been changed past its own methods
        return [ABSENT]


def _are_same(old: list[Any], new: list[Any]) -> bool:
    """Return whether two lists hold the same objects or bits. A loop that stands in their container must be able to go on."""
    return len(old) == len(new) and all(map(_is_same, old, new))


def _is_same(one: Any, other: Any) -> bool:
    if one is other or type(one) is not type(other) or type(one) not in (int, float, str, bytes):
        return one is other
    return bool(struct.pack("<d", one) == struct.pack("<d", other) if type(one) is float else one == other)


def _is_alike(one: object, other: object) -> bool:
    """Return whether two values are one object, or hold one and the same objects."""
    if one is other:
        return True
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))
    return False


def _refill(current: Any, values: dict[Any, Any], new: Any) -> None:
    """Make a framework's container hold what `new` does, by its own methods; `values`: what a dict held before.

    As much as can stays where it is: Keras would not let a layer of a model that is built go and come back.
    """
    if isinstance(new, set):
        if set(map(id, current)) != set(map(id, new)):
            current.clear()
            current.update(new)
        if list(map(id, current)) != list(map(id, new)):
            raise ValueError("the order of a set")
    elif isinstance(new, dict):
        # TensorFlow's dict takes what its other methods remove for a change behind its back, and is never saved again.
        remove = current.pop if "pop" in vars(type(current)) else current.__delitem__
        for key in [key for key in values if key not in new]:
            remove(key)
        there = [key for key in values if key in new]
        kept = next((n for n, (key, other) in enumerate(zip(there, new, strict=False)) if not _is_same(key, other)), len(there))
        for key in there[kept:]:
            remove(key)
        stays = {key for key in there[:kept] if values[key] is new[key]}
        current.update({key: value for key, value in new.items() if key not in stays})
    else:
        going = {id(item) for item in current} - set(map(id, new))
        for index in reversed(range(len(current))):
            if len(current) > len(new) and id(current[index]) in going:
                del current[index]
        while len(current) > len(new):
            current.pop()
        for index, item in enumerate(new[: len(current)]):
            if not _is_same(current[index], item):
                current[index] = item
        current.extend(new[len(current) :])
