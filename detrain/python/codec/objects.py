"""Objects of the program, objects of libraries that are data, and objects of classes that derive from a library's. Also
the state that libraries' classes report of their objects: an object is named if the graph lacks some of that state.
"""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np

from detrain.base.plain_types import CONTAINERS
from detrain.python.codec.containers import encode_container, fill_dict, fill_sequence
from detrain.python.codec.decoding import Decoding
from detrain.python.codec.encoding import Encoding, Known
from detrain.python.codec.kind import Form, define
from detrain.python.codec.recipes import has_parts
from detrain.python.codec.state_rules import class_attributes, class_methods, read_slot
from detrain.python.codec.streams import encode_stream, set_stream
from detrain.python.inspect.held import walk
from detrain.python.inspect.library_globals import give_to_library, held_in_library, name_in_library
from detrain.python.inspect.names import (
    VALUES,
    class_name,
    container_base,
    find_type,
    is_findable,
    is_own_class,
    named_fields,
    own_attributes,
    slots_of,
    stream_base,
    type_name,
    value_base,
)
from detrain.python.inspect.object_graph import ABSENT, WITH_VARIABLES, Item, Node, is_reference
from detrain.python.inspect.output_only import is_output_only
from detrain.python.inspect.ownership import find_data_class, makes, makes_plainly, new_object, of_last_use
from detrain.python.inspect.progress import position
from detrain.python.inspect.reductions import key, numbers_and_texts, streams_kept, tells, told
from detrain.python.inspect.stored_attributes import program_names


def _is_made_by_name(cls: type) -> bool:
    """Return whether a new object of a library's class can be made, and is whole then."""
    is_whole = (makes_plainly(cls) and not of_last_use(cls)) or makes(cls) is not None
    return is_whole and (find_data_class(class_name(cls), None) is cls or named_fields(cls) is not None)


def encode_user_object(encoding: Encoding, number: int, value: Any, path: str) -> Node:
    node = _encode_whole(encoding, number, value, path)
    is_mark = not node.items and not node.named and node.kind == "object" and not encoding.known[type(value)].is_own
    return encoding.named_by_library(value, node) if is_mark else node


def _encode_whole(encoding: Encoding, number: int, value: Any, path: str) -> Node:
    """Encode an object with its content. If one only shows, and the loop has made it, the loss of a part loses all of
    it: its methods would not find the part.
    """
    lost = len(encoding.lost)
    node = _encode_open_object(encoding, number, value, path)
    if encoding.collects and is_output_only(value):
        encoding.baseline.add(value)
    elif len(encoding.lost) > lost and not encoding.finds_by_place and is_output_only(value) and not encoding.baseline.has(value):
        del encoding.lost[lost:]
        return encoding.lose(number, path, f"{type_name(value)}: the loop has made it")
    return node


def _encode_open_object(encoding: Encoding, number: int, value: Any, path: str) -> Node:
    cls = type(value)
    known = encoding.known.get(cls)
    if known is None:
        note_classes(encoding, cls)
        known = encoding.known[cls] = Known(cls, encoding.name_of(cls, path) if is_findable(cls) else None)
    name = known.name or encoding.name_of(cls, path)
    if known.is_tuple:
        return Node("namedtuple", name, encoding.encode_all(tuple.__iter__(value), path))
    if not known.of_library:
        return _encode_parts_of_object(encoding, number, value, path, known, name)
    encoding.packages.append(known.of_library)
    node = _encode_parts_of_object(encoding, number, value, path, known, name)
    encoding.packages.pop()
    return node


