"""What the program's code leads to from an object that draws or loads: its attributes, and what its methods read."""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from detrain.base.plain_types import CONTAINERS, NUMBERS_AND_TEXTS
from detrain.python.codec.recipes import describe
from detrain.python.codec.state_rules import class_attributes, functions_in, has_contents
from detrain.python.inspect.frames import has_user_code, is_user_file, names_of
from detrain.python.inspect.held import walk
from detrain.python.inspect.names import is_own_class, own_attributes

COLLECTIONS: Final = frozenset(CONTAINERS.values())
_STILL: Final = (type, types.ModuleType, types.BuiltinFunctionType)
"""Kinds of objects that nothing is looked for in."""


class Reached(NamedTuple):
    """One thing, and where it is: a name, or an attribute of an object of the program's; empty where neither leads."""

    place: str
    value: object
    is_data: bool
    """Whether it is numbers, texts, arrays, or a collection of these. Else it is no object of the program's, and may
    hold more than it shows."""


class _At(NamedTuple):
    place: str
    value: object
    is_data: bool
    depth: int


def reached(source: object, *, deepest: int, most_items: int) -> Iterator[Reached]:
    """Yield what a source leads to, in at most so many steps, and of a long collection about so many items."""

    def below(at: _At) -> list[_At]:
        found = [(step, each, _is_data(each, most_items)) for step, each in _steps(at.place, at.value, most_items)]
        return [_At(*each, at.depth + 1) for each in found if each[2] or at.depth < deepest] if not at.is_data else []

    for at in walk([_At("", source, False, 0)], below, lambda at: None if at.is_data else id(at.value), is_wide=True):
        if at.is_data or not _shows_all(at.value):
            yield Reached(at.place, at.value, at.is_data)


def some(value: Any, most_items: int) -> list[Any]:
    """Return the items of a collection, of a long one some that lie evenly in it."""
    items = list(value.values() if isinstance(value, dict) else value)
    return items[:: len(items) // most_items + 1]


def _is_data(value: object, most_items: int) -> bool:
    if isinstance(value, (range, *NUMBERS_AND_TEXTS)) or hasattr(type(value), "__array__"):
        return not getattr(getattr(value, "dtype", None), "hasobject", False)
    return type(value) in COLLECTIONS and all(_is_data(each, most_items) for each in some(value, most_items))


def _shows_all(value: object) -> bool:
    """Return whether all that an object holds is what it leads to here."""
    kinds = (types.FunctionType, types.MethodType, functools.partial, types.GeneratorType, *_STILL)
    return isinstance(value, kinds) or type(value) in COLLECTIONS or is_own_class(type(value))


def _steps(place: str, value: Any, most_items: int) -> Iterator[tuple[str, object]]:
    """Yield what an object leads to, and where that is."""
    if isinstance(value, types.FunctionType):
        if has_user_code(value):
            yield from _names_in(value.__code__, value.__globals__)
            yield from ((place, each) for each in (value.__defaults__, value.__kwdefaults__))
            cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
            yield from ((name, cell.cell_contents) for name, cell in cells if has_contents(cell))
    elif isinstance(value, types.MethodType):
        yield from ((place, value.__self__), (place, value.__func__))
    elif isinstance(value, functools.partial):
        yield from ((place, each) for each in (value.func, *value.args, *value.keywords.values()))
    elif isinstance(value, types.GeneratorType):
        if value.gi_frame is not None and is_user_file(value.gi_code.co_filename):
            yield from _names_in(value.gi_code, value.gi_frame.f_globals)
            yield from ((place and name, each) for name, each in names_of(value.gi_frame).items())
    elif type(value) in COLLECTIONS:
        yield from ((place, each) for each in some(value, most_items))
        if isinstance(value, dict):
            yield place, list(value)
    elif not isinstance(value, _STILL):
        cls, described = type(value), describe(value)
        is_own = is_own_class(cls)
        for name, each in (own_attributes(value) or {}).items():
            if not is_own and isinstance(getattr(cls, name, None), functools.cached_property):
                continue  # whoever asks for it first has it computed of the others
            yield (f"{cls.__qualname__}.{name}" if is_own else place), each
        yield from ((place, each) for each in (described[1] if described is not None else ()))
        for base in cls.__mro__ if is_own else ():
            if is_own_class(base):
                yield from ((f"{base.__qualname__}.{name}", each) for name, each in class_attributes(base).items())
                yield from ((place, each) for item in vars(base).values() for each in functions_in(item))


def _names_in(code: types.CodeType, space: dict[str, Any]) -> Iterator[tuple[str, object]]:
    """Yield the globals that code reads."""
    yield from ((name, space[name]) for name in _globals_of(code) if name in space)


@functools.lru_cache(maxsize=1 << 10)
def _globals_of(code: types.CodeType) -> tuple[str, ...]:
    found = [each.argval for each in dis.get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")]
    inner = [name for each in code.co_consts if isinstance(each, types.CodeType) for name in _globals_of(each)]
    return tuple(dict.fromkeys([*found, *inner]))
