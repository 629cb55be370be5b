"""Objects that libraries hold under the names of their modules and classes.

Some are state of the program: objects that the loop trains (the parameters of Pyro, which its optimizers and its store
both hold). No name of the program reaches them, and most objects in modules never matter. So modules are searched only
when the loop has made new parameters, and an object that holds one of these counts as state from then on.

A number that changes again and again (a counter of calls) is such state, too. A number that changes once is not: by it
a library notes that it has been set up, and each process must set it up for itself.

Other objects matter by their identity: a mark for "not given" (`_UNSET = object()`), a default that exists once. Each
process finds its own by the name.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Final

from detrain.base.framework_names import MODULES
from detrain.base.libraries import said
from detrain.base.plain_types import CONTAINERS
from detrain.python.inspect.fingerprint import state_inside
from detrain.python.inspect.names import FRAMEWORKS, at_name, by_class, is_open, is_user_module, module_of
from detrain.python.inspect.object_graph import ABSENT
from detrain.python.inspect.output_only import is_output_only
from detrain.python.inspect.ownership import is_data_class

_NUMBERS: Final = frozenset({int, float})
_FAR: Final = 1 << 31
"""Numbers beyond this are addresses and times."""


class LibraryGlobals:
    """The names in libraries that have been found to be state."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], None] = {}
        self._looked_for: dict[int, weakref.ref[object]] = {}
        self._numbers: list[tuple[str, str, Mapping[str, object]]] = []
        """The numbers in libraries: module, name, and the namespace with the number under the last part of the name."""
        self._last: list[object] = []
        """The values of these numbers at the last look."""
        self._moved: set[tuple[str, str]] = set()
        """The numbers that have changed once."""

    def begin(self) -> None:
        """Note the numbers in libraries, as the program enters a loop."""
        self._numbers = list(_numbers())
        self._last, self._moved = [held.get(_last(name)) for _, name, held in self._numbers], set()

    def look(self) -> None:
        """Find the numbers that have changed; one that has changed twice is state from now on."""
        now = [held.get(_last(name)) for _, name, held in self._numbers]
        for (module, name, _), before, value in zip(self._numbers, self._last, now, strict=True):
            if value is not before and type(value) in _NUMBERS and value != before and -_FAR < value < _FAR:  # type: ignore[operator]
                if (module, name) in self._moved:
                    self._found[module, name] = None
                self._moved.add((module, name))
        self._last = now

    def set(self, module: str, name: str, value: object) -> bool:
        """Set a number that is state. Return whether it was set: both values must be numbers."""
        owner = at_name(sys.modules[module], name.rpartition(".")[0]) if "." in name else sys.modules[module]
        if not {type(value), type(at_name(sys.modules[module], name))} <= _NUMBERS:
            return False
        setattr(owner, _last(name), value)
        return True

    def has(self, module: str, name: str) -> bool:
        """Return whether this name in a library's module is state."""
        return (module, name) in self._found

    def find(self, names: Collection[tuple[str, str]]) -> None:
        """Take over the names (module, name) in a checkpoint. Only names that may be state of a program count: a file
        must not be able to fill `sys.path`.
        """
        numbers = ((module, name) for module, name, _ in _numbers())
        held = ((module, name) for module, name, _ in _candidates())
        self._found |= dict.fromkeys(each for each in (*held, *numbers) if each in names)

    def values(self) -> Iterator[tuple[str, str, object]]:
        """Yield the module, the name and the value of each name that is state."""
        for module, name in self._found:
            if module in sys.modules:
                yield module, name, at_name(sys.modules[module], name)

    def look_for(self, parameters: Collection[object]) -> bool:
        """Search for names that reach the parameters of the loop, if it has made new ones since the last call. Return
        whether new names were found."""
        known_of = self._looked_for
        wanted = {id(each) for each in parameters if id(each) not in known_of or known_of[id(each)]() is not each}
        self._looked_for = {id(each): weakref.ref(each) for each in parameters}
        before, known = len(self._found), {id(value) for *_, value in self.values()}
        for module, name, value in _candidates() if wanted else ():
            if id(value) not in known and any(state_inside(value, lambda item: id(item) in wanted)):
                self._found[module, name] = None
        return len(self._found) > before


def _candidates() -> Iterator[tuple[str, str, object]]:
    """Yield (module, name, value) of the mutable objects in modules of libraries that import a framework."""
    modules = [(name, each) for name, each in list(sys.modules.items()) if type(each) is ModuleType]
    using = {name.partition(".")[0] for name, each in modules if _imports_framework(each)} - FRAMEWORKS
    seen = _of_python()
    for module_name, module in modules:
        if module_name.partition(".")[0] not in using or is_user_module(module):
            continue
        for name, value in list(vars(module).items()):
            is_mutable = type(value) in (dict, list, set) or is_data_class(type(value))
            if is_mutable and not name.startswith("__") and id(value) not in seen and not is_output_only(value):
                seen.add(id(value))
                yield module_name, name, value


