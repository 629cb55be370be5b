"""Names of libraries' modules that are state of the program: under them a library keeps what the loop trains (the
parameters of Pyro, which its optimizers and its store both hold).

No name of the program leads there, and most of what modules hold never matters. So they are looked through only when
the loop has made parameters that have not been looked for, and what holds one of these counts from then on.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Collection, Iterator
from types import ModuleType

from detrain.base.framework_names import MODULES
from detrain.python.inspect.fingerprint import state_inside
from detrain.python.inspect.names import FRAMEWORKS, is_user_module
from detrain.python.inspect.output_only import is_output_only
from detrain.python.inspect.ownership import is_data_class


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

    def look_for(self, parameters: Collection[object]) -> bool:
        """Look for names that lead to parameters which the loop has made, where it has made some since; return whether
        there are new ones."""
        known_of = self._looked_for
        wanted = {id(each) for each in parameters if id(each) not in known_of or known_of[id(each)]() is not each}
        self._looked_for = {id(each): weakref.ref(each) for each in parameters}
        before, known = len(self._found), {id(value) for *_, value in self.values()}
        for module, name, value in _candidates() if wanted else ():
            if id(value) not in known and any(state_inside(value, lambda item: id(item) in wanted)):
                self.add(module, name)
        return len(self._found) > before


def _candidates() -> Iterator[tuple[str, str, object]]:
    """Yield what may be changed of the modules of libraries that import a framework."""
    seen: set[int] = set()
    modules = [(name, each) for name, each in list(sys.modules.items()) if type(each) is ModuleType]
    using = {name.partition(".")[0] for name, each in modules if _imports_framework(each)} - FRAMEWORKS
    for module_name, module in modules:
        if module_name.partition(".")[0] not in using or is_user_module(module):
            continue
        for name, value in list(vars(module).items()):
            is_mutable = type(value) in (dict, list, set) or is_data_class(type(value))
            if is_mutable and not name.startswith("__") and id(value) not in seen and not is_output_only(value):
                seen.add(id(value))
                yield module_name, name, value


def _imports_framework(module: ModuleType) -> bool:
    held = (each for each in list(vars(module).values()) if type(each) is ModuleType)
    return any(each.__name__.partition(".")[0] in MODULES for each in held)
