"""The containers: lists, tuples, deques, sets, dictionaries, and those of frameworks."""

from __future__ import annotations

import collections
import itertools
import sys
from collections.abc import Callable, Iterable
from typing import Any, Final

from detrain.base.losses import HARMLESS
from detrain.base.plain_types import CONTAINERS
from detrain.base.set_order import can_become, fill, freeze, frozen_recipe, set_recipe
from detrain.python.codec.decoding import Decoding
from detrain.python.codec.encoding import Encoding
from detrain.python.codec.kind import NONE, Form, define
from detrain.python.codec.recipes import is_same
from detrain.python.codec.state_rules import has_value_hash, plain
from detrain.python.inspect.code_reads import is_gone_over
from detrain.python.inspect.held import walk
from detrain.python.inspect.names import class_name, is_namespace, static_name, type_name
from detrain.python.inspect.object_graph import ABSENT, Item, Node, is_item, is_reference, key_path

_BY_KEYS: Final = ("dict", "OrderedDict", "defaultdict")
_WITH_ATTRIBUTES: Final = (collections.OrderedDict, collections.Counter)
_ADDRESSES: Final = range(1 << 32, 1 << 48, 8)
"""The addresses at which a process of 64 bits may have its objects."""
_OF_PARTS: Final = ("object", "value", "namedtuple", "tuple", "frozenset")
"""Kinds of keys whose hashes may be computed from the objects that they lead to."""
_HASHED_ALIKE: Final = frozenset({bool, int, float, str, bytes, type(None)})
"""Types of keys that keep their place in a dictionary: an object of the program may have another hash now."""


def encode_plain(encoding: Encoding, number: int, value: Any, path: str) -> Node:
    """Encode one of Python's containers; one inside of a library's object may be the library's own. The namespace of a
    module stays, as the module does."""
    cls = type(value)
    if cls is dict and is_namespace(value):
        if encoding.collects:
            encoding.baseline.add(value, "" if encoding.is_unordered else path)
        if encoding.finds_by_place or encoding.baseline.has(value):
            return Node("static", static_name(value), there=encoding.baseline.address(value))
    is_set = cls in (set, frozenset)
    node = encoding.encode_set(number, value, path) if is_set else encode_container(encoding, number, value, path, cls=cls)
    return encoding.named_by_library(value, node) if encoding.packages and cls not in (tuple, frozenset) else node


def encode_container(encoding: Encoding, number: int, value: Any, path: str, *, cls: Any) -> Node:
    """Encode the content of a container, read past the methods of a class that derives from it."""
    if issubclass(cls, dict):
        entries = list((cls if cls is collections.OrderedDict else dict).items(value))
        encoding.note_addresses(number, cls, [key for key, _ in entries], path)
        pairs = [
            [
                key if is_item(key) else encoding.encode(key, f"{path} key"),
                item if is_item(item) else encoding.encode(item, key_path(path, key)),
            ]
            for key, item in entries
        ]
        node = Node(cls.__name__, named=pairs)
        if cls is collections.defaultdict:
            node.items = [encoding.encode(value.default_factory, f"{path}.default_factory")]
        elif cls in _WITH_ATTRIBUTES and type(value) is cls and (own := vars(value)):
            # PyTorch's `state_dict` sets attributes on one.
            node.items = [encoding.add_node(None, Node("dict", named=encoding.encode_pairs(own, path)))]
        return node
    items = encoding.encode_all(list(cls.__iter__(value)), path)
    return Node(cls.__name__, value.maxlen if cls is collections.deque else None, items)


def note_addresses(encoding: Encoding, number: int, cls: type, keys: list[object], path: str) -> None:
    """Note keys that may be addresses of objects; `mark_addresses` decides when all objects are known."""
    found = set() if encoding.collects else {key for key in keys if type(key) is int and key in _ADDRESSES}
    if found:
        encoding.addresses.append((number, cls.__name__, found, path))


