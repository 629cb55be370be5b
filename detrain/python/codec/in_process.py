"""A graph of Python objects that stays in its process: each node leads to the very object, and holds only what can
change in it.

So more can be put back than from a file: what is no data stays the object that it is, constant tensors and large arrays
are not copied, and identities are those that were. What moves on (generators, iterators) is named, to be looked at by
whoever goes back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from detrain.base.array_memory import axes_of
from detrain.base.digest import Array, digest_array
from detrain.base.set_order import frozen_recipe, set_recipe
from detrain.python.codec.baseline import Baseline
from detrain.python.codec.decode_containers import elements
from detrain.python.codec.decoder import Decoder
from detrain.python.codec.encoder import Encoder
from detrain.python.codec.kinds import describe, is_value
from detrain.python.codec.state_rules import Kinds, has_value_hash
from detrain.python.inspect.graph import Item, Node, unpack
from detrain.python.inspect.names import own_attributes, stream_base, type_name
from detrain.python.inspect.object_graph import ABSENT, Hooks, SharedTensor, deep_calls
from detrain.python.inspect.progress import is_open_for_writing
from detrain.python.inspect.stored_attributes import program_names

_LARGE_BYTES: Final = 1 << 20
"""Arrays above this size that were there before the loop are held by their digest."""
_NO_STATE: Final = frozenset({"opaque", "static", "variable", "constant", "int", "str", "nan", "absent"})
"""Kinds of nodes whose objects hold nothing that can change, beside those of values."""
_FIXED: Final = frozenset({"tuple", "namedtuple", "frozenset", "view", "method", "partial", "builtins.slice", "enum", "wrapped"})
"""Kinds whose objects cannot be changed themselves, but lead to others that can."""


@dataclass(frozen=True, slots=True, eq=False)
class Live:
    """A graph with its objects, by number of the node."""

    graph: bytes
    arrays: dict[str, Array]
    objects: list[object]
    opaque: list[tuple[object, str]]
    """Objects (and their paths) of which nothing is held but the reference."""
    names: dict[int, set[str]]
    """Names of all attributes of objects that derive from a library's."""
    lost: list[str]
    """What cannot be put back (`path (type)`)."""


class LiveEncoder(Encoder):
    """Makes a live graph; call `encode` for each root, then `finish_live`."""

    _finds_again = True

    def __init__(self, hooks: Hooks, baseline: Baseline) -> None:
        hooks = hooks.unread()
        super().__init__(hooks, baseline)
        self._kinds = Kinds(hooks, baseline, collects=True)
        self._opaque: list[tuple[object, str]] = []
        self._attributes: dict[int, set[str]] = {}

    def finish_live(self, roots: dict[str, Item]) -> Live:
        """Return the graph with its named roots."""
        encoded = self.finish(roots)
        return Live(encoded.graph, encoded.arrays, self._alive, self._opaque, self._attributes, encoded.not_captured)

    def _encode_kind(self, number: int, value: Any, path: str) -> Node:
        if isinstance(value, Iterator) and describe(value) is not None:
            return self._encode_opaque(number, value, path)
        return super()._encode_kind(number, value, path)

    def _note_addresses(self, *_: object) -> None:
        """In this process objects stay where they are."""

    def _encode_set(self, number: int, value: Any, path: str) -> Node:
        base = set if isinstance(value, set) else frozenset
        content = list(base.__iter__(value))
        how: Item = None
        is_exact = False
        if len(content) < 2 or all(map(has_value_hash, content)):
            how, is_exact = set_recipe(value) if base is set else frozen_recipe(value)
        return Node(base.__name__, how if is_exact else "kept", self._encode_all(content, path))

    def _encode_derived(self, number: int, value: Any, path: str) -> Node:
        stream = stream_base(type(value))
        node = self._encode_opaque(number, value, path, is_captured=stream is not None)
        self._note_classes(type(value))
        own = own_attributes(value) or {}
        self._attributes[number] = set(own)
        pairs = self._encode_pairs(self._kinds.attributes(value), path)
        items = [] if stream is None else [self._node(None, self._encode_stream(stream, value, path))]
        return Node("derived", node.data, items, pairs)

    def _encode_opaque(self, number: int, value: object, path: str, *, is_captured: bool = False) -> Node:
        if is_captured:
            pass
        elif not is_open_for_writing(value):
            self._opaque.append((value, path))
        elif not self._hooks.is_known_file(value):  # one that is known is set back by whoever knows it
            self._lose(number, path, f"{type_name(value)}: open for writing")
        return Node("opaque", [type_name(value)])

    def _address_of(self, _value: object) -> None:
        return None

    def _encode_memory(self, shared: SharedTensor, _path: str) -> Node:
        return Node("memory", [*shared.extent, ""], [self._hold(shared), None])

    def _join_memories(self) -> None:
        """Each object stays where it lies."""

    def _is_of_loop(self, _value: object) -> bool:
        return False

    def _encode_array(self, kind: str, _value: object, array: Array, path: str) -> Node:
        if kind == "tensor":
            return Node("constant")
        known = self._baseline.paths.get(path)
        if known is not None and array.nbytes > _LARGE_BYTES:
            return Node("large", known)
        axes = axes_of(array)
        return Node(kind, [axes], [self._store(array if axes is None else array.transpose(axes))])


