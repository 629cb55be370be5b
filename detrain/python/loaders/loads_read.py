"""Values that the loads of a batch loop read and its bodies write: loaded again from the state of the epoch's start,
the batches may be different.

A sampler that draws hard examples reads losses that bodies note; a data set reads a difficulty that they set. The
values that the program's code reaches from the loader are looked at before and after a load, in the first batches of an
epoch and at each cut: if one changes while no load is running, a body has changed it.
"""

from __future__ import annotations

import dis
import functools
import gc
import types
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import xxhash

from detrain.base.losses import LOADS_READ
from detrain.base.plain_types import CONTAINERS, NUMBERS_AND_TEXTS, is_iterator
from detrain.python.codec.recipes import describe
from detrain.python.codec.state_rules import class_attributes, functions_in, has_contents
from detrain.python.inspect.frames import has_user_code, is_user_file, names_of
from detrain.python.inspect.held import held_by, walk
from detrain.python.inspect.names import is_own_class, module_of, own_attributes
from detrain.python.inspect.progress import iterators_in
from detrain.python.inspect.stored_attributes import is_of_framework

_FIRST: Final = 3
"""The number of batches at an epoch's start, of those whose bodies run here, in which values are compared."""
_DEEPEST: Final = 7
_MOST_ITEMS: Final = 256
_MOST_BYTES: Final = 16 << 20

COLLECTIONS: Final = frozenset(CONTAINERS.values())
_STILL: Final = (type, types.ModuleType, types.BuiltinFunctionType)
"""Types of objects inside of which no values are looked for."""


class Reached(NamedTuple):
    """A value, and its place: a name, or an attribute of one of the program's objects; empty if neither leads there."""

    place: str
    value: object
    is_data: bool
    """Whether the value is a number, a text, an array, or a collection of these. Else it is not an object of the
    program, and may hold more than it shows."""


class Suspended(NamedTuple):
    """A generator of the program between two of its items."""

    code: types.CodeType
    space: dict[str, Any]
    names: dict[str, Any]
    """Its local variables."""
    inner: tuple[object, ...]
    """The iterators that it draws from."""

    @classmethod
    def of(cls, generator: types.GeneratorType[Any, Any, Any], around: tuple[object, ...] = ()) -> Suspended:
        """Return a generator of the program; `around` are the generators that draw from it."""
        frame = generator.gi_frame
        if frame is None or any(each is generator for each in around):
            return cls(generator.gi_code, {}, {}, ())
        around = (*around, generator)
        drawn = iterators_in(gc.get_referents(generator))
        names = {name: _at_rest(value, around) for name, value in names_of(frame).items()}
        return cls(generator.gi_code, frame.f_globals, names, tuple(_at_rest(each, around) for each in drawn))


def _at_rest(value: object, around: tuple[object, ...]) -> object:
    """Return an iterator of Python as the objects that it draws from, without its position; another object as it is."""
    if isinstance(value, types.GeneratorType):
        return Suspended.of(value, around) if _is_of_program(value) else value
    if is_iterator(value) and module_of(type(value)) in ("builtins", "itertools"):
        return tuple(_at_rest(each, around) for each in gc.get_referents(value))
    return value


class _At(NamedTuple):
    place: str
    value: object
    is_data: bool
    depth: int


def reached(
    source: object, *, deepest: int, most_items: int, meet: Callable[[object], None] = lambda _value: None
) -> Iterator[Reached]:
    """Yield the values in at most `deepest` steps from a source; of a long collection, about `most_items` items.

    `meet` hears of each step to an object that is no data, also of further steps to the same object.
    """

    def below(at: _At) -> list[_At]:
        if at.is_data:
            return []
        found = [(step, each, _is_data(each, most_items)) for step, each in _steps(at.place, at.value, most_items)]
        for _step, each, is_data in found:
            if not is_data:
                meet(each)
        return [_At(*each, at.depth + 1) for each in found if each[2] or at.depth < deepest]

    for at in walk([_At("", source, False, 0)], below, lambda at: None if at.is_data else id(at.value), is_wide=True):
        if at.is_data or not _shows_all(at.value):
            yield Reached(at.place, at.value, at.is_data)