def mark_addresses(encoding: Encoding, number: int, holder: str, keys: set[Any], path: str) -> None:
    """Describe the addresses in a dictionary or set by the objects that lie there; name other containers of addresses.

    Code that asks a set for an address gets the same answer in each process; code that goes over it, another order.
    """
    node: Any = encoding.nodes[number]
    assert node is not None
    if not keys:
        return
    while node.kind in ("library", "object"):  # a node around the container's own
        node = encoding.nodes[node.items[0][0]]

    def described(item: Item) -> Item:
        is_address = type(item) is int and item in keys
        return encoding.add_node(None, Node("address", None, [[encoding.numbers[item]]])) if is_address else item

    if node.kind == holder and holder in _BY_KEYS:
        for pair in node.named:
            pair[0] = described(pair[0])
    elif node.kind == holder == "set" and not is_gone_over(path, encoding.hooks.files()):
        node.items, node.data = [described(item) for item in node.items], None
    else:
        encoding.nodes[number] = encoding.lose(number, path, f"{holder}: it has addresses (`id`), others in each process")


def encode_set(encoding: Encoding, number: int, value: Any, path: str) -> Node:
    """Encode a set with the data that its order needs; one that no process can order alike is named, unless it is
    unchanged."""
    base = set if isinstance(value, set) else frozenset
    name, content = base.__name__, list(base.__iter__(value))
    encoding.note_addresses(number, base, content, path)
    has_order = len(content) < 2 or all(map(has_value_hash, content))
    before, encoding.is_unordered = encoding.is_unordered, encoding.is_unordered or not has_order
    items = encoding.encode_all(content, path)
    encoding.is_unordered = before
    if encoding.collects:
        encoding.baseline.add_set(value, content)
        return Node(name, None, items)
    how: Item = None if name == "set" else "list"
    is_exact = False
    if has_order:
        how, is_exact = set_recipe(value) if name == "set" else frozen_recipe(value)
    is_kept = not is_exact and encoding.baseline.has_set(value, content)
    if not has_order and is_gone_over(path, encoding.hooks.files()):
        encoding.lose(number, path, f"{name}: its order is that of addresses, and the program goes over it")
    elif not is_exact and not is_kept:
        # Addresses differ in each process; code that only asks for elements does not notice.
        why = "its order cannot be made again" if has_order else f"its order is that of addresses{HARMLESS}"
        encoding.lose(number, path, f"{name}: {why}")
    return Node(name, "kept" if is_kept else how, items)


def encode_held(encoding: Encoding, number: int, value: Any, path: str) -> Item:
    """Encode the content of a framework's list, dict, set or tuple; a set has its own order, not a copy's."""
    if isinstance(value, set):
        return encoding.add_node(plain(value), encoding.encode_set(number, value, path))
    return encoding.encode(plain(value), path)


def decode_sequence(decoding: Decoding, number: int, node: Node, current: Any, path: str) -> Any:
    """Return the list, tuple or deque of a node, the live one if there is one."""
    if node.kind == "tuple":
        return decoding.tuple_of(tuple, decoding.items(node.items, list(current) if type(current) is tuple else [], path), current)
    target: Any = current if decoding.claim(current, CONTAINERS[node.kind]) else CONTAINERS[node.kind]()
    decoding.made[number] = target
    fill_sequence(decoding, target, node, path)
    return target


def fill_sequence(decoding: Decoding, target: Any, node: Node, path: str) -> None:
    """Give a live list or deque, or an object of a derived class, the items that it had."""
    base: Any = list if isinstance(target, list) else collections.deque
    old = list(base.__iter__(target))
    values = decoding.items(node.items, old, path)
    if not _are_same(old, values) or (base is collections.deque and target.maxlen != node.data):
        base.__init__(target, values, *([node.data] if base is collections.deque else []))


def decode_set(decoding: Decoding, number: int, node: Node, current: Any, path: str) -> Any:
    """Return the set of a node in the order that it had; name it where the order cannot be made again."""
    items, how = node.items, node.data
    if node.kind == "frozenset":
        values = elements(decoding, items, current if type(current) is frozenset else (), path)
        if how == "kept" and _has_elements(current, values):
            return current
        values = _present(decoding, items, values, path)
        made = freeze(values, "list" if how == "kept" else how)
        if how == "kept" or list(map(id, made)) != list(map(id, values)):
            decoding.miss(path)
        return made
    is_live = type(current) is set and (how == "kept" or can_become(current, how)) and decoding.claim(current, set)
    target: Any = current if is_live else set()
    decoding.made[number] = target
    decoding.fill_set(target, items, how, path)
    return target