class LiveDecoder(Decoder):
    """Puts a live graph back, in place."""

    finds_by_place = True

    def __init__(self, live: Live, hooks: Hooks, baseline: Baseline) -> None:
        super().__init__(unpack(live.graph), live.arrays, hooks, baseline)
        self._live = live

    def decode(self, item: Item, _current: object, path: str) -> object:
        """Put back what the very object of an item held; return the object."""
        if not isinstance(item, list):
            return item
        number = item[0]
        if number in self.made:
            return self.made[number]
        node, live = self.nodes[number], self._live.objects[number]
        kind = node.kind
        if kind in _FIXED:
            self.made[number] = live
        if kind in ("large", "ndarray"):
            self._put_back_array(node, live, path)
        elif kind not in _NO_STATE and not is_value(kind):
            was_inside, self.is_inside = self.is_inside, True
            if was_inside:
                value = self._decode_node(number, node, live, path)
            else:
                with deep_calls():
                    value = self._decode_node(number, node, live, path)
            self.is_inside = was_inside
            if value is not live and kind not in _FIXED:
                self.miss(path, "it cannot be put back in place")
        self.made[number] = live
        return live

    def _decode_annotated(self, number: int, node: Node, current: Any, path: str) -> Any:
        self.made[number] = current
        self.fill_attributes(vars(current), node.named, path)
        return current

    def _put_back_array(self, node: Node, live: Any, path: str) -> None:
        """Write an array's values into its memory, if they are not there still."""
        if node.kind == "large":
            if digest_array(live) != node.data:
                self.miss(path, "the large array has been changed in the loop")
            return
        array, axes = self.array(node), node.data[0]
        if axes is not None:
            array = array.transpose(np.argsort(axes))
        is_alike = (live.shape, live.dtype) == (array.shape, array.dtype)
        if is_alike and live.flags.writeable:
            live[...] = array
        elif not is_alike or digest_array(live) != digest_array(array):
            self.miss(path, "it cannot be put back in place")

    def keep(self, _name: str, _address: Any, current: object, *_place: Any) -> object:
        """Every object that is not data is still there."""
        return current

    def keep_static(self, _name: str, _address: Any, current: object) -> object:
        """So is every function and class."""
        return current

    def _decode_derived(self, number: int, node: Node, current: Any, path: str) -> Any:
        """Set the program's attributes; those that it has made since are gone."""
        found = super()._decode_derived(number, node, current, path)
        own, before = own_attributes(found) or {}, self._live.names[number]
        for name in program_names(type(found), self.hooks.stored_outside, own) & own.keys() - before:
            del own[name]
        return found

    def fill_set(self, target: set[Any], items: list[Item], how: Any, path: str) -> None:
        """As the decoder of files does, but that a set which was not read in an order must be as it is."""
        values = elements(self, items, (), path)
        if how != "kept":
            super().fill_set(target, items, how, path)
        elif list(map(id, set.__iter__(target))) != list(map(id, values)):
            self.miss(path, "its order cannot be made again")


class Undo(LiveDecoder):
    """Puts data back.

    What objects have come to hold since stays, and so do variables and layers: they have been built.
    """

    def fill_attributes(self, own: dict[str, object], pairs: list[Item], path: str) -> None:
        """Set the attributes that there were; those that have been built since stay."""
        built = self._built(own)
        own.update(self.attributes(pairs, dict(own), path) | built)

    def _decode_derived(self, number: int, node: Node, current: Any, path: str) -> Any:
        built = self._built(own_attributes(current) or {})
        found = Decoder._decode_derived(self, number, node, current, path)
        (own_attributes(found) or {}).update(built)
        return found

    def _built(self, own: dict[str, object]) -> dict[str, object]:
        hooks, before = self.hooks, {id(value) for value in self._live.objects}
        new = {name: value for name, value in own.items() if id(value) not in before}
        return {name: value for name, value in new.items() if hooks.variable(value) is not None or hooks.holds_variables(value)}


def encode_value(value: object, hooks: Hooks) -> Live:
    """Return what a value holds."""
    encoder = LiveEncoder(hooks, Baseline())
    return encoder.finish_live({"": encoder.encode(value, "the batch")})


def restore_value(live: Live, hooks: Hooks) -> list[str]:
    """Put back what `encode_value` returned; return what could not be put back."""
    decoder = LiveDecoder(live, hooks, Baseline())
    decoder.decode(decoder.roots[""], ABSENT, "the batch")
    return decoder.missing
