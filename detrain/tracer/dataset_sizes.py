"""Sizes of the objects that the training loops can see: what changes with the dataset is the loader, or a part of it.

This is how the original project found the loader: it traced the program on two datasets of different size.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sized
from types import FrameType, ModuleType
from typing import Any, Final

from detrain.python.inspect.frames import names_of

_MAX_DEPTH: Final = 3
_MAX_OBJECTS: Final = 2000


def sizes_in(frames: Iterable[FrameType]) -> dict[str, int]:
    """Return the size of each sized object that the frames' names lead to, by its path (`dataset.files`)."""
    found: dict[str, int] = {}
    seen: set[int] = set()
    for frame in frames:
        for name, value in names_of(frame).items():
            if not name.startswith("__"):
                _visit(value, name, 0, found, seen)
    return found


def changed_sizes(first: Mapping[str, int], second: Mapping[str, int], difference: int | None) -> dict[str, tuple[int, int]]:
    """Return the objects whose size is another in the second run; with `difference`, only by that many elements."""
    changed = {path: (size, second[path]) for path, size in first.items() if path in second and second[path] != size}
    return {path: pair for path, pair in changed.items() if difference is None or abs(pair[1] - pair[0]) == difference}


def _visit(value: Any, path: str, depth: int, found: dict[str, int], seen: set[int]) -> None:
    if id(value) in seen or len(found) >= _MAX_OBJECTS or isinstance(value, str | bytes | type | ModuleType):
        return
    seen.add(id(value))
    size = _size(value)
    if size is not None:
        found[path] = size
    if depth == _MAX_DEPTH:
        return
    own = getattr(value, "__dict__", None)
    if isinstance(value, dict):
        children = [(f"{path}[{key!r}]", item) for key, item in list(value.items())[:50] if isinstance(key, str | int)]
    elif isinstance(own, dict) and not callable(value):
        children = [(f"{path}.{name}", item) for name, item in list(own.items())]
    else:
        children = []
    for child_path, child in children:
        _visit(child, child_path, depth + 1, found, seen)


def _size(value: Any) -> int | None:
    try:
        # Past the `__getattr__` of the program's classes.
        if inspect.getattr_static(value, "cardinality", None) is not None:
            return int(value.cardinality())
        return len(value) if isinstance(value, Sized) else None
    except Exception:  # an edge: `__len__` and `cardinality` are the program's code, and may raise anything
        return None
