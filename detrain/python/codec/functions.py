"""Functions and classes, and objects made of them: methods, partial calls, cells.

A graph has the names of functions and classes, and the values that they hold, which are state. A function that the loop
has made is written as the digest of its source, and made again from the program's source: a graph holds no code.
"""

from __future__ import annotations

import functools
import importlib
import sys
import types
from collections.abc import Mapping
from typing import Any, Final

from detrain.base.losses import HARMLESS
from detrain.python.codec.arrays import annotated
from detrain.python.codec.decoding import Decoding
from detrain.python.codec.encoding import Encoding
from detrain.python.codec.kind import NONE, Form, define
from detrain.python.codec.state_rules import WRAPPERS, class_attributes, class_methods, functions_in, has_contents, may_hold_state
from detrain.python.codec.strangers import encode_stranger, note_inside
from detrain.python.inspect import function_source
from detrain.python.inspect.enums import members_of
from detrain.python.inspect.fingerprint import closes_over
from detrain.python.inspect.frames import has_user_code
from detrain.python.inspect.function_source import holds_state
from detrain.python.inspect.names import (
    NAMES,
    STATIC,
    class_name,
    computes,
    find_method,
    find_static,
    find_type,
    is_bound,
    is_findable,
    is_made_module,
    is_own_class,
    is_user_class,
    names_of_function,
    static_name,
    type_name,
)
from detrain.python.inspect.object_graph import ABSENT, Item, Node, shown
from detrain.python.inspect.stored_attributes import program_names

_NO_SOURCE: Final = "the source of {0!r} has no function {1!r} that does what this one did"


def encode_callable(encoding: Encoding, number: int, value: Any, path: str) -> Node:
    """Encode a function, a method or a module."""
    if computes(value):
        return Node("static", static_name(value))
    if type(value) is types.FunctionType:
        if (node := encoding.encode_parts(value, path)) is not None:
            return node
        if holds_state(value) or encoding.baseline.is_other(value):
            return encode_function(encoding, number, value, path)
    if is_bound(value):
        owner = encoding.encode(value.__self__, f"{path}.__self__")
        is_named = type(value) is not types.MethodType or find_method(value.__self__, value.__name__) == value
        function = None if is_named else encoding.encode(value.__func__, f"{path}.__func__")
        return Node("method", value.__name__, [owner, function])
    is_static = issubclass(type(value), STATIC) and not is_made_module(value)
    return encode_static(encoding, number, value, path) if is_static else encode_stranger(encoding, number, value, path)


def encode_type(encoding: Encoding, number: int, value: Any, path: str) -> Node:
    return encode_class(encoding, number, value, path) if is_own_class(value) else encode_static(encoding, number, value, path)


def encode_wrapped(encoding: Encoding, _number: int, value: Any, path: str) -> Node:
    return Node("wrapped", type(value).__name__, encoding.encode_all(functions_in(value), path))


def encode_cell(encoding: Encoding, _number: int, value: types.CellType, path: str) -> Node:
    return Node("cell", None, [encoding.encode(value.cell_contents, path)] if has_contents(value) else [])


def encode_partial(encoding: Encoding, _number: int, value: Any, path: str) -> Node:
    cls = type(value)
    parts = [encoding.encode(getattr(value, name), f"{path}.{name}") for name in ("func", "args", "keywords")]
    return annotated(encoding, Node("partial", None if cls is functools.partial else class_name(cls), parts), value, path)


def encode_static(encoding: Encoding, number: int, value: Any, path: str) -> Node:
    is_made = type(value) is types.FunctionType and encoding.is_of_loop(value) and not is_findable(value)
    if is_made and function_source.source(value) is not None:  # a hook, say, that a method of a library has made
        return encode_function(encoding, number, value, path)
    node = _described(encoding, number, value, path)
    if closes_over(value):
        note_inside(encoding, value, path)
    return node