def fill_set(decoding: Decoding, target: set[Any], items: list[Item], how: Any, path: str) -> None:
    """Give a live set the elements that it had, in the order that `how` says."""
    _fill_in_time(decoding, items, lambda: _fill_set(decoding, target, items, how, path))


def _fill_set(decoding: Decoding, target: set[Any], items: list[Item], how: Any, path: str) -> None:
    values = elements(decoding, items, list(set.__iter__(target)), path)
    if how == "kept" and _has_elements(target, values):
        return
    there = _present(decoding, items, values, path)
    is_filled = fill(target, there, None if how == "kept" else how) or (
        bool(_addressed(decoding, items)) and set.__eq__(target, set(there))
    )
    if not is_filled or how == "kept":
        decoding.miss(path)


def elements(decoding: Decoding, items: list[Item], old: Iterable[object], path: str) -> list[object]:
    """Decode the elements of a set. Their places mean nothing, so live elements are found by their class."""
    by_class: dict[str, list[object]] = {}
    for element in list(old):
        by_class.setdefault(class_name(type(element)), []).append(element)
    values = []
    for index, item in enumerate(items):
        node = decoding.nodes[item[0]] if isinstance(item, list) else None
        candidates = by_class.get(node.data[0]) if node is not None and node.kind == "object" else None
        values.append(decoding.decode(item, candidates.pop(0) if candidates else ABSENT, f"{path}[{index}]"))
    return values


def _present(decoding: Decoding, items: list[Item], values: list[object], path: str) -> list[object]:
    for index, (item, value) in enumerate(zip(items, values, strict=True)):
        if value is ABSENT:
            decoding.miss_item(item, f"{path}[{index}]")
    return [value for value in values if value is not ABSENT]


def decode_dict(decoding: Decoding, number: int, node: Node, current: Any, path: str) -> Any:
    """Return the dictionary of a node, the live one if there is one."""
    cls = CONTAINERS[node.kind]
    target: Any = current if decoding.claim(current, cls) else cls()
    decoding.made[number] = target
    fill_dict(decoding, cls, target, node, path)
    if cls in _WITH_ATTRIBUTES and (vars(target) or node.items):
        own = [pair for number, *_ in node.items for pair in decoding.nodes[number].named]
        decoding.fill_attributes(vars(target), own, path)
    return target


def _fill_in_time(decoding: Decoding, keys: list[Item], fill: Callable[[], None]) -> None:
    """Fill a container; later, if one of its keys is the address of an object that is not there yet: the object's own
    place must make it. Or if the hash of a key may come from an object that is still being filled.
    """
    if any(number not in decoding.made for number in _addressed(decoding, keys)) or _are_open(decoding, keys):
        decoding.later.append(fill)
    else:
        fill()


def _are_open(decoding: Decoding, keys: list[Item]) -> bool:
    """Return whether a key with a hash of its parts leads to an object that is still being filled."""

    def below(number: int) -> list[int]:
        node = decoding.nodes[number]
        return [each[0] for each in (*node.items, *itertools.chain(*node.named)) if is_reference(each)]

    first = [key[0] for key in keys if is_reference(key) and decoding.nodes[key[0]].kind in _OF_PARTS] if decoding.open else []
    return any(number in decoding.open for number in walk(first, below, lambda number: number))


def _addressed(decoding: Decoding, keys: Iterable[Item]) -> list[int]:
    """Return the numbers of the objects whose addresses are among some keys."""
    nodes = [decoding.nodes[key[0]] for key in keys if isinstance(key, list)]
    return [node.items[0][0] for node in nodes if node is not None and node.kind == "address"]


def fill_dict(decoding: Decoding, cls: Any, target: Any, node: Node, path: str) -> None:
    """Give a live dictionary, or an object of a derived class, the keys and values that it had."""
    _fill_in_time(decoding, [key for key, _value in node.named], lambda: _fill_dict(decoding, cls, target, node, path))


