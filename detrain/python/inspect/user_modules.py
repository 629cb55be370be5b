"""The modules of the user's program that are imported."""

from __future__ import annotations

import itertools
import sys
from types import ModuleType

from detrain.python.inspect.frames import is_of_kernel
from detrain.python.inspect.names import is_user_module

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