def _described(encoding: Encoding, number: int, value: Any, path: str) -> Node:
    return Node("static", static_name(value), there=_address(encoding, number, value, path))


def encode_function(encoding: Encoding, number: int, value: Any, path: str) -> Node:
    """Encode a function. It stays as it is, or is made again from the program's source if the loop has made it; the
    values in its closure, its defaults and its attributes are state."""
    cells = dict(zip(value.__code__.co_freevars, value.__closure__ or (), strict=True))
    is_new, is_other = encoding.is_of_loop(value), encoding.baseline.is_other(value)
    if encoding.collects:
        encoding.baseline.add_function(value)
    source = function_source.source(value) if is_new or is_other else None
    names = encoding.encode(tuple(names_of_function(value)), path) if is_new or is_other else None
    holds = [encoding.encode(getattr(value, each), f"{path}.{each}") for each in ("__defaults__", "__kwdefaults__")]
    inside = [encoding.encode(cell, f"{path}.<{name}>") for name, cell in cells.items()]
    own = encoding.encode_pairs({name: item for name, item in vars(value).items() if name not in encoding.hooks.on_functions}, path)
    if is_new and source is not None and _are_known(encoding, cells, source):
        return Node("defined", list(source.key), [*holds, names, _encode_annotations(encoding, value, path), *inside], own)
    if is_other and (source is None or not has_user_code(value)):
        return encoding.lose(number, path, "function: its code is not in the source")
    key = [list(source.key)] if is_other and source is not None else []
    named = [*holds, names if key else None, *inside]
    return Node("function", [static_name(value), *key], named, own, _address(encoding, number, value, path))


def _are_known(encoding: Encoding, cells: Mapping[str, types.CellType], source: function_source.FunctionSource) -> bool:
    """Return whether all that share the variables of a function that the loop has made are captured with it."""
    if encoding.cells is None:
        return not cells
    of_frames = {id(cell) for cell in encoding.cells.values()}
    return not any(function_source.may_go_on(source, name) for name, cell in cells.items() if id(cell) not in of_frames)


def _annotations(value: types.FunctionType) -> dict[str, Any]:
    """Return a function's annotations. From Python 3.14 on they may be names that are not defined."""
    if sys.version_info < (3, 14):
        return dict(value.__annotations__)
    try:
        return dict(importlib.import_module("annotationlib").get_annotations(value, format=3))  # Format.FORWARDREF
    except Exception:  # they are code of the program's
        return {}


def _encode_annotations(encoding: Encoding, value: types.FunctionType, path: str) -> Item:
    """Encode the annotations of a function: texts, and classes by name. Other annotations are named as losses."""
    pairs: list[Item] = []
    for name, item in _annotations(value).items():
        if item is None or type(item) is str:
            pairs.append([name, encoding.encode(item, path)])
        elif isinstance(item, type) and find_type(class_name(item)) is item:
            pairs.append([name, encoding.add_node(item, Node("type", class_name(item)))])
        else:
            encoding.lost.append(f"{shown(f'{path}.__annotations__[{name!r}]')} ({type_name(item)}{HARMLESS})")
    return encoding.add_node(None, Node("dict", named=pairs))


def encode_class(encoding: Encoding, number: int, value: type, path: str) -> Node:
    """Encode a class. It stays as it is; its attributes that are not methods are state, and so are the values that
    methods hold.

    Methods that hold no values are written only if they are not those from when the loop was entered.
    """
    if encoding.collects:
        for name, item in list(vars(value).items()):
            # a namedtuple, named without its class
            if isinstance(item, type) and is_own_class(item) and not is_findable(item):
                encoding.baseline.add(item, f"{path}.{name}")
    known = encoding.baseline.methods(value)
    attributes = class_attributes(value, known or {})
    if not is_user_class(value):  # it derives from a library's
        names = program_names(value, encoding.hooks.stored_outside, attributes)
        stored = {name: item for name, item in attributes.items() if name in names or not encoding.rules.is_of_library(item)}
        attributes = encoding.state_of(value, stored, path, is_own=True)
    address = _address(encoding, number, value, path)
    methods = class_methods(value, known or {})
    if encoding.collects:
        encoding.baseline.add_methods(value, methods)
    before = known or methods
    changed = {
        name: item
        for name, item in methods.items()
        if encoding.collects
        or before.get(name) is not item
        or may_hold_state(item)
        or any(map(encoding.baseline.is_other, functions_in(item)))
    }
    gone = [name for name in before if name not in methods]
    named = encoding.encode_pairs(attributes, path)
    items = [encoding.add_node(None, Node("dict", named=encoding.encode_pairs(changed, path))), *encoding.encode_all(gone, path)]
    return Node("class", class_name(value), items, named, address)


