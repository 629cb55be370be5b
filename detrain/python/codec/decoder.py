"""Graph -> Python state: puts values back into live objects, in place, so that all who hold them see it."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Mapping
from typing import Any

from detrain.base.digest import digest_array
from detrain.python.codec.baseline import Baseline
from detrain.python.codec.decode_containers import (
    decode_dict,
    decode_held,
    decode_sequence,
    decode_set,
    fill_dict,
    fill_sequence,
    fill_set,
)
from detrain.python.codec.decode_functions import (
    decode_bound,
    decode_cell,
    decode_defined,
    decode_static_with_state,
    decode_wrapped,
    hold_cells,
)
from detrain.python.codec.decode_leaves import decode_array, decode_rng, decode_value, set_stream
from detrain.python.codec.decode_tensors import decode_shared
from detrain.python.codec.decoding import Decoding
from detrain.python.codec.encoder import Encoder
from detrain.python.codec.kinds import describe, is_same, make_again
from detrain.python.codec.state_rules import read_slot
from detrain.python.inspect.fingerprint import at_steps, digest_of_tensor
from detrain.python.inspect.graph import Item, Node, unreadable
from detrain.python.inspect.library_globals import give_to_library, held_in_library
from detrain.python.inspect.names import (
    container_base,
    is_own_class,
    own_attributes,
    slots_of,
    stream_base,
    type_name,
)
from detrain.python.inspect.object_graph import ABSENT, CONTAINERS, Hooks, deep_calls, shown
from detrain.python.inspect.ownership import new_object, of_last_use
from detrain.python.inspect.pandas_tables import TABLES, become, make_table
from detrain.python.inspect.stored_attributes import program_names
from detrain.python.process.reducers import reduction_named


def _are_alike(one: object, other: object, hooks: Hooks) -> bool:
    """Return whether two values are data, and equal bit for bit."""
    encoded = [(each := Encoder(hooks, Baseline())).finish({"": each.encode(value, "")}) for value in (one, other)]
    digests = [{name: digest_array(array) for name, array in each.arrays.items()} for each in encoded]
    is_data = not any(each.not_captured for each in encoded)
    return is_data and encoded[0].graph == encoded[1].graph and digests[0] == digests[1]


class Decoder(Decoding):
    """Puts a graph back. Objects that the process has are filled in place, so that others who hold them see it."""

    def decode(self, item: Item, current: object, path: str) -> object:
        """Return the value of an item. `current` is the live object at its place, or `ABSENT`."""
        if not isinstance(item, list):
            return current if is_same(current, item) else item  # who pickles tells one text from two that are equal
        number = item[0]
        if number in self.made:
            return self.made[number]
        if self.is_inside:
            value = self._decode_node(number, self.nodes[number], current, path)
        else:
            self.is_inside = True
            try:
                with deep_calls():
                    value = self._decode_node(number, self.nodes[number], current, path)
            except RecursionError as error:
                raise unreadable(f"{shown(path)} is nested too deeply, or lies in itself") from error
            finally:
                self.is_inside = False
        if number in self.lost and shown(path) in self.missing:  # the order of a set
            self.missing.remove(shown(path))
            self.gone.append(shown(path))
        # A tuple inside itself is made where it is met again; and what is absent here may be there at another place.
        return value if value is ABSENT else self.made.setdefault(number, value)

    def _decode_node(self, number: int, node: Node, current: Any, path: str) -> Any:
        kind = node.kind
        if kind in ("list", "tuple", "deque"):
            return decode_sequence(self, number, node, current, path)
        if kind in ("set", "frozenset"):
            return decode_set(self, number, node, current, path)
        if kind in CONTAINERS:
            return decode_dict(self, number, node, current, path)
        if kind == "object":
            return self._decode_user_object(number, node, current, path)
        if kind in ("opaque", "generator"):
            return self.keep(node.data[0], node.there, current, *(node.data[1:] if kind == "opaque" else ()))
        if kind == "static":
            return self.keep_static(node.data, node.there, current)
        if kind == "derived":
            return self._decode_derived(number, node, current, path)
        if kind == "held":
            return decode_held(self, node, current, path)
        if kind == "loader":
            return self._decode_loader(node, current, path)
        if kind == "reduced":
            return self._decode_reduced(node, current, path)
        if kind in ("function", "class"):
            return decode_static_with_state(self, number, node, current, path)
        if kind == "defined":
            return decode_defined(self, number, node, path)
        if kind == "cell":
            return decode_cell(self, number, node, current, path)
        if kind == "wrapped":
            return decode_wrapped(self, node, current, path)
        if kind in ("method", "partial"):
            return decode_bound(self, node, current, path)
        if kind == "annotated":
            return self._decode_annotated(number, node, current, path)
        if kind == "shared":
            return decode_shared(self, number, node, current, path)
        if kind in ("ndarray", "tensor", "same", "view", "objects"):
            return decode_array(self, number, node, current, path)
        if kind in ("random", "RandomState", "Generator", "bits", "seeds"):
            return decode_rng(self, node, current, path)
        if kind == "library":
            return self._decode_held_by_library(number, node, current, path)
        if kind == "inside":
            return self._decode_inside(node, current, path)
        if kind == "variable":
            described = node.data[0]
            found = self.hooks.find_variable(described, True)
            if found is None:
                self.miss(path, f"the variable {described[1]!r} is not there")
            return current if found is None else found
        if kind == "absent":
            return ABSENT
        if kind == "address":
            return id(self.decode(node.items[0], ABSENT, path))
        if "." in kind:
            return self._decode_made(node, current, path)
        return decode_value(self, node, current, path)

    def fill_set(self, target: set[Any], items: list[Item], how: Any, path: str) -> None:
        """Give a live set the elements that it had, in the order that `how` says."""
        fill_set(self, target, items, how, path)

    def hold_cells(self, cells: Mapping[str, types.CellType]) -> None:
        """Take live variables for those of the first run (`decode_functions.hold_cells`).
        Before anything is decoded."""
        hold_cells(self, cells)

    def replay_generators(self) -> None:
        """Bring the generators of the program to where they were, before anything else is set:
        what they read is as it was."""
        for node in self.nodes:
            if node.kind == "generator":
                found = self.baseline.at(node.there)
                if found is ABSENT or not self.hooks.replay(found, node.data[1]):
                    self.miss(node.there, "the generator does not yield again what it did")

    def _decode_inside(self, node: Node, current: object, path: str) -> object:
        """Put back what an object of a library holds, in place; or see that loading has brought it there."""
        (steps, *digest), (item,) = node.data, node.items
        owner = current if self.finds_by_place else self.baseline.at(node.there)
        try:
            live = at_steps(owner, steps)
        except LookupError:
            live = ABSENT
        if digest:
            if digest_of_tensor(live, self.hooks) != digest[0]:
                self.miss(path, "loading the same batches has not brought it to where it was: bodies had moved it")
        elif live is ABSENT or self.decode(item, live, path) is not live:
            self.miss(path, "an object of a library holds another one than it did")
        return owner

    def _decode_held_by_library(self, number: int, node: Node, current: object, path: str) -> object:
        """Fill the object that a library holds under a name: there is one of it. Where the library has none yet, it is
        given one.
        """
        found = held_in_library(node.data)
        if found is not ABSENT:
            self.made[number] = found
        value = self.decode(node.items[0], current if found is ABSENT else found, path)
        if value is not found and not (found is ABSENT and give_to_library(node.data, value)):
            self.miss(path, f"no library holds {node.data} here")
        return value

    def _decode_loader(self, node: Node, current: object, path: str) -> object:
        """Set an object of a library to the position that it offered."""
        found = self.keep(node.data[0], node.there, current)
        state = self.decode(node.items[0], ABSENT, f"{path}.state")
        if found is not ABSENT and (state is ABSENT or not self._is_brought(found, node.data[1], state)):
            self.miss(path, "it takes no position")
        return found

    def _is_brought(self, found: object, which: int, state: object) -> bool:
        """Return whether an object is at the position that it offered. One that loads have brought there is not set to
        it: in the midst of an iteration, that may part the object from what counts for it."""
        offered = self.hooks.loader_state(found)
        return (offered is not None and _are_alike(offered[1], state, self.hooks)) or self.hooks.set_loader(found, which, state)

    def _decode_user_object(self, number: int, node: Node, current: Any, path: str) -> Any:
        name, in_slots, is_own_dict = node.data
        attributes, slots = node.named[: len(node.named) - in_slots], node.named[len(node.named) - in_slots :]
        live = self._to_fill(node.there, current)
        cls = self.class_named(name, live)
        if cls is None:
            self.miss(path, f"class {name!r} is not there")
            return current
        target: Any = live if self.claim(live, cls) else new_object(cls)
        self.made[number] = target
        for item in node.items:
            content = self.nodes[item[0]]
            base: Any = container_base(cls)
            if base is set:
                self.fill_set(target, content.items, content.data, path)
            elif issubclass(base, dict):
                fill_dict(self, base, target, content, path)
            else:
                fill_sequence(self, target, content, path)
        own = own_attributes(target)
        if is_own_dict:
            object.__setattr__(target, "__dict__", target)
        elif own is not None:
            kept = {name: own[name] for name in of_last_use(cls) if name in own}
            self.fill_attributes(own, attributes, path)
            own.update(kept)
        if slots or slots_of(cls):
            self._fill_slots(target, slots_of(cls), slots, path)
        return target

    def _to_fill(self, address: str | None, current: object) -> object:
        """Return the object that a node fills: of the program's the one at its place, of a library's that at its
        address."""
        if address is None or self.finds_by_place:
            return current
        found = self.baseline.at(address)
        return current if found is ABSENT and address else found

    def _decode_derived(self, number: int, node: Node, current: Any, path: str) -> Any:
        """Set the attributes that are the program's in an object that stays as the process has it."""
        (name, *place), pairs = node.data, node.named
        found: Any = self.keep(name, node.there, current, *place)
        for item in node.items if found is not ABSENT and stream_base(type(found)) is not None else ():
            set_stream(self, self.nodes[item[0]], found, path)
        own = None if found is ABSENT else own_attributes(found)
        if own is None:
            return found
        if self.hooks.is_holder(found):
            names = {pair[0] for pair in pairs} if is_own_class(type(found)) else set(own)
        elif is_own_class(type(found)):
            names = set(program_names(type(found), self.hooks.stored_outside, (pair[0] for pair in pairs)))
        else:
            names = set(self.hooks.stored_outside)
        self.made[number] = found
        if not self.hooks.is_holder(found) and not names.issuperset(pair[0] for pair in pairs):
            self.miss(path, f"{type_name(found)} held only data, and holds more here")
        deleted = {pair[0] for pair in pairs if isinstance(pair[1], list) and self.nodes[pair[1][0]].kind == "absent"}
        # The variables of a layer of Keras's that is not built, its `build` will make.
        is_unbuilt, kept = own.get("built", True) is False and "built" not in names, names - deleted
        pairs = [pair for pair in pairs if pair[0] in kept and not (is_unbuilt and self._is_to_come(pair[1]))]
        new = self.attributes(pairs, dict(own), path)
        own.update({key: value for key, value in new.items() if own.get(key, ABSENT) is not value})
        for gone in deleted & own.keys():
            delattr(found, gone)  # which frameworks keep account of
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
            node = self.nodes[item[0]]
            if node.kind == "variable" and not node.data[1] and self.hooks.find_variable(node.data[0], False) is None:
                return True
            if node.kind == "held" or node.kind in CONTAINERS:
                left += [*node.items, *(value for _key, value in node.named)]
        return False

    def _decode_made(self, node: Node, current: Any, path: str) -> Any:
        """Decode what is made from its parts: a date, an iterator, a file in memory, a table."""
        kind = node.kind
        now = None if current is ABSENT else describe(current) or self.hooks.parts(current)
        old = now[1] if now is not None and now[0] == kind else []
        values = self.items(node.items, old, path)
        if kind in TABLES:
            return self._decode_table(kind, values, current, path)
        made = self.hooks.remake(kind, values, current)
        if made is None:
            with contextlib.suppress(TypeError, ValueError, ImportError):  # of parts that are not there; pandas may not be here
                made = make_again(kind, values, current)
        if made is None:
            self.miss(path, f"this Python cannot make {kind}")
        return ABSENT if made is None else made

    def _decode_reduced(self, node: Node, current: object, path: str) -> object:
        """Give an object, or a new one, the data that a package's reducer has saved of it."""
        name = node.data
        data = self.required(node.items[0], ABSENT, f"{path}.data")
        found = current if self.finds_by_place else self.baseline.at(node.there)
        if type_name(found) != name:
            found = ABSENT
        reduction = reduction_named(name)
        if reduction is None:
            self.miss(path, f"no package that is installed here has a reducer for {name}")
        elif found is not ABSENT:
            reduction.load(found, data)
        elif reduction.makes:
            return reduction.make(data)
        return found

    def _decode_table(self, kind: str, values: list[Any], current: Any, path: str) -> Any:
        try:
            made = make_table(kind, values)
        except Exception as error:  # an edge: another version of pandas, or none
            self.miss(path, f"{kind} cannot be made again ({type(error).__name__})")
            return ABSENT
        if not self.claim(current, type(made)):
            return made
        become(current, made)
        return current

    def _decode_annotated(self, number: int, node: Node, current: Any, path: str) -> Any:
        """A tensor with attributes, which may lead to it again."""
        before = dict(getattr(current, "__dict__", {}))
        found = self._decode_node(number, self.nodes[node.items[0][0]], current, path)
        own = getattr(found, "__dict__", None)
        if own is None:
            return found
        self.made[number] = found
        own.update(before)  # objects are put back in place
        self.fill_attributes(own, node.named, path)
        return found

    def _fill_slots(self, target: object, slots: Mapping[str, Any], pairs: list[Item], path: str) -> None:
        old = {name: found[0] for name, slot in slots.items() if (found := read_slot(slot, target)) is not None}
        new = self.attributes(pairs, old, path)
        for name in slots.keys() & (old.keys() | new.keys()):
            try:
                if name not in new:
                    slots[name].__delete__(target)
                elif old.get(name, ABSENT) is not new[name]:
                    slots[name].__set__(target, new[name])
            except AttributeError:  # of a class of C: it is what it was made with
                self.miss(f"{path}.{name}")
