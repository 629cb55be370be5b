"""Modules that a loop imports: a resumed run, which begins behind that, needs them too."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from detrain.base.source_files import sources


def import_late(names: Iterable[str]) -> None:
    """Import modules that the loop had imported before the checkpoint: those alone that the program's own source says
    to import.
    """
    missing = [name for name in names if name not in sys.modules and not name.startswith("__")]
    entry = getattr(sys.modules["__main__"], "__file__", None)
    if missing and entry:
        imported = {name for _file, tree in sources(Path(entry)) for name in _imports(tree)}
        for name in missing:
            if name in imported:
                importlib.import_module(name)


def _imports(tree: ast.AST) -> Iterator[str]:
    """Yield the full names of what a source imports, but for imports relative to its package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