def _encode_parts_of_object(encoding: Encoding, number: int, value: Any, path: str, known: Known, name: str) -> Node:
    if value is encoding.drawn_from and not encoding.is_drawn_from:
        encoding.is_drawn_from = True
        node = _encode_parts_of_object(encoding, number, value, path, known, name)
        encoding.is_drawn_from = False
        return node
    own, gone, base = own_attributes(value), known.gone, known.base
    lasting = {name: item for name, item in (own or {}).items() if name not in gone} if gone else own or {}
    attributes = [] if own is value else encoding.encode_attributes(value, lasting, path)
    if base is None:
        content = []
    elif base is set:
        content = [encoding.add_node(None, encoding.encode_set(number, value, path))]
    else:
        content = [encoding.add_node(None, encode_container(encoding, number, value, path, cls=base))]
    if not known.slots:
        return Node("object", [name, 0, own is value], content, attributes)
    slots = {each: item for each, slot in known.slots.items() if (item := read_slot(slot, value)) is not None}
    in_slots = encoding.encode_pairs({n: i[0] for n, i in slots.items()}, path)
    return Node("object", [name, len(in_slots), own is value], content, [*attributes, *in_slots])


def encode_data(encoding: Encoding, number: int, value: Any, path: str) -> Node:
    """Encode a library's object that is data, as one of the program's, but with its address: other objects of the
    library may hold it, too."""
    cls, address = type(value), encoding.address_of(value)
    if encoding.collects:
        encoding.encode_opaque(number, value, path, is_captured=True)
    elif encoding.rules.is_large(value) and address is not None and encoding.baseline.is_at(value, position(value)):
        return Node("opaque", [type_name(value)], there=address)
    elif address is None and not encoding.finds_by_place and not _is_made_by_name(cls) and name_in_library(value) is None:
        why = WITH_VARIABLES if encoding.hooks.holds_variables(value) else "the loop has made it"
        return encoding.lose(number, path, f"{type_name(value)}: {why}")
    note_asked(encoding, number, value, path)
    node = _encode_whole(encoding, number, value, path)
    named = node if address is not None else encoding.named_by_library(value, node)
    if named is node:
        node.there = address or ""  # without an address: not the live object at its place
    return named


def encode_value(encoding: Encoding, _number: int, value: Any, path: str) -> Node:
    """Encode an object whose class derives from one that makes objects from parts: the parts, and its attributes."""
    cls = type(value)
    if encoding.collects:
        encoding.baseline.add(value, "" if encoding.is_unordered else path)
    note_classes(encoding, cls)
    base = value_base(cls)
    own = {name: item[0] for name, slot in _slots_beside(cls, base).items() if (item := read_slot(slot, value)) is not None}
    pairs = encoding.encode_attributes(value, {**(own_attributes(value) or {}), **own}, path)
    if isinstance(value, BaseException) and (trace := value.__traceback__) is not None and not encoding.collects:
        encoding.name_loss(f"{path}.__traceback__", trace, type_name(trace))
    name = encoding.name_of(cls, path)
    parts = [encoding.encode(part, path) for part in parts_of(base, value)]
    return Node("value", [name, len(own)], parts, pairs, encoding.address_of(value))


def decode_value(decoding: Decoding, number: int, node: Node, current: Any, path: str) -> Any:
    """Return the value with its attributes, the live one if that is equal; no code of its class is run."""
    name, in_slots = node.data
    live = _to_fill(decoding, node.there, current)
    known = (decoding.class_named(name, live), find_type(name), type(live))
    cls: Any = next((each for each in known if each is not None and class_name(each) == name.partition(" @ ")[0]), None)
    base = None if cls is None else value_base(cls)
    if base is None:
        decoding.miss(path, f"class {name!r} is not there")
        return current
    old = [*parts_of(base, live)] if type(live) is cls else []
    parts = decoding.items(node.items, old, path)
    is_live = bool(old) and _are_the_same(old, parts) and decoding.claim(live, cls)
    try:
        target = live if is_live else make_from(base, cls, parts)
    except (ArithmeticError, AttributeError, TypeError, ValueError):
        target = ABSENT
    if type(target) is not cls:
        decoding.miss(path, f"no {class_name(cls)} is made from these parts")
        return current
    decoding.made[number] = target
    split = len(node.named) - in_slots
    own = own_attributes(target)
    if own is not None:
        decoding.fill_attributes(own, node.named[:split], path)
    _fill_slots(decoding, target, _slots_beside(cls, base), node.named[split:], path)
    return target


