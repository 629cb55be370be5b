"""Graph -> Python state, functions and classes: what they hold is put back; the loop's own are made again.

Code never comes from a graph: it is that of the program's own source, found by its digest.
"""

from __future__ import annotations

import enum
import functools
import sys
import types
from collections.abc import Mapping
from typing import Any, Final

from detrain.python.codec.decoding import Decoding
from detrain.python.codec.state_rules import WRAPPERS, class_attributes, class_methods, functions_in, has_contents
from detrain.python.inspect import function_source
from detrain.python.inspect.graph import Item, Node
from detrain.python.inspect.names import NAMES, class_name, find_method, find_type, is_own_class, is_user_class
from detrain.python.inspect.object_graph import ABSENT

_NO_SOURCE: Final = "the source of {0!r} has no function {1!r} that does what this one did"


def decode_static_with_state(decoding: Decoding, number: int, node: Node, current: Any, path: str) -> Any:
    """Put back what a function or class holds that stays as the process has it."""
    is_function = node.kind == "function"
    found: Any = decoding.keep_static(node.data[0] if is_function else node.data, node.there, current)
    if found is ABSENT:
        return ABSENT
    decoding.made[number] = found
    if is_function and function_source.holds_state(found):
        if len(node.data) > 1:  # it does something else than when the loop was entered
            _name_function(decoding, found, node.items[2], path)
            _set_code(decoding, found, node.data[1], path)
        _fill_function(decoding, found, node, 3, path)
    elif not is_function and isinstance(found, type) and is_own_class(found):
        old = class_attributes(found)
        new = decoding.attributes(node.named, old, path)
        members: Mapping[str, object] = getattr(found, "__members__", {}) if issubclass(found, enum.Enum) else {}
        for gone in old.keys() - new.keys() - members.keys() if is_user_class(found) else ():
            delattr(found, gone)
        for attribute, value in new.items():
            if old.get(attribute, ABSENT) is not value and attribute not in members:
                setattr(found, attribute, value)
        if node.items:  # an earlier version did not write methods
            _fill_methods(decoding, found, decoding.nodes[node.items[0][0]].named, node.items[1:], path)
    return found


def _fill_methods(decoding: Decoding, cls: type, pairs: list[Item], gone: list[Item], path: str) -> None:
    """Set the methods of a class. Those that were not written are those of when the loop was entered."""
    live = class_methods(cls)
    new = (decoding.baseline.methods(cls) or live) | decoding.attributes(pairs, live, path)
    for name in live.keys() - new.keys() | {str(decoding.decode(item, ABSENT, path)) for item in gone}:
        if name in vars(cls):
            delattr(cls, name)
        new.pop(name, None)
    for name, value in new.items():
        if live.get(name, ABSENT) is not value:
            setattr(cls, name, value)
            if isinstance(value, functools.cached_property) and value.attrname is None:
                value.__set_name__(cls, name)


def decode_wrapped(decoding: Decoding, node: Node, current: Any, path: str) -> Any:
    """Return a static method, property or the like: the live one if its functions are those of the node."""
    kind = WRAPPERS[node.data][0]
    old = functions_in(current) if type(current) is kind else ()
    new = decoding.items(node.items, list(old), path)
    return current if old and _is_alike(old, tuple(new)) else kind(*new)


def decode_cell(decoding: Decoding, number: int, node: Node, current: Any, path: str) -> Any:
    """Put back what a variable holds that functions share."""
    current = decoding.cells.get(number, current)
    if type(current) is not types.CellType:
        return ABSENT
    decoding.made[number] = decoding.cells[number] = current
    old = current.cell_contents if has_contents(current) else ABSENT
    if not node.items:
        if old is not ABSENT:
            del current.cell_contents
        return current
    value = decoding.decode(node.items[0], old, path)
    if value is ABSENT:
        decoding.miss_item(node.items[0], path)
    elif value is not old:
        current.cell_contents = value
    return current


def _name_function(decoding: Decoding, function: types.FunctionType, names: Item, path: str) -> None:
    for name, item in zip(NAMES, decoding.nodes[names[0]].items, strict=True):
        setattr(function, name, decoding.decode(item, ABSENT, f"{path}.{name}"))


def _set_code(decoding: Decoding, function: types.FunctionType, key: list[str], path: str) -> None:
    source = function_source.find(*key)
    if source is None or len(source.code.co_freevars) != len(function.__code__.co_freevars):
        decoding.miss(path, _NO_SOURCE.format(*key))
    else:
        function.__code__ = source.code


