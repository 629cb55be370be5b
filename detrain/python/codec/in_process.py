"""A graph of Python objects that stays in its process: each node leads to the very object, and holds only the state
that can change in it.

So more can be put back than from a file: objects that are no data stay the same objects, constant tensors and large
arrays are not copied, and identities are kept. Objects that move on (generators, iterators) are listed, for the code
that goes back to look at.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np

from detrain.base.array_memory import axes_of
from detrain.base.digest import Array, digest_array
from detrain.base.plain_types import is_iterator
from detrain.base.set_order import frozen_recipe, set_recipe
from detrain.python.codec.baseline import Baseline
from detrain.python.codec.coders import Decoder, Encoder
from detrain.python.codec.containers import elements
from detrain.python.codec.encoding import Encoding, Rule
from detrain.python.codec.graph_files import unpack
from detrain.python.codec.made_again import encode_made
from detrain.python.codec.objects import note_classes
from detrain.python.codec.recipes import describe
from detrain.python.codec.state_rules import DataRules, has_value_hash
from detrain.python.codec.streams import encode_stream
from detrain.python.codec.table import kind_named
from detrain.python.codec.tensors import hold
from detrain.python.inspect.hooks import Hooks
from detrain.python.inspect.names import own_attributes, stream_base, type_name
from detrain.python.inspect.object_graph import ABSENT, Item, Node, SharedTensor, deep_calls
from detrain.python.inspect.progress import is_open_for_writing
from detrain.python.inspect.stored_attributes import program_names

_LARGE_BYTES: Final = 1 << 20
"""Arrays above this size that were there before the loop are held by their digest."""


class Live(msgspec.Struct, frozen=True, eq=False):
    """A graph with its objects, by number of the node."""

    graph: bytes
    arrays: dict[str, Array]
    objects: list[object]
    opaque: list[tuple[object, str]]
    """Objects, with their paths, of which only a reference is held."""
    names: dict[int, set[str]]
    """Names of all attributes of objects that derive from a library's."""
    lost: list[str]
    """Objects that cannot be put back, as `path (type)`."""


class LiveEncoder(Encoder):
    """Makes a live graph; call `encode` for each root, then `finish_live`."""

    finds_by_place = True

    def __init__(self, hooks: Hooks, baseline: Baseline) -> None:
        hooks = hooks.unread()
        super().__init__(hooks, baseline)
        self.rules = DataRules(hooks, baseline, collects=True)
        self._opaque: list[tuple[object, str]] = []
        self._attributes: dict[int, set[str]] = {}

    def finish_live(self, roots: dict[str, Item]) -> Live:
        """Return the graph with its named roots."""
        encoded = self.finish(roots)
        return Live(encoded.graph, encoded.arrays, self.alive, self._opaque, self._attributes, encoded.not_captured)

    def rule_of(self, value: Any) -> Rule:
        """Return the rule of the encoder of files, except that iterators stay as they are, too."""
        rule = super().rule_of(value)
        return _encode_iterator if rule is encode_made and is_iterator(value) else rule

    def note_addresses(self, *_: object) -> None:
        """Do nothing: in this process objects keep their addresses."""

    def encode_set(self, number: int, value: Any, path: str) -> Node:
        base = set if isinstance(value, set) else frozenset
        content = list(base.__iter__(value))
        how: Item = None
        is_exact = False
        if len(content) < 2 or all(map(has_value_hash, content)):
            how, is_exact = set_recipe(value) if base is set else frozen_recipe(value)
        return Node(base.__name__, how if is_exact else "kept", self.encode_all(content, path))

    def encode_derived(self, number: int, value: Any, path: str) -> Node:
        stream = stream_base(type(value))
        node = self.encode_opaque(number, value, path, is_captured=stream is not None)
        note_classes(self, type(value))
        own = own_attributes(value) or {}
        self._attributes[number] = set(own)
        pairs = self.encode_pairs(self.rules.attributes(value), path)
        items = [] if stream is None else [self.add_node(None, encode_stream(self, stream, value, path))]
        return Node("derived", node.data, items, pairs)

    def encode_opaque(self, number: int, value: object, path: str, *, is_captured: bool = False) -> Node:
        if is_captured:
            pass
        elif not is_open_for_writing(value):
            self._opaque.append((value, path))
        elif not self.hooks.is_known_file(value):  # a known file is set back by the part that knows it
            self.lose(number, path, f"{type_name(value)}: open for writing")
        return Node("opaque", [type_name(value)])

    def address_of(self, _value: object) -> None:
        return None

    def encode_memory(self, shared: SharedTensor, _path: str) -> Node:
        return Node("memory", [*shared.extent, ""], [hold(self, shared), None])

    def join_memories(self) -> None:
        """Do nothing: each memory stays where it lies."""

    def is_of_loop(self, _value: object) -> bool:
        return False

    def encode_array(self, kind: str, _value: object, array: Array, path: str) -> Node:
        if kind == "tensor":
            return Node("constant")
        known = self.baseline.paths.get(path)
        if known is not None and array.nbytes > _LARGE_BYTES:
            return Node("large", known)
        axes = axes_of(array)
        return Node(kind, [axes], [self.store(array if axes is None else array.transpose(axes))])