def parts_of(base: Any, value: Any) -> tuple[Any, ...]:
    """Return the parts that `base` itself reports of a value; a class that derives from `base` is not asked."""
    if base is np.ndarray:
        return (np.ndarray.view(value, np.ndarray),)
    said = vars(base)
    if "__getnewargs__" in said:
        return said["__getnewargs__"](value)  # type: ignore[no-any-return]
    parts = (said["__reduce_ex__"](value, 4) if "__reduce_ex__" in said else said["__reduce__"](value))[1]
    if issubclass(base, BaseException):
        return parts, value.__cause__, value.__context__, value.__suppress_context__
    return parts  # type: ignore[no-any-return]


def _are_the_same(one: list[Any], other: list[Any]) -> bool:
    """Return whether parts are those of a live object; an array's part is a view of its memory."""
    if type(one[0]) is type(other[0]) is np.ndarray:
        return bool(one[0].__array_interface__ == other[0].__array_interface__)
    return has_parts(one, other)


def make_from(base: Any, cls: Any, parts: list[Any]) -> Any:
    """Return an object of a class that derives from `base`, made by the code of `base` only; ABSENT for parts of other
    types. Raises ArithmeticError, AttributeError, TypeError or ValueError for parts of which no object can be made."""
    if base is np.ndarray:
        return np.ndarray.view(parts[0], cls) if type(parts[0]) is np.ndarray else ABSENT
    if issubclass(base, BaseException):
        arguments, cause, context, is_suppressed = parts
        if type(arguments) is not tuple:
            return ABSENT
        made = base.__new__(cls, *arguments)
        base.__init__(made, *arguments)
        made.__cause__, made.__context__, made.__suppress_context__ = cause, context, is_suppressed
        return made
    is_plain = all(isinstance(each, datetime.tzinfo) or type(each) in VALUES for each in parts)
    return base.__new__(cls, *parts) if is_plain else ABSENT


def _slots_beside(cls: type, base: type) -> dict[str, Any]:
    return {name: slot for name, slot in slots_of(cls).items() if name not in slots_of(base)}


def encode_derived(encoding: Encoding, number: int, value: Any, path: str) -> Node:
    """Encode an object whose class derives from a library's: it stays as it is, and the attributes that the program's
    methods store there are state."""
    stream = stream_base(type(value))
    node = encoding.encode_opaque(number, value, path, is_captured=stream is not None)
    note_classes(encoding, type(value))
    if (not encoding.collects and not encoding.baseline.has(value)) or node.kind == "loader":
        return node
    if stream is None:  # a stream's whole state is in a node of its own
        note_asked(encoding, number, value, path)
    stored = encoding.rules.attributes(value)
    if encoding.collects:
        encoding.baseline.add_names(value, stored)
    gone = dict.fromkeys(sorted(encoding.baseline.names(value) - (own_attributes(value) or {}).keys()), ABSENT)
    state = encoding.state_of(value, stored, path, is_own=is_own_class(type(value))) | gone
    pairs = encoding.encode_attributes(value, state, path)
    items = [] if stream is None else [encoding.add_node(None, encode_stream(encoding, stream, value, path))]
    return Node("derived", node.data, items, pairs, node.there)


def note_classes(encoding: Encoding, cls: type) -> None:
    """Encode the attributes and changed methods of an object's classes, as roots of the graph."""
    for base in cls.__mro__:
        if base not in encoding.noted and is_own_class(base):
            encoding.noted.add(base)
            if encoding.baseline.methods(base) or class_attributes(base) or class_methods(base):
                # made in a function, perhaps more than once
                turn = "" if is_findable(base) else f" #{len(encoding.noted)}"
                encoding.more_roots[f"class|{class_name(base)}{turn}"] = encoding.encode(base, base.__qualname__)