def namespaces(modules: Iterable[str]) -> Iterator[tuple[str, str, Mapping[str, object]]]:
    """Yield the namespaces of modules of libraries and of the classes that they define: module, prefix of the names in
    it (empty, or the class and a dot), values by name.
    """
    for module_name in modules:
        module = sys.modules.get(module_name)
        if type(module) is not ModuleType or is_user_module(module):
            continue
        yield module_name, "", vars(module)
        for name, value in list(vars(module).items()):
            if issubclass(type(value), type) and module_of(value) == module_name:
                yield module_name, f"{name}.", vars(value)


def _numbers() -> Iterator[tuple[str, str, Mapping[str, object]]]:
    """Yield the numbers in libraries that may keep state in modules: module, name, and the namespace that holds it."""
    left_out = FRAMEWORKS | sys.stdlib_module_names
    names = [name for name in sys.modules if name.partition(".")[0] not in left_out]
    kept = (name for name in names if not any(said(name, fact) for fact in ("stateless", "output")))
    for module, before, held in namespaces(kept):
        yield from [(module, f"{before}{name}", held) for name, value in list(held.items()) if type(value) in _NUMBERS]


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _imports_framework(module: ModuleType) -> bool:
    held = (each for each in list(vars(module).values()) if type(each) is ModuleType)
    return any(each.__name__.partition(".")[0] in MODULES for each in held)


_names: Final[dict[int, str]] = {}
"""Names of objects in libraries, by identity: `module:NAME` or `module:Class.NAME`."""


def look_through(package: str) -> None:
    """Note the objects in a package's modules, except a framework's. The first call notes those of all modules: a
    package may hold objects of another package."""
    if _names and package in (*MODULES, "builtins"):
        return
    own = _of_python()
    for module, before, held in namespaces([name for name in sys.modules if not _names or name.partition(".")[0] == package]):
        for name, value in list(held.items()):
            if _is_plain(type(value)) and id(value) not in own and not name.startswith("__"):
                _names[id(value)] = f"{module}:{before}{name}"


def name_in_library(value: object) -> str | None:
    """Return the name under which a library holds an object, in a module or a class; None if no library that has been
    looked through holds it.
    """
    name = _names.get(id(value))
    return name if name is not None and held_in_library(name) is value else None


def held_in_library(name: str) -> object:
    """Return the object that a library holds under such a name, or ABSENT. Nothing is imported, and no code runs."""
    module, qualified = _module(name)
    found = at_name(module, qualified)
    is_held = module is not None and _is_plain(type(found)) and id(found) not in _of_python()
    return found if is_held and not (type(found) in CONTAINERS.values() and _is_of_python(name)) else ABSENT


def give_to_library(name: str, value: object) -> bool:
    """Store an object in a library under a name that is still None, as before the library first needs it. Return
    whether it was stored.
    """
    module, qualified = _module(name)
    before, _, last = qualified.rpartition(".")
    owner: object = at_name(module, before) if before else module
    is_free = at_name(module, qualified) is None and isinstance(owner, ModuleType | type)
    if module is None or _is_of_python(name) or not _is_plain(type(value)) or not is_free:
        return False
    setattr(owner, last, value)
    return True


def _module(name: str) -> tuple[ModuleType | None, str]:
    """Return a library's module and the rest of a name; the module is None if it is no library's, or if Python itself
    uses the name: a file must not be able to set from where a package imports (`__path__`).
    """
    module_name, _, qualified = name.partition(":")
    module = sys.modules.get(module_name)
    is_library = type(module) is ModuleType and not is_user_module(module) and module_name.partition(".")[0] != "detrain"
    return module if is_library and not any(part.startswith("__") for part in qualified.split(".")) else None, qualified


def _is_of_python(name: str) -> bool:
    return name.partition(":")[0].partition(".")[0] in sys.stdlib_module_names


@by_class
def _is_plain(cls: type) -> bool:
    """Return whether objects of a class consist of their attributes, or are mutable containers of Python."""
    is_container = cls in CONTAINERS.values() and cls not in (tuple, frozenset)
    return cls is object or is_container or is_data_class(cls) or is_open(cls)


def _of_python() -> set[int]:
    """Return the identities of the containers in Python's own modules: a file must not be able to fill one."""
    modules = [each for name, each in list(sys.modules.items()) if name.partition(".")[0] in sys.stdlib_module_names]
    held = (value for each in modules if type(each) is ModuleType for value in list(vars(each).values()))
    return {id(value) for value in held if type(value) in CONTAINERS.values()}
