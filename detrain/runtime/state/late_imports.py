"""Modules that a loop imports: a resumed run, which begins behind that, needs them too."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from detrain.base.source_files import sources


def import_late(names: Iterable[str]) -> None:
    """Import modules that the loop had imported before the checkpoint: those alone that the program's own source asks
    for.

    `names` are modules (`package.module`), and classes (`package.module:Class`), whose module a library imports when
    the class is first used (`transformers.GPT2Config`). The source asks for such a class if it imports the package and
    holds the name of the class.
    """
    missing = [name for name in dict.fromkeys(names) if name.partition(":")[0] not in sys.modules and not name.startswith("__")]
    entry = getattr(sys.modules["__main__"], "__file__", None)
    if not missing or not entry:
        return
    nodes = [node for _file, tree in sources(Path(entry)) for node in ast.walk(tree)]
    imported = {name for node in nodes for name in _imports(node)}
    packages = {name.partition(".")[0] for name in imported}
    words = {word for node in nodes for word in _words(node)}
    for name in missing:
        module, _, cls = name.partition(":")
        is_used = module.partition(".")[0] in packages and cls.partition(".")[0] in words
        if module in imported or is_used:
            importlib.import_module(module)


def _imports(node: ast.AST) -> Iterator[str]:
    """Yield the full names of what a statement imports, but for imports relative to its package."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))


def _words(node: ast.AST) -> Iterator[str]:
    """Yield the names under which a node reads an attribute or imports a thing."""
    if isinstance(node, ast.Attribute):
        yield node.attr
    elif isinstance(node, ast.alias):
        yield node.name
