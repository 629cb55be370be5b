"""What the loads of a batch loop read of which its bodies write: loaded again from the state of the epoch's start, they
may yield others.

A sampler that draws hard examples reads losses that bodies note; a data set reads a difficulty that they set. What the
program's code leads to from the loader is looked at before and behind a load, in the first batches of an epoch and at
each cut: what changes while no load is running, a body has changed.
"""

from __future__ import annotations

import dis
import functools
import types
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import xxhash

from detrain.python.codec.stdlib_objects import parts
from detrain.python.inspect.frames import has_user_code, is_user_file, names_of
from detrain.python.inspect.names import is_own_class, own_attributes
from detrain.python.inspect.object_graph import LOADS_READ

_FIRST: Final = 3
"""In so many batches of an epoch it is looked who changes what."""
_DEEPEST: Final = 6
_MOST_ITEMS: Final = 256
_MOST_BYTES: Final = 16 << 20
_SCALARS: Final = (type(None), bool, int, float, complex, str, bytes, np.generic)
_COLLECTIONS: Final = (list, tuple, set, frozenset, dict, deque)


class LoadsRead:
    """Finds out, in each epoch anew, what bodies have changed of what loads read."""

    def __init__(self) -> None:
        self._last: dict[str, str] = {}
        self._by_loads: set[str] = set()
        self._by_bodies: set[str] = set()
        self._source: object = None

    def begin_epoch(self) -> None:
        """What is there now is there again when a run resumes in this epoch."""
        self._last, self._by_bodies, self._source = {}, set(), None

    def at_head(self, source: object, batch: int) -> None:
        """A batch is about to be loaded from what the loop goes over."""
        self._source = source if batch < _FIRST else None
        self._by_bodies |= self._changed(self._source)

    def behind_load(self) -> None:
        """It has been loaded."""
        self._by_loads |= self._changed(self._source)

    def lost(self, source: object) -> list[str]:
        """Return, at a cut, what bodies have changed, in words."""
        self._by_bodies |= self._changed(source) - self._by_loads
        return [f"{place} ({LOADS_READ})" for place in sorted(self._by_bodies)]

    def _changed(self, source: object) -> set[str]:
        if source is None:
            return set()
        before, self._last = self._last, {place: _digest(value) for place, value in _read_by(source)}
        return {place for place, now in self._last.items() if before.get(place, now) != now}


def _read_by(source: object) -> Iterator[tuple[str, object]]:
    """Yield the data that the program's code leads to from what a loop goes over, by where it is."""
    seen: dict[int, object] = {}  # which lives as long as its number is that of no other
    waiting: deque[tuple[str, object, int]] = deque([("", source, 0)])
    while waiting:
        place, value, depth = waiting.popleft()
        if place and _is_data(value):
            yield place, value
        elif id(value) not in seen and depth <= _DEEPEST:
            seen[id(value)] = value
            waiting.extend((step, each, depth + 1) for step, each in _steps(place, value))


def _is_data(value: object) -> bool:
    if isinstance(value, _SCALARS) or hasattr(type(value), "__array__"):
        return True
    return type(value) in _COLLECTIONS and all(map(_is_data, _some(value)))


def _steps(place: str, value: Any) -> Iterator[tuple[str, object]]:
    """Yield what an object leads to, and where that is: a name, or an attribute of an object of the program's."""
    if isinstance(value, types.FunctionType):
        if has_user_code(value):
            yield from _names_in(value.__code__, value.__globals__)
            for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
                yield from ((name, each) for each in _content(cell))
    elif isinstance(value, types.MethodType):
        yield from ((place, value.__self__), (place, value.__func__))
    elif isinstance(value, functools.partial):
        yield from ((place, each) for each in (value.func, *value.args, *value.keywords.values()))
    elif isinstance(value, types.GeneratorType):
        if value.gi_frame is not None and is_user_file(value.gi_code.co_filename):
            yield from _names_in(value.gi_code, value.gi_frame.f_globals)
            yield from ((place and name, each) for name, each in names_of(value.gi_frame).items())
    elif isinstance(value, _COLLECTIONS):
        yield from ((place, each) for each in _some(value))
    elif isinstance(value, type | types.ModuleType):
        return
    else:
        cls, described = type(value), parts(value)
        is_own = is_own_class(cls)
        for name, each in (own_attributes(value) or {}).items():
            yield (f"{cls.__qualname__}.{name}" if is_own else place), each
        for each in described[1] if described is not None else ():
            yield place, each
        methods = [each for base in cls.__mro__ if is_own_class(base) for each in vars(base).values()] if is_own else []
        for each in methods:
            if isinstance(each, types.FunctionType):
                yield from _names_in(each.__code__, each.__globals__)


def _names_in(code: types.CodeType, space: dict[str, Any]) -> Iterator[tuple[str, object]]:
    """Yield the globals that code reads."""
    yield from ((name, space[name]) for name in _globals_of(code) if name in space)


@functools.lru_cache(maxsize=256)
def _globals_of(code: types.CodeType) -> tuple[str, ...]:
    found = [each.argval for each in dis.get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")]
    inner = [name for each in code.co_consts if isinstance(each, types.CodeType) for name in _globals_of(each)]
    return tuple(dict.fromkeys([*found, *inner]))


def _content(cell: types.CellType) -> list[object]:
    try:
        return [cell.cell_contents]
    except ValueError:  # it is empty
        return []


def _some(value: Any) -> list[Any]:
    """Return the items of a collection, of a long one some that lie evenly in it."""
    items = list(value.values() if isinstance(value, dict) else value)
    return items[:: len(items) // _MOST_ITEMS + 1]


def _digest(value: object) -> str:
    state = xxhash.xxh3_128()
    _update(state, value)
    return str(state.hexdigest())


def _update(state: Any, value: Any) -> None:
    if isinstance(value, _SCALARS):
        state.update((hex(value) if type(value) is int else repr(value)).encode("utf-8", "surrogatepass"))
    elif type(value) in _COLLECTIONS:
        state.update(f"{len(value)};".encode())
        for each in () if isinstance(value, set | frozenset) else _some(value):
            _update(state, each)
    elif (version := getattr(value, "_version", None)) is not None:  # a tensor of PyTorch's counts its changes
        state.update(f"{id(value)} {version} {tuple(value.shape)}".encode())
    elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
        flat = value.reshape(-1)
        state.update(np.ascontiguousarray(flat[:: value.nbytes // _MOST_BYTES + 1]).tobytes())
    else:
        state.update(f"{type(value).__name__} {id(value)}".encode())