def _encode_iterator(encoding: Encoding, number: int, value: Any, path: str) -> Node:
    is_made = describe(value) is None
    return encode_made(encoding, number, value, path) if is_made else encoding.encode_opaque(number, value, path)


def _is_equal_value(one: object, other: object) -> bool:
    """Return whether two objects are equal values, as two `torch.device`: whichever is there is as good."""
    try:
        return type(one) is type(other) and hash(one) == hash(other) and bool(one == other)
    except Exception:
        return False


class LiveDecoder(Decoder):
    """Puts a live graph back, in place."""

    finds_by_place = True

    def __init__(self, live: Live, hooks: Hooks, baseline: Baseline) -> None:
        super().__init__(unpack(live.graph), live.arrays, hooks, baseline)
        self._live = live

    def decode(self, item: Item, _current: object, path: str) -> object:
        """Put back the state of an item's very object; return the object."""
        if not isinstance(item, list):
            return item
        number = item[0]
        if number in self.made:
            return self.made[number]
        node, live = self.nodes[number], self._live.objects[number]
        holds = kind_named(node.kind).holds
        if holds == "others":
            self.made[number] = live
        if node.kind in ("large", "ndarray"):
            self._put_back_array(node, live, path)
        elif holds != "nothing":
            was_inside, self.is_inside = self.is_inside, True
            if was_inside:
                value = self.decode_node(number, node, live, path)
            else:
                with deep_calls():
                    value = self.decode_node(number, node, live, path)
            self.is_inside = was_inside
            if value is not live and holds != "others" and not _is_equal_value(value, live):
                self.miss(path, "it cannot be put back in place")
        self.made[number] = live
        return live

    def _put_back_array(self, node: Node, live: Any, path: str) -> None:
        """Write an array's values into its memory; a large or a read-only array is only compared."""
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
        """Return the object at the place: every object that is not data is still there."""
        return current

    def keep_static(self, _name: str, _address: Any, current: object) -> object:
        """Return the function or class at the place: it is still there, too."""
        return current

    def decode_derived(self, number: int, node: Node, current: Any, path: str) -> Any:
        """Set the program's attributes, and delete those that it has made since."""
        found = super().decode_derived(number, node, current, path)
        own, before = own_attributes(found) or {}, self._live.names[number]
        for name in program_names(type(found), self.hooks.stored_outside, own) & own.keys() - before:
            del own[name]
        return found

    def fill_set(self, target: set[Any], items: list[Item], how: Any, path: str) -> None:
        """Fill a set as the decoder of files does; a set whose order was not read must have kept its order."""
        values = elements(self, items, (), path)
        if how != "kept":
            super().fill_set(target, items, how, path)
        elif list(map(id, set.__iter__(target))) != list(map(id, values)):
            self.miss(path, "its order cannot be made again")


class Undo(LiveDecoder):
    """Puts data back.

    Attributes that objects got since stay, and so do variables and layers: they have been built.
    """

    def fill_attributes(self, own: dict[str, object], pairs: list[Item], path: str) -> None:
        """Set the earlier attributes again; those that have been built since stay."""
        built = self._built(own)
        own.update(self.attributes(pairs, dict(own), path) | built)

    def decode_derived(self, number: int, node: Node, current: Any, path: str) -> Any:
        built = self._built(own_attributes(current) or {})
        found = Decoder.decode_derived(self, number, node, current, path)
        (own_attributes(found) or {}).update(built)
        return found

    def _built(self, own: dict[str, object]) -> dict[str, object]:
        hooks, before = self.hooks, {id(value) for value in self._live.objects}
        new = {name: value for name, value in own.items() if id(value) not in before}
        return {name: value for name, value in new.items() if hooks.variable(value) is not None or hooks.holds_variables(value)}


def encode_value(value: object, hooks: Hooks) -> Live:
    """Return a live graph of a value."""
    encoder = LiveEncoder(hooks, Baseline())
    return encoder.finish_live({"": encoder.encode(value, "the batch")})


def restore_value(live: Live, hooks: Hooks) -> list[str]:
    """Put back the values of a live graph; return the places whose values could not be put back."""
    decoder = LiveDecoder(live, hooks, Baseline())
    decoder.decode(decoder.roots[""], ABSENT, "the batch")
    return decoder.finish()