def decode_defined(decoding: Decoding, number: int, node: Node, path: str) -> object:
    """Make a function again that the loop had made: its code is that of the program's own source."""
    _defaults, _keywords, names, annotations, *inside = node.items
    source = function_source.find(*node.data)
    if source is None or len(source.code.co_freevars) != len(inside):
        decoding.miss(path, _NO_SOURCE.format(*node.data))
        return ABSENT
    cells = [decoding.cells.setdefault(item[0], types.CellType()) for item in inside]
    function = types.FunctionType(source.code, vars(sys.modules[node.data[0]]), closure=tuple(cells))
    decoding.made[number] = function
    _name_function(decoding, function, names, path)
    said = {name: decoding.decode(item, ABSENT, path) for name, item in decoding.nodes[annotations[0]].named}
    function.__annotations__ = {name: value for name, value in said.items() if value is not ABSENT}
    _fill_function(decoding, function, node, 4, path)
    return function


def _fill_function(decoding: Decoding, function: types.FunctionType, node: Node, first: int, path: str) -> None:
    """Put back what a function holds; `first`: which item of the node is that of its first variable."""
    defaults, keywords, cells = *node.items[:2], node.items[first:]
    live = function.__closure__ or ()
    if len(live) != len(cells):
        decoding.miss(path, "the function closes over other names than it did")
        return
    for name, cell, item in zip(function.__code__.co_freevars, live, cells, strict=True):
        if decoding.decode(item, cell, f"{path}.<{name}>") is not cell:
            decoding.miss(f"{path}.<{name}>", "another function has it for itself, which shared it")
    for name, item in (("__defaults__", defaults), ("__kwdefaults__", keywords)):
        old = getattr(function, name)
        new = decoding.required(item, old, f"{path}.{name}")
        if not _is_alike(old, new):
            setattr(function, name, new)
    kept = {name: item for name, item in vars(function).items() if name in decoding.hooks.on_functions}
    decoding.fill_attributes(vars(function), node.named, path)
    vars(function).update(kept)


def decode_bound(decoding: Decoding, node: Node, current: Any, path: str) -> Any:
    """A bound method or a partial call: made anew where what it is bound to is not what the live one is bound to."""
    if node.kind == "partial":
        name = str(node.data) if node.data is not None else class_name(functools.partial)
        cls: Any = type(current) if class_name(type(current)) == name else find_type(name)
        is_live = type(current) is cls
        old = (current.func, current.args, current.keywords) if is_live else (ABSENT,) * 3
        parts: list[Any] = [
            decoding.required(item, part, f"{path}.{n}")
            for item, part, n in zip(node.items, old, ("func", "args", "keywords"), strict=True)
        ]
        if is_live and all(map(_is_alike, old, parts)):
            return current
        is_known = isinstance(cls, type) and issubclass(cls, functools.partial) and callable(parts[0])
        return functools.partial.__new__(cls, parts[0], *parts[1], **parts[2]) if is_known else ABSENT
    is_live = type(current) in (types.MethodType, types.BuiltinMethodType)
    owner = decoding.decode(node.items[0], current.__self__ if is_live else ABSENT, f"{path}.__self__")
    if node.items[1] is None:
        method = find_method(owner, node.data)
    else:  # not the method that the class has under this name
        function = decoding.decode(node.items[1], getattr(current, "__func__", ABSENT), f"{path}.__func__")
        method = types.MethodType(function, owner) if isinstance(function, types.FunctionType) else ABSENT
    return current if is_live and current == method else method


def hold_cells(decoding: Decoding, cells: Mapping[str, types.CellType]) -> None:
    """Take the variables of the calls that go on, by where they are, and those of functions that are there, for those
    of the first run: what the loop has made may share them. Before anything is decoded."""
    for key, item in decoding.roots.items():
        kind, _, place = key.partition("|")
        if kind == "cells" and place in cells:
            decoding.cells[item[0]] = cells[place]
    for node in decoding.nodes:
        found = decoding.keep_static(node.data[0], node.there, ABSENT) if node.kind == "function" else ABSENT
        if isinstance(found, types.FunctionType):
            decoding.cells.update(zip([item[0] for item in node.items[3:]], found.__closure__ or (), strict=False))


def _is_alike(one: object, other: object) -> bool:
    """Return whether two values are one object, or hold one and the same objects."""
    if one is other:
        return True
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))
    return False
