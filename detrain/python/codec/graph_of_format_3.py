"""Nodes of graphs up to format 3, where each kind had another form, as nodes of format 4."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_NAMES = {
    "complex": "builtins.complex",
    "bytearray": "builtins.bytearray",
    "range": "builtins.range",
    "slice": "builtins.slice",
    "fraction": "fractions.Fraction",
    "timedelta": "datetime.timedelta",
    "timezone": "datetime.timezone",
    "zoneinfo": "zoneinfo.ZoneInfo",
    "datetime": "datetime.datetime",
    "time": "datetime.time",
    "npstr": "numpy.str_",
    "npbytes": "numpy.bytes_",
    "dtype": "numpy.dtype",
}
"""Kinds that are made from parts only, by their earlier names."""
_TEXTS = {
    "date": "datetime.date",
    "Decimal": "decimal.Decimal",
    "UUID": "uuid.UUID",
    **{name: f"pathlib.{name}" for name in ("PosixPath", "PurePosixPath", "PureWindowsPath")},
}


def node_of_format_3(node: list[Any], apart: Callable[[list[Any]], Any]) -> list[Any]:
    """Return a node in the form of format 4. `apart` makes an item of a node that lay inside of this one."""
    kind, *rest = node
    if kind in _NAMES:
        return [_NAMES[kind], None, rest]
    form = _FORMS.get(kind)
    return [kind, *form(rest, apart)] if form is not None else _others(kind, rest)


def unfold(node: list[Any], nodes: list[list[Any]]) -> list[Any]:
    """Return a node with the attributes that a `SimpleNamespace` had in a slot, as a dictionary of their own."""
    if node[0] != "object":
        return node
    folded = [pair for pair in node[3] if pair[0] == "__dict__"]
    own = [pair for _name, (number,) in folded for pair in nodes[number][1]]
    return [*node[:2], [*(node[2] or ()), *own], [pair for pair in node[3] if pair not in folded], *node[4:]] if folded else node


def _others(kind: str, rest: list[Any]) -> list[Any]:
    if kind == "made":
        return [rest[0], None, rest[1]]
    if kind == "text":
        return [_TEXTS[rest[0]], None, [rest[1]]]
    return [kind, rest[0] if rest else None]


def _dictionary(rest: list[Any], _apart: Callable[[list[Any]], Any]) -> list[Any]:
    return [None, [], rest[0]]


def _object(rest: list[Any], apart: Callable[[list[Any]], Any]) -> list[Any]:
    cls, attributes, slots, content, *address = rest
    data = [cls, len(slots), attributes is None]
    return [data, [] if content is None else [apart(content)], [*(attributes or ()), *slots], *(each or "" for each in address)]


def _derived(rest: list[Any], apart: Callable[[list[Any]], Any]) -> list[Any]:
    cls, address, pairs, *more = rest
    stream, *place = more or [None]
    return [[cls, *place], [] if stream is None else [apart(stream)], pairs, address]


def _function(rest: list[Any], apart: Callable[[list[Any]], Any]) -> list[Any]:
    name, address, cells, defaults, keywords, pairs, *other = rest
    names = apart(["tuple", other[0][3]]) if other else None
    return [[name, *[each[:3] for each in other]], [defaults, keywords, names, *cells], pairs, address]


def _defined(rest: list[Any], apart: Callable[[list[Any]], Any]) -> list[Any]:
    module, qualified, digest, names, annotations, cells, defaults, keywords, pairs = rest
    made = [apart(["tuple", names]), apart(["dict", annotations, None])]
    return [[module, qualified, digest], [defaults, keywords, *made, *cells], pairs]


def _class(rest: list[Any], apart: Callable[[list[Any]], Any]) -> list[Any]:
    name, address, pairs, *methods = rest
    items = [] if not methods else [apart(["dict", methods[0], None]), *methods[1]]
    return [name, items, pairs, address]


def _ndarray(rest: list[Any], _apart: Callable[[list[Any]], Any]) -> list[Any]:
    array, axes, is_unchanged, is_writeable, *form = rest
    return [[axes, is_writeable, *form], [[array]], [], is_unchanged]


def _shared(rest: list[Any], _apart: Callable[[list[Any]], Any]) -> list[Any]:
    owner, address, memory, form, parts, pairs, *base = rest
    return [[owner, form], [memory, base[0] if base else None, *parts], pairs, address]


def _memory(rest: list[Any], _apart: Callable[[list[Any]], Any]) -> list[Any]:
    name, digest, extent, address, *inside = rest
    outer, place = (inside[0], inside[1:]) if inside else (None, [])
    return [[*extent, digest, *place], [None if name is None else [name], outer], [], address]


_Form = Callable[[list[Any], Callable[[list[Any]], Any]], list[Any]]
_FORMS: dict[str, _Form] = {
    **{kind: lambda rest, _: [None, rest[0]] for kind in ("list", "tuple")},
    **{kind: lambda rest, _: [rest[1], rest[0]] for kind in ("deque", "set", "frozenset")},
    **dict.fromkeys(("dict", "Counter"), _dictionary),
    "OrderedDict": lambda rest, apart: [None, [apart(["dict", rest[2], None])] if len(rest) > 2 else [], rest[0]],
    "defaultdict": lambda rest, _: [None, [rest[1]], rest[0]],
    "nan": lambda rest, _: [rest],
    "enum": lambda rest, _: [rest[:2], [rest[2]], rest[3] if len(rest) > 3 else []],
    "object": _object,
    "namedtuple": lambda rest, _: [rest[0], rest[1]],
    "derived": _derived,
    "held": lambda rest, _: [rest[0], [rest[1]]],
    "function": _function,
    "defined": _defined,
    "cell": lambda rest, _: [None, rest],
    "class": _class,
    "wrapped": lambda rest, _: [rest[0], rest[1]],
    "method": lambda rest, _: [rest[0], rest[1:]],
    "partial": lambda rest, _: [rest[3] if len(rest) > 3 else None, rest[:3]],
    **dict.fromkeys(("ndarray", "tensor"), _ndarray),
    "texts": lambda rest, _: [rest],
    "same": lambda rest, _: [rest],
    "annotated": lambda rest, apart: [None, [apart(rest[0])], rest[1]],
    "shared": _shared,
    "memory": _memory,
    "view": lambda rest, _: [rest[1:], [rest[0]]],
    "objects": lambda rest, _: [rest[0], rest[1]],
    "npscalar": lambda rest, _: [None, [[rest[0]]]],
    "random": lambda rest, _: [rest[1], [[rest[0]]]],
    "RandomState": lambda rest, _: [rest[1], [rest[0]]],
    "Generator": lambda rest, _: [None, [rest[0]]],
    "bits": lambda rest, _: [rest[0], rest[1:]],
    "seeds": lambda rest, _: [None, rest],
    "variable": lambda rest, _: [rest],
    "reduced": lambda rest, _: [rest[0], [rest[2]], [], rest[1]],
    "generator": lambda rest, _: [[rest[0], rest[2]], [], [], rest[1]],
    "loader": lambda rest, _: [[rest[0], rest[2]], [rest[3]], [], rest[1]],
    "address": lambda rest, _: [None, [rest[0]]],
    "inside": lambda rest, _: [rest[1::2], [rest[2]], [], rest[0]],
    "opaque": lambda rest, _: [[rest[0], *rest[2:]], [], [], rest[1]],
    "static": lambda rest, _: [rest[0], [], [], rest[1]],
}