def some(value: Any, most_items: int) -> list[Any]:
    """Return the items of a collection; of a long one, some at even distances."""
    items = list(value.values() if isinstance(value, dict) else value)
    return items[:: len(items) // most_items + 1]


def _is_data(value: object, most_items: int, depth: int = 0) -> bool:
    if isinstance(value, (range, *NUMBERS_AND_TEXTS)) or hasattr(type(value), "__array__"):
        return not getattr(getattr(value, "dtype", None), "hasobject", False)
    is_collection = type(value) in COLLECTIONS and depth < _DEEPEST  # it may hold itself
    return is_collection and all(_is_data(each, most_items, depth + 1) for each in some(value, most_items))


def _shows_all(value: object) -> bool:
    """Return whether `_steps` reaches all that an object holds."""
    kinds = (types.FunctionType, types.MethodType, functools.partial, Suspended, *_STILL)
    return isinstance(value, kinds) or type(value) in COLLECTIONS or is_own_class(type(value)) or _is_of_program(value)


def _is_of_program(value: object) -> bool:
    return isinstance(value, types.GeneratorType) and is_user_file(value.gi_code.co_filename)


def _steps(place: str, value: Any, most_items: int) -> Iterator[tuple[str, object]]:
    """Yield the values that an object leads to, and their places."""
    if isinstance(value, types.FunctionType):
        if has_user_code(value):
            yield from _names_in(value.__code__, value.__globals__)
            yield from ((place, each) for each in (value.__defaults__, value.__kwdefaults__))
            cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
            yield from ((name, cell.cell_contents) for name, cell in cells if has_contents(cell))
    elif isinstance(value, types.MethodType):
        yield from ((place, value.__self__), (place, value.__func__))
    elif isinstance(value, types.BuiltinFunctionType):
        yield place, value.__self__
    elif isinstance(value, functools.partial):
        yield from ((place, each) for each in (value.func, *value.args, *value.keywords.values()))
    elif isinstance(value, Suspended):
        yield from _names_in(value.code, value.space)
        yield from ((place and name, each) for name, each in value.names.items())
        yield from ((place, each) for each in value.inner)
    elif isinstance(value, types.GeneratorType):
        if _is_of_program(value):
            yield place, Suspended.of(value)
    elif type(value) in COLLECTIONS:
        yield from ((place, each) for each in some(value, most_items))
        if isinstance(value, dict):
            yield place, list(value)
    elif isinstance(value, type):
        yield from _steps_of_class(place, value)
    elif not isinstance(value, _STILL):
        cls, described = type(value), describe(value)
        if is_own_class(cls):
            for (kind, name), each in held_by(value):
                yield (f"{cls.__qualname__}.{name}" if kind == "." else place), each
        else:
            for name, each in (own_attributes(value) or {}).items():
                if not isinstance(getattr(cls, name, None), functools.cached_property):  # computed from the others
                    yield place, each
        yield from ((place, each) for each in (described[1] if described is not None else ()))
        yield from _steps_of_class(place, cls)


def _steps_of_class(place: str, cls: type) -> Iterator[tuple[str, object]]:
    for base in cls.__mro__ if is_own_class(cls) else ():
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


class LoadsRead:
    """Finds, in each epoch anew, the values that loads read and bodies have changed."""

    def __init__(self) -> None:
        self._last: dict[str, str] = {}
        self._by_loads: set[str] = set()
        self._by_bodies: set[str] = set()
        self._source: object = None
        self._seen_in = 0
        """The identity of the source that `_last` is of: a validation loop has data sets of the same class."""
        self._heads = 0

    def begin_epoch(self) -> None:
        """Forget earlier changes: a run that resumes in this epoch has the values of now."""
        self._last, self._by_bodies, self._source, self._heads = {}, set(), None, 0

    def at_head(self, source: object) -> None:
        """Look for changes by bodies: a batch is about to be loaded from the loop's source."""
        self._source = source if self._heads < _FIRST else None
        self._heads += 1
        self._by_bodies |= self._changed(self._source)

    def behind_load(self) -> None:
        """Look for changes by the load: the batch has been loaded."""
        source, self._source = self._source, None  # plain Python frees it where the loop is left
        self._by_loads |= self._changed(source)

    def lost(self, source: object) -> list[str]:
        """Return, at a cut, the places of the values that bodies have changed, in words."""
        self._by_bodies |= self._changed(source) - self._by_loads
        return [f"{place} ({LOADS_READ})" for place in sorted(self._by_bodies)]

    def _changed(self, source: object) -> set[str]:
        if source is None:
            return set()
        if id(source) != self._seen_in:
            self._last, self._seen_in = {}, id(source)
        states: dict[str, Any] = {}
        passed: set[str] = set()
        for place, value, is_data in reached(source, deepest=_DEEPEST, most_items=_MOST_ITEMS):
            if is_iterator(value) and is_of_framework(type(value)):
                passed.add(place)  # its position shows how far it is; its workers move by themselves
            elif place and is_data and place not in passed:
                _update(states.setdefault(place, xxhash.xxh3_128()), value)
        before, self._last = self._last, {place: state.hexdigest() for place, state in states.items()}
        return {place for place, now in self._last.items() if before.get(place, now) != now}


def _version_of(value: object) -> int | None:
    """Return how often a tensor of PyTorch has changed; None for other values, and for a tensor that does not count."""
    try:
        return getattr(value, "_version", None)
    except RuntimeError:  # made in `inference_mode`
        return None


def _update(state: Any, value: Any) -> None:
    if isinstance(value, (range, *NUMBERS_AND_TEXTS)):
        state.update((hex(value) if type(value) is int else repr(value)).encode("utf-8", "surrogatepass"))
    elif type(value) in COLLECTIONS:
        state.update(f"{len(value)};".encode())
        for each in () if isinstance(value, set | frozenset) else some(value, _MOST_ITEMS):
            _update(state, each)
    elif (version := _version_of(value)) is not None:
        state.update(f"{id(value)} {version} {tuple(value.shape)}".encode())
    elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
        flat = value.reshape(-1)
        state.update(np.ascontiguousarray(flat[:: value.nbytes // _MOST_BYTES + 1]).tobytes())
    else:
        state.update(f"{type(value).__name__} {id(value)}".encode())
