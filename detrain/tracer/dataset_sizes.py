"""Sizes of the objects that the training loops can see: one that changes with the dataset is the loader or part of it.

The original project found the loader in this way: it traced the program on two datasets of different size.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sized
from types import FrameType, ModuleType
from typing import Any, Final

from detrain.python.inspect.frames import names_of
from detrain.python.inspect.held import walk
from detrain.python.inspect.names import own_attributes

_MAX_DEPTH: Final = 3
_MAX_OBJECTS: Final = 2000
_NOT_SIZED: Final = (str, bytes, type, ModuleType)


def sizes_in(frames: Iterable[FrameType]) -> dict[str, int]:
    """Return the size of each sized object that the frames' names lead to, by its path (`dataset.files`)."""
    found: dict[str, int] = {}
    names = [(name, value, 0) for frame in frames for name, value in names_of(frame).items() if not name.startswith("__")]
    for path, value, _depth in walk(names, _below, lambda place: id(place[1])):
        if len(found) >= _MAX_OBJECTS:
            break
        size = None if isinstance(value, _NOT_SIZED) else _size(value)
        if size is not None:
            found[path] = size
    return found


def changed_sizes(first: Mapping[str, int], second: Mapping[str, int], difference: int | None) -> dict[str, tuple[int, int]]:
    """Return the objects with another size in the second run; with `difference`, only those that differ by this."""
    changed = {path: (size, second[path]) for path, size in first.items() if path in second and second[path] != size}
    return {path: pair for path, pair in changed.items() if difference is None or abs(pair[1] - pair[0]) == difference}


def _below(place: tuple[str, Any, int]) -> Iterable[tuple[str, Any, int]]:
    path, value, depth = place
    if depth == _MAX_DEPTH or isinstance(value, _NOT_SIZED):
        return []
    if issubclass(type(value), dict):  # read past the methods of a class that derives from it
        pairs = [(f"[{key!r}]", item) for key, item in list(dict.items(value))[:50] if type(key) in (str, int)]
    else:
        pairs = [(f".{name}", item) for name, item in list((own_attributes(value) or {}).items())] if not callable(value) else []
    return [(f"{path}{step}", item, depth + 1) for step, item in pairs]


def _size(value: Any) -> int | None:
    try:
        # Does not call the `__getattr__` of the program's classes.
        if inspect.getattr_static(value, "cardinality", None) is not None:
            return int(value.cardinality())
        return len(value) if isinstance(value, Sized) else None
    except Exception:  # an edge: `__len__` and `cardinality` are the program's code, and may raise anything
        return None
