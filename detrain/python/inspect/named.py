"""The imported modules of the user's program, and the objects that its names reach, step by step: from frames and
modules into collections, objects and functions.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from types import FrameType, FunctionType, MethodType, ModuleType
from typing import Any, Final

from detrain.python.inspect.frames import is_module_frame, is_of_kernel, live_locals, names_of
from detrain.python.inspect.held import Step, held_by_code
from detrain.python.inspect.names import is_user_module, own_attributes

MOST_INSIDE: Final = 64
"""The largest number of values of a collection that are looked at."""
_COLLECTIONS: Final[tuple[Any, ...]] = (dict, list, tuple)
_PLAIN: Final = frozenset({bool, bytes, complex, float, int, str, type(None)})

_seen: set[str] = set()
_user_names: list[str] = []
"""Names of the user's modules among those seen so far: thousands are imported, and each is looked at only once."""
_ends: tuple[object, ...] = ()
"""The number of modules at the last look, and the names of the newest ones."""


_main: list[ModuleType] = []


def set_main(module: ModuleType) -> None:
    """Note the module in which the program's main file runs."""
    _main[:] = [module]


def main_module() -> ModuleType:
    """Return the module in which the program's main file runs.

    A library may put another one in its place (IPython's shell, which `matplotlib_inline` starts). Functions, classes
    and names of the program are looked up in `sys.modules`, so it is put back there.
    """
    if _main and sys.modules.get("__main__") is not _main[0]:
        sys.modules["__main__"] = _main[0]
    return sys.modules["__main__"]


def is_hidden(name: str) -> bool:
    """Return whether a name in a module belongs to Python or a notebook's kernel, and is no state of the program."""
    return (name.startswith("__") and name.endswith("__")) or is_of_kernel(name)


def user_modules() -> dict[str, ModuleType]:
    """Return the user's imported modules, `__main__` among them, in the order in which they were imported."""
    global _ends
    main_module()
    ends = (len(sys.modules), *itertools.islice(reversed(sys.modules), 8))
    is_as_before, _ends = ends == _ends, ends  # compares only some names: this runs several times a step
    for name in [] if is_as_before else [name for name in list(sys.modules) if name not in _seen]:
        module = sys.modules.get(name)
        _seen.add(name)
        if name != "__mp_main__" and isinstance(module, ModuleType) and is_user_module(module):
            _user_names.append(name)
    return {name: module for name in _user_names if isinstance(module := sys.modules.get(name), ModuleType)}


def namespaces(frames: Sequence[FrameType]) -> Iterator[dict[str, object]]:
    """Yield the values of names: in each of the program's `frames`, in their order, then in its other modules."""
    running = set()
    for frame in frames:
        if is_module_frame(frame):
            running.add(id(frame.f_globals))
        live, shared = live_locals(frame), frame.f_code.co_cellvars  # functions called later may read them
        yield live if not shared else {name: each for name, each in names_of(frame).items() if name in live or name in shared}
    for module in list(user_modules().values()):
        if id(vars(module)) not in running:
            yield dict(vars(module))


def _items_of(value: Any) -> tuple[int, Iterable[tuple[Any, Any]]] | None:
    """Return the number of items in a dict, list or tuple, and the items with their keys or places; None for others.
    The items are read past the methods of a class that derives from these. A proxy that stands for one is asked.
    """
    base = next((each for each in _COLLECTIONS if isinstance(value, each)), None)
    if base is None:
        return None
    if not issubclass(type(value), base):
        return len(value), value.items() if base is dict else enumerate(value)
    return base.__len__(value), dict.items(value) if base is dict else enumerate(base.__iter__(value))


def inside(value: Any, *, is_whole: bool = False) -> Iterator[tuple[Step, Any]]:
    """Yield the objects that a collection, an object or a function holds, each with its step (see `held`). A method
    holds its `self`, a partial call its function and arguments. A collection gives its first values; with `is_whole`,
    it gives none if it has more.
    """
    if isinstance(value, FunctionType):
        yield from (((".", name), each) for (_kind, name), each in held_by_code(value))
    elif isinstance(value, MethodType):
        yield (".", "self"), value.__self__
    elif isinstance(value, partial):
        yield from ((("(", "func"), value.func), *inside(value.args, is_whole=is_whole), *inside(value.keywords, is_whole=is_whole))
    elif (found := _items_of(value)) is not None and not (is_whole and found[0] > MOST_INSIDE):
        first = itertools.islice(found[1], MOST_INSIDE)
        yield from [(("[", key), each) for key, each in first if type(each) not in _PLAIN and isinstance(key, int | str)]
    else:
        yield from (((".", name), each) for name, each in list((own_attributes(value) or {}).items()))
