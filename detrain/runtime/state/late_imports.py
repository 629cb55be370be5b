"""Modules that a loop imports: a resumed run starts behind the import and needs them too."""

from __future__ import annotations

import ast
import functools
import importlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from detrain.base.source_files import sources
from detrain.python.inspect.named import main_module


class LateModules:
    """The modules that only loops import."""

    def __init__(self) -> None:
        self._there: set[str] = set()
        self._late: set[str] = set()

    def enter(self) -> None:
        """Note the modules imported so far, as the program enters a loop: a resumed run has them here, too."""
        self._there |= sys.modules.keys() - self._late

    def not_imported(self, classes: Iterable[str]) -> list[str]:
        """Return the classes (`package.module:Class`) that a resumed run cannot find, of those given."""
        late = [name for name in sorted(set(classes)) if _module(name) in sys.modules and _module(name) not in self._there]
        self._late.update(map(_module, late))
        wanted = set(_wanted(late)) if late else set()
        return [name for name in late if _module(name) not in wanted]


def import_late(names: Iterable[str]) -> None:
    """Import the modules that the loop had imported before the checkpoint, but only those that the program's own source
    asks for.

    `names` are modules (`package.module`) and classes (`package.module:Class`). A library may import the module of a
    class when the class is first used (`transformers.GPT2Config`). The source asks for such a class if it imports the
    package and holds the name of the class.
    """
    missing = [name for name in dict.fromkeys(names) if _module(name) not in sys.modules and not name.startswith("__")]
    for module in _wanted(missing) if missing else ():
        importlib.import_module(module)


def _module(name: str) -> str:
    return name.partition(":")[0]


def _wanted(names: Iterable[str]) -> Iterator[str]:
    """Yield the modules of the names that the program's source asks for."""
    imported, words = _asked_for(getattr(main_module(), "__file__", None))
    packages = {name.partition(".")[0] for name in imported}
    for name in names:
        module, _, cls = name.partition(":")
        if module in imported or (module.partition(".")[0] in packages and cls.partition(".")[0] in words):
            yield module


@functools.cache
def _asked_for(entry: str | None) -> tuple[frozenset[str], frozenset[str]]:
    """Return the full names that the program imports, and the names by which it reads attributes or imports things."""
    nodes = [node for _file, tree in sources(Path(entry)) for node in ast.walk(tree)] if entry else []
    return frozenset(name for node in nodes for name in _imports(node)), frozenset(word for node in nodes for word in _words(node))


def _imports(node: ast.AST) -> Iterator[str]:
    """Yield the full names that a statement imports; skip imports relative to its package."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))


def _words(node: ast.AST) -> Iterator[str]:
    """Yield the names by which a node reads an attribute or imports a thing."""
    if isinstance(node, ast.Attribute):
        yield node.attr
    elif isinstance(node, ast.alias):
        yield node.name