def decode_object(decoding: Decoding, number: int, node: Node, current: Any, path: str) -> Any:
    name, in_slots, is_own_dict = node.data
    attributes, slots = node.named[: len(node.named) - in_slots], node.named[len(node.named) - in_slots :]
    live = _to_fill(decoding, node.there, current)
    cls = decoding.class_named(name, live)
    if cls is None:
        decoding.miss(path, f"class {name!r} is not there")
        return current
    target: Any = live if decoding.claim(live, cls) else new_object(cls)
    decoding.made[number] = target
    decoding.open.add(number)
    for item in node.items:
        content = decoding.nodes[item[0]]
        base: Any = container_base(cls)
        if base is set:
            decoding.fill_set(target, content.items, content.data, path)
        elif issubclass(base, dict):
            fill_dict(decoding, base, target, content, path)
        else:
            fill_sequence(decoding, target, content, path)
    own = own_attributes(target)
    if is_own_dict:
        object.__setattr__(target, "__dict__", target)
    elif own is not None:
        kept = {name: own[name] for name in of_last_use(cls) if name in own}
        decoding.fill_attributes(own, attributes, path)
        own.update(kept)
    if slots or slots_of(cls):
        _fill_slots(decoding, target, slots_of(cls), slots, path)
    decoding.open.discard(number)
    return target


def _to_fill(decoding: Decoding, address: str | None, current: object) -> object:
    """Return the object that a node fills: for an object of the program the one at its place, for a library's the one
    at its address."""
    if address is None or decoding.finds_by_place:
        return current
    found = decoding.baseline.at(address)
    return current if found is ABSENT and address else found


def _fill_slots(decoding: Decoding, target: object, slots: Mapping[str, Any], pairs: list[Item], path: str) -> None:
    old = {name: found[0] for name, slot in slots.items() if (found := read_slot(slot, target)) is not None}
    new = decoding.attributes(pairs, old, path)
    for name in slots.keys() & (old.keys() | new.keys()):
        try:
            if name not in new:
                slots[name].__delete__(target)
            elif old.get(name, ABSENT) is not new[name]:
                slots[name].__set__(target, new[name])
        except AttributeError:  # a class of C: the slot has the value that it was made with
            decoding.miss(f"{path}.{name}")


def decode_held_by_library(decoding: Decoding, number: int, node: Node, current: object, path: str) -> object:
    """Fill the only object that a library holds under a name. If the library has none yet, give it one."""
    found = held_in_library(node.data)
    if found is not ABSENT:
        decoding.made[number] = found
    value = decoding.decode(node.items[0], current if found is ABSENT else found, path)
    if value is not found and not (found is ABSENT and give_to_library(node.data, value)):
        decoding.miss(path, f"no library holds {node.data} here")
    return value


def decode_derived(decoding: Decoding, number: int, node: Node, current: Any, path: str) -> Any:
    """Set the program's attributes on an object that stays as the process has it."""
    (name, *place), pairs = node.data, node.named
    found: Any = decoding.keep(name, node.there, current, *place)
    for item in node.items if found is not ABSENT and stream_base(type(found)) is not None else ():
        set_stream(decoding, decoding.nodes[item[0]], found, path)
    own = None if found is ABSENT else own_attributes(found)
    if own is None:
        return found
    if decoding.hooks.is_holder(found):
        names = {pair[0] for pair in pairs} if is_own_class(type(found)) else set(own)
    elif is_own_class(type(found)):
        names = set(program_names(type(found), decoding.hooks.stored_outside, (pair[0] for pair in pairs)))
    else:
        names = set(decoding.hooks.stored_outside)
    decoding.made[number] = found
    if not decoding.hooks.is_holder(found) and not names.issuperset(pair[0] for pair in pairs):
        decoding.miss(path, f"{type_name(found)} held only data, and holds more here")
    deleted = {pair[0] for pair in pairs if isinstance(pair[1], list) and decoding.nodes[pair[1][0]].kind == "absent"}
    # A Keras layer that is not built will make its variables in `build`.
    is_unbuilt, kept = own.get("built", True) is False and "built" not in names, names - deleted
    pairs = [pair for pair in pairs if pair[0] in kept and not (is_unbuilt and _is_to_come(decoding, pair[1]))]
    new = decoding.attributes(pairs, dict(own), path)
    own.update({key: value for key, value in new.items() if own.get(key, ABSENT) is not value})
    for gone in deleted & own.keys():
        delattr(found, gone)  # frameworks keep account of this
    return found


