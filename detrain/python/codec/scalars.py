"""Numbers and texts that cannot be items, members of enumerations, and nodes for absent objects."""

from __future__ import annotations

import struct
from typing import Any, Final

from detrain.python.codec.decoding import Decoding
from detrain.python.codec.encoding import Encoding
from detrain.python.codec.kind import NONE, Form, define
from detrain.python.inspect.enums import bits_of_flag, flag_of_bits, member_attributes, members_of
from detrain.python.inspect.names import find_enum, is_own_class
from detrain.python.inspect.object_graph import ABSENT, NANS, Node

_DOUBLE: Final = struct.Struct("<d")


def encode_nan(_encoding: Encoding, _number: int, value: float, _path: str) -> Node:
    """Encode a NaN, with its name if it is a known one: as a key it is found only by its identity."""
    return Node("nan", [value, next((name for name, known in NANS.items() if known is value), None)])


def encode_enum(encoding: Encoding, _number: int, value: Any, path: str) -> Node:
    cls = type(value)
    bits = encoding.encode(bits_of_flag(value), path)
    own = member_attributes(value) if is_own_class(cls) else {}
    return Node(
        "enum",
        [encoding.name_of(cls, path), value.name],
        [None if bits is None else encoding.encode(bits, path)],
        encoding.encode_pairs(own, path),
    )


def _decode_int(_decoding: Decoding, _number: int, node: Node, _current: Any, _path: str) -> int:
    return int(node.data, 16)


def _decode_str(_decoding: Decoding, _number: int, node: Node, _current: Any, _path: str) -> str:
    return str(node.data, "utf-8", "surrogatepass")


def _decode_nan(_decoding: Decoding, _number: int, node: Node, current: Any, _path: str) -> float:
    value, name = node.data
    is_live = type(current) is float and _DOUBLE.pack(current) == _DOUBLE.pack(value)
    found: float = NANS.get(name, current if is_live else value)
    return found


def _decode_address(decoding: Decoding, _number: int, node: Node, _current: Any, path: str) -> int:
    return id(decoding.decode(node.items[0], ABSENT, path))


def _decode_enum(decoding: Decoding, _number: int, node: Node, current: Any, path: str) -> Any:
    (described, name), (bits,) = node.data, node.items
    cls = find_enum(described.partition(" @ ")[0], current) or decoding.class_named(described, ABSENT)
    member = None
    if cls is not None:
        member = members_of(cls).get(name) if bits is None else flag_of_bits(cls, decoding.decode(bits, ABSENT, path))
    if member is None:
        decoding.miss(path, f"there is no {name!r} in the enumeration {described!r}")
        return current
    own = member_attributes(member)
    for attribute, value in decoding.attributes(node.named, own, path).items() if node.named else ():
        if own.get(attribute, ABSENT) is not value:
            setattr(member, attribute, value)
    return member


define("int", decode=_decode_int, form=Form(str, 0, 0), holds="nothing")
define("str", decode=_decode_str, form=Form(bytes, 0, 0), holds="nothing")
define("nan", decode=_decode_nan, form=Form([float, (str, NONE)], 0, 0), holds="nothing")
define("enum", decode=_decode_enum, form=Form([str, (str, NONE)], 1, 1), holds="others")
define("absent", decode=lambda *_: ABSENT, form=Form(most=0), holds="nothing")
define("constant", decode=lambda *_: ABSENT, form=Form(most=0), holds="nothing")
define("address", decode=_decode_address, form=Form(least=1, most=1, first="node"))
