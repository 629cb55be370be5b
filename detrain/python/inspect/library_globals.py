"""Names of libraries' modules that are state of the program: under them a library keeps what the loop trains (the
parameters of Pyro, which its optimizers and its store both hold).

No name of the program leads there, and most of what modules hold never matters. So they are looked through only when
the loop has made parameters that have not been looked for, and what holds one of these counts from then on.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Collection, Iterator
from types import FunctionType, ModuleType
from typing import Any, Final

from detrain.python.inspect.names import FRAMEWORKS, held_by, is_user_module
from detrain.python.inspect.object_graph import CONTAINERS
from detrain.python.inspect.output_only import is_output_only
from detrain.python.inspect.ownership import is_data_class

_SCALARS: Final = (type(None), bool, int, float, complex, str, bytes, type, FunctionType, ModuleType)
_MOST: Final = 20_000
"""Objects that are looked at below one name: registries of classes and texts are large, and hold no parameter."""


class LibraryGlobals:
    """Those that have been found."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], None] = {}
        self._looked_for: dict[int, weakref.ref[object]] = {}

    def add(self, module: str, name: str) -> None:
        """A checkpoint has this name of a library's module."""
        self._found[module, name] = None

    def values(self) -> Iterator[tuple[str, str, object]]:
        """Yield the module, the name, and what it is bound to."""
        for module, name in self._found:
            if module in sys.modules:
                yield module, name, getattr(sys.modules[module], name, None)

    def look_for(self, parameters: Collection[object]) -> None:
        """Look for names that lead to parameters which the loop has made, where it has made some since."""
        known_of = self._looked_for
        wanted = {id(each) for each in parameters if id(each) not in known_of or known_of[id(each)]() is not each}
        self._looked_for = {id(each): weakref.ref(each) for each in parameters}
        known = {id(value) for *_, value in self.values()}
        for module, name, value in _candidates() if wanted else ():
            if id(value) not in known and _leads_to(value, wanted):
                self.add(module, name)


def _candidates() -> Iterator[tuple[str, str, object]]:
    seen: set[int] = set()
    for module_name, module in list(sys.modules.items()):
        top = module_name.partition(".")[0]
        if top in FRAMEWORKS or top in sys.stdlib_module_names or type(module) is not ModuleType or is_user_module(module):
            continue
        for name, value in list(vars(module).items()):
            is_mutable = type(value) in (dict, list, set) or is_data_class(type(value))
            if is_mutable and not name.startswith("__") and id(value) not in seen and not is_output_only(value):
                seen.add(id(value))
                yield module_name, name, value


def _leads_to(value: object, wanted: Collection[int]) -> bool:
    seen: set[int] = set()
    left: list[Any] = [value]
    while left and len(seen) < _MOST:
        item = left.pop()
        cls = type(item)
        if cls in _SCALARS or id(item) in seen:
            continue
        if id(item) in wanted:
            return True
        seen.add(id(item))
        if cls in CONTAINERS.values() or is_data_class(cls):
            left += [held for _, held in held_by(item)]
    return False
