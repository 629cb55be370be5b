"""The modules of the user's program that are imported, and what names of the program lead to, a step at a time: from
frames and modules into collections, objects, functions.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from types import FrameType, FunctionType, MethodType, ModuleType
from typing import Any, Final

from detrain.python.inspect.frames import is_module_frame, is_of_kernel, live_locals, names_of
from detrain.python.inspect.held import Step, held_by_code
from detrain.python.inspect.names import is_user_module, own_attributes

MOST_INSIDE: Final = 64
"""In collections of how many values things are looked for."""
_PLAIN: Final = frozenset({bool, bytes, complex, float, int, str, type(None)})

_seen: set[str] = set()
_user_names: list[str] = []
"""The user's modules among those that have been looked at: thousands are imported, and each is looked at once."""
_ends: tuple[object, ...] = ()
"""How many modules there were when they were looked at last, and the names of the newest ones."""


def is_hidden(name: str) -> bool:
    """Return whether a name of a module is Python's own or a kernel's, and no state of the program."""
    return (name.startswith("__") and name.endswith("__")) or is_of_kernel(name)


def user_modules() -> dict[str, ModuleType]:
    """Return the user's modules that are imported, `__main__` among them, in the order in which they came."""
    global _ends
    ends = (len(sys.modules), *itertools.islice(reversed(sys.modules), 8))
    is_as_before, _ends = ends == _ends, ends  # not all names are compared: this is asked several times a step
    for name in [] if is_as_before else [name for name in list(sys.modules) if name not in _seen]:
        module = sys.modules.get(name)
        _seen.add(name)
        if name != "__mp_main__" and isinstance(module, ModuleType) and is_user_module(module):
            _user_names.append(name)
    return {name: module for name in _user_names if isinstance(module := sys.modules.get(name), ModuleType)}


def namespaces(frames: Sequence[FrameType]) -> Iterator[dict[str, object]]:
    """Yield what names are bound to: of the program's frames, the outermost first, then of its other modules."""
    running = set()
    for frame in frames:
        if is_module_frame(frame):
            running.add(id(frame.f_globals))
        live, shared = live_locals(frame), frame.f_code.co_cellvars  # which functions may read that are called later
        yield live if not shared else {name: each for name, each in names_of(frame).items() if name in live or name in shared}
    for module in list(user_modules().values()):
        if id(vars(module)) not in running:
            yield dict(vars(module))


def inside(value: Any, *, is_whole: bool = False) -> Iterator[tuple[Step, Any]]:
    """Yield what a collection, an object or a function holds, with the step that leads there (see `held`). Of a method
    it is `self`, of a partial call its arguments as those of a collection; of a collection its first values, with
    `is_whole` only if these are all.
    """
    if isinstance(value, FunctionType):
        yield from (((".", name), each) for (_kind, name), each in held_by_code(value))
    elif isinstance(value, MethodType):
        yield (".", "self"), value.__self__
    elif isinstance(value, partial):
        yield from ((("(", "func"), value.func), *inside(value.args, is_whole=is_whole), *inside(value.keywords, is_whole=is_whole))
    elif isinstance(value, list | tuple | dict) and not (is_whole and len(value) > MOST_INSIDE):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        first = itertools.islice(items, MOST_INSIDE)
        yield from [(("[", key), each) for key, each in first if type(each) not in _PLAIN and isinstance(key, int | str)]
    else:
        yield from (((".", name), each) for name, each in list((own_attributes(value) or {}).items()))