def _fill_dict(decoding: Decoding, cls: Any, target: Any, node: Node, path: str) -> None:
    base = cls if cls is collections.OrderedDict else dict
    old, before = dict(dict.items(target)), _keys(base, target)
    pairs = []
    for index, (key_item, value_item) in enumerate(node.named):
        key = decoding.decode(key_item, before[index] if index < len(before) else ABSENT, f"{path} key")
        if key is ABSENT:
            decoding.miss_item(key_item, f"{path} key")
            continue
        if type(key) is str and key.isidentifier() and not any(key is name for name in before[index : index + 1]):
            key = sys.intern(key)  # code, where most keys are from, has each text once: pickle notices
        value = decoding.decode(value_item, old.get(key, ABSENT), key_path(path, key))
        if value is ABSENT:  # without its key, so that a program that makes absent values does so
            decoding.miss_item(value_item, key_path(path, key))
            continue
        pairs.append((key, value))
    keys = [key for key, _ in pairs]
    if not (all(type(key) in _HASHED_ALIKE for key in keys) and _are_same(before, keys)):
        base.clear(target)
    for key, value in pairs:
        base.__setitem__(target, key, value)
    if cls is collections.defaultdict:
        target.default_factory = decoding.required(node.items[0], target.default_factory or ABSENT, f"{path}.default_factory")


def decode_held(decoding: Decoding, _number: int, node: Node, current: Any, path: str) -> Any:
    """Fill a framework's list, dict or set by its own methods, which also keep account of its content."""
    is_live = type_name(current) == node.data and decoding.hooks.is_container(current)
    old: Any = plain(current) if is_live else ABSENT
    before, values = list(old) if is_live else [], dict(old) if isinstance(old, dict) else {}
    new: Any = decoding.decode(node.items[0], old, path)  # which may fill `old` itself
    if not is_live or type(old) is not type(new):
        return new
    if isinstance(new, tuple):
        return current if list(map(id, before)) == list(map(id, new)) else type(current)(new)
    try:
        _refill(current, values, new)
    except (TypeError, ValueError) as error:  # Keras: a layer that has been built takes no further one
        decoding.miss(path, f"what it holds cannot be put back ({error})")
    return current


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
    except KeyError:  # an object derived from OrderedDict may have been changed past its own methods
        return [ABSENT]


def _are_same(old: list[Any], new: list[Any]) -> bool:
    """Return whether two lists hold the same objects or bits. Then the container is left alone: a loop may be in it."""
    return len(old) == len(new) and all(map(is_same, old, new))


def _refill(current: Any, values: dict[Any, Any], new: Any) -> None:
    """Give a framework's container the content of `new`, by its own methods; `values`: the content of a dict before.

    Items stay in place where they can: Keras would not let a layer of a model that is built go and come back.
    """
    if isinstance(new, set):
        if set(map(id, current)) != set(map(id, new)):
            current.clear()
            current.update(new)
        if list(map(id, current)) != list(map(id, new)):
            raise ValueError("the order of a set")
    elif isinstance(new, dict):
        # TensorFlow's dict takes removals by its other methods for changes behind its back, and is never saved again.
        remove = current.pop if "pop" in vars(type(current)) else current.__delitem__
        for key in [key for key in values if key not in new]:
            remove(key)
        there = [key for key in values if key in new]
        kept = next((n for n, (key, other) in enumerate(zip(there, new, strict=False)) if not is_same(key, other)), len(there))
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
            if not is_same(current[index], item):
                current[index] = item
        current.extend(new[len(current) :])


define("list", decode=decode_sequence, form=Form(), lists=True)
define("tuple", decode=decode_sequence, form=Form(), holds="others", lists=True)
define("deque", decode=decode_sequence, form=Form((int, NONE)), lists=True)
define("set", decode=decode_set, form=Form((str, list, NONE)), lists=True)
define("frozenset", decode=decode_set, form=Form((str, list, NONE)), holds="others", lists=True)
define("dict", "Counter", decode=decode_dict, form=Form())
define("OrderedDict", "defaultdict", decode=decode_dict, form=Form(most=1))
define("held", decode=decode_held, form=Form(str, 1, 1))