def _is_to_come(decoding: Decoding, item: Item) -> bool:
    """Return whether an item is a variable that is still to be built, or a container with one inside."""

    def below(number: int) -> list[int]:
        node = decoding.nodes[number]
        is_open = node.kind == "held" or node.kind in CONTAINERS
        held = [*node.items, *(value for _key, value in node.named)] if is_open else []
        return [each[0] for each in held if is_reference(each)]

    found = [decoding.nodes[number] for number in walk([item[0]] if is_reference(item) else [], below, lambda number: number)]
    variables = [node for node in found if node.kind == "variable" and not node.data[1]]
    return any(decoding.hooks.find_variable(node.data[0], False) is None for node in variables)


def _decode_namedtuple(decoding: Decoding, _number: int, node: Node, current: Any, path: str) -> Any:
    cls: Any = decoding.class_named(node.data, current)
    values = decoding.items(node.items, list(current) if type(current) is cls else [], path)
    if cls is None or not issubclass(cls, tuple):
        decoding.miss(path, f"class {node.data!r} is not there")
        return current
    return decoding.tuple_of(cls, values, current)


def note_told(encoding: Encoding) -> None:
    """Compare the graph with the state that libraries' classes report of their objects. An object is named if the graph
    lacks other parts of it than when the loop was entered."""
    with streams_kept() if encoding.asked else nullcontext():
        _ask(encoding)


def note_asked(encoding: Encoding, number: int, value: object, path: str) -> None:
    if tells(type(value)) and not encoding.finds_by_place:
        encoding.asked.append((number, value, path))


def _ask(encoding: Encoding) -> None:
    for number, value, path in encoding.asked:
        missed = _not_below(encoding, number, _said(encoding, value))
        if missed and not encoding.baseline.has(value) and makes_plainly(type(value)):
            missed -= _said(encoding, new_object(type(value)))  # a version, say
        if encoding.collects:
            encoding.baseline.add_told(value, missed)
        elif missed != encoding.baseline.told(value) and number not in encoding.lost_numbers:  # it is named already
            encoding.lose(number, path, f"{type_name(value)}: its class says of it what nothing shows")


def _said(encoding: Encoding, value: object) -> set[object]:
    said = told(value)
    return set() if said is None else numbers_and_texts(said, lambda item: id(item) in encoding.numbers)


def _not_below(encoding: Encoding, number: int, wanted: set[object]) -> set[object]:
    """Return those of some numbers and texts that are neither in a node nor in the nodes that it leads to."""
    items = walk([[number]], lambda item: _items_below(encoding.nodes, item), lambda item: item[0] if is_reference(item) else None)
    for item in items:
        if not wanted:
            break
        node = encoding.nodes[item[0]] if is_reference(item) else None
        wanted -= {key(item)} if node is None else set(map(key, _flat(node.data)))
    return wanted


def _items_below(nodes: list[Node | None], item: Item) -> list[Item]:
    node = nodes[item[0]] if is_reference(item) else None
    return [] if node is None else [*node.items, *itertools.chain(*node.named)]


def _flat(data: Any) -> Iterator[object]:
    """Yield the scalars of nested lists."""
    if isinstance(data, list | tuple):
        for each in data:
            yield from _flat(each)
    else:
        yield data


define("object", decode=decode_object, form=Form([str, int, bool], 0, 1, "node"))
define("value", decode=decode_value, form=Form([str, int], 1))
define("namedtuple", decode=_decode_namedtuple, form=Form(str), holds="others", lists=True)
define("library", decode=decode_held_by_library, form=Form(str, 1, 1, "node"))
define("derived", decode=lambda decoding, *how: decoding.decode_derived(*how), form=Form([str], 0, 1, "node"))