def _address(encoding: Encoding, number: int, value: object, path: str) -> str | None:
    """Return the address of a function or class whose name does not lead to it; name it if the loop has made it."""
    if encoding.is_of_loop(value):
        encoding.lose(number, path, type_name(value))
    if encoding.collects:  # even if its name leads to it: later the name may lead to another one
        encoding.baseline.add(value, "" if encoding.is_unordered else path)
    if is_findable(value):
        return None
    return encoding.baseline.address(value)


def is_of_loop(encoding: Encoding, value: object) -> bool:
    """Return whether the loop has made a function or class."""
    if encoding.collects:
        return False
    if not is_findable(value):
        return not encoding.baseline.has(value)
    return encoding.baseline.is_of_loop(value) or _is_put_into_class(encoding, value)


def _is_put_into_class(encoding: Encoding, value: Any) -> bool:
    """Return whether the loop has put a function or class into a class, where its qualified name leads."""
    owner_name, _, name = static_name(value).rpartition(".")
    owner = find_static(owner_name)
    methods = encoding.baseline.methods(owner) if isinstance(owner, type) else None
    held = None if methods is None else methods.get(name)
    return methods is not None and held is not value and value not in functions_in(held)


def decode_static_with_state(decoding: Decoding, number: int, node: Node, current: Any, path: str) -> Any:
    """Put back the values in a function or class that itself stays as the process has it."""
    is_function = node.kind == "function"
    found: Any = decoding.keep_static(node.data[0] if is_function else node.data, node.there, current)
    if found is ABSENT:
        return ABSENT
    decoding.made[number] = found
    if is_function and function_source.holds_state(found):
        if len(node.data) > 1:  # its code is not that from when the loop was entered
            _name_function(decoding, found, node.items[2], path)
            _set_code(decoding, found, node.data[1], path)
        _fill_function(decoding, found, node, 3, path)
    elif not is_function and isinstance(found, type) and is_own_class(found):
        old = class_attributes(found)
        new = decoding.attributes(node.named, old, path)
        members = members_of(found)
        for gone in old.keys() - new.keys() - members.keys() if is_user_class(found) else ():
            delattr(found, gone)
        for attribute, value in new.items():
            if old.get(attribute, ABSENT) is not value and attribute not in members:
                setattr(found, attribute, value)
        if node.items:  # an earlier version did not write methods
            _fill_methods(decoding, found, decoding.nodes[node.items[0][0]].named, node.items[1:], path)
    return found


def _fill_methods(decoding: Decoding, cls: type, pairs: list[Item], gone: list[Item], path: str) -> None:
    """Set the methods of a class. Methods that were not written are those from when the loop was entered."""
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


def decode_wrapped(decoding: Decoding, _number: int, node: Node, current: Any, path: str) -> Any:
    """Return a static method, property or the like: the live one if its functions are those of the node."""
    kind = WRAPPERS[node.data][0]
    old = functions_in(current) if type(current) is kind else ()
    new = decoding.items(node.items, list(old), path)
    return current if old and _is_alike(old, tuple(new)) else kind(*new)


def decode_cell(decoding: Decoding, number: int, node: Node, current: Any, path: str) -> Any:
    """Put back the value of a variable that functions share."""
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


def decode_defined(decoding: Decoding, number: int, node: Node, _current: Any, path: str) -> object:
    """Make a function again that the loop had made, with code from the program's own source."""
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
    """Put back the values in a function; `first`: the place, among the node's items, of its first variable."""
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


def _decode_partial(decoding: Decoding, _number: int, node: Node, current: Any, path: str) -> Any:
    """Return a partial call: the live one if it has the same function and arguments, else a new one."""
    name = str(node.data) if node.data is not None else class_name(functools.partial)
    cls: Any = type(current) if class_name(type(current)) == name else find_type(name)
    is_live = type(current) is cls
    old = (current.func, current.args, current.keywords) if is_live else (ABSENT,) * 3
    parts: list[Any] = [
        decoding.required(item, part, f"{path}.{n}")
        for item, part, n in zip(node.items, old, ("func", "args", "keywords"), strict=True)
    ]
    if is_live and all(map(_is_alike, old, parts)):
        getattr(current, "__dict__", {}).clear()  # `decode_annotated` has kept its attributes
        return current
    is_known = isinstance(cls, type) and issubclass(cls, functools.partial) and callable(parts[0])
    return functools.partial.__new__(cls, parts[0], *parts[1], **parts[2]) if is_known else ABSENT


def _decode_method(decoding: Decoding, _number: int, node: Node, current: Any, path: str) -> Any:
    """Return a bound method: the live one if it is bound to the same object, else a new one."""
    is_live = type(current) in (types.MethodType, types.BuiltinMethodType)
    owner = decoding.decode(node.items[0], current.__self__ if is_live else ABSENT, f"{path}.__self__")
    if node.items[1] is None:
        method = find_method(owner, node.data)
    else:  # not the method that the class has under this name
        function = decoding.decode(node.items[1], getattr(current, "__func__", ABSENT), f"{path}.__func__")
        method = types.MethodType(function, owner) if isinstance(function, types.FunctionType) else ABSENT
    return current if is_live and current == method else method


def _decode_static(decoding: Decoding, _number: int, node: Node, current: Any, _path: str) -> object:
    return decoding.keep_static(node.data, node.there, current)


def _decode_type(_decoding: Decoding, _number: int, node: Node, _current: Any, _path: str) -> object:
    return find_type(node.data) or ABSENT


def hold_cells(decoding: Decoding, cells: Mapping[str, types.CellType]) -> None:
    """Take the variables of calls in progress (`cells`, by their places) and of live functions for those of the first
    run, before anything is decoded: functions that the loop has made may share them."""
    for key, item in decoding.roots.items():
        kind, _, place = key.partition("|")
        if kind == "cells" and place in cells:
            decoding.cells[item[0]] = cells[place]
    for node in decoding.nodes:
        found = decoding.keep_static(node.data[0], node.there, ABSENT) if node.kind == "function" else ABSENT
        if isinstance(found, types.FunctionType):
            decoding.cells.update(zip([item[0] for item in node.items[3:]], found.__closure__ or (), strict=False))


def _is_alike(one: object, other: object) -> bool:
    """Return whether two values are one object, or tuples of the same objects."""
    if one is other:
        return True
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))
    return False


define("static", decode=_decode_static, form=Form(str, 0, 0), holds="nothing")
define("type", decode=_decode_type, form=Form(str, 0, 0))
define("function", decode=decode_static_with_state, form=Form([str]))
define("class", decode=decode_static_with_state, form=Form(str, first="node"))
define("defined", decode=decode_defined, form=Form([str, str, str], 4))
define("cell", decode=decode_cell, form=Form())
define("wrapped", decode=decode_wrapped, form=Form(str), holds="others")
define("method", decode=_decode_method, form=Form(str, 2, 2), holds="others")
define("partial", decode=_decode_partial, form=Form((str, NONE), 3, 3), holds="others")
