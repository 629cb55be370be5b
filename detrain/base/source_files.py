"""The source files of a program: its entry, and the modules beside it that it imports."""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import os
import re
import sys
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final

from detrain.base.compiled_sources import parse

LIBRARIES: Final = ("site-packages", "dist-packages")
"""Names of folders of libraries. If the program itself is installed in one, only its own package is read there."""
_NOTES: Final = (".dist-info", "RECORD")
"""Suffix of a folder, and the file in it in which an installer lists the files that it has installed beside the folder
(packaging.python.org, "Recording installed projects")."""
_IMPORT: Final = re.compile(rb"^[ \t]*(?:import|from)[ \t]+([A-Za-z_]\w*)", re.MULTILINE)


def sources(entry: Path) -> Iterator[tuple[str, ast.Module]]:
    """Yield path and syntax tree of the entry, and of the modules beside it that it imports, directly or not."""
    entry = entry.resolve()
    waiting, seen = [entry], set()
    folders, later = _import_folders(entry), _later_folders(entry)
    around = next((folder for folder in entry.parents if folder.name in LIBRARIES), None)
    own = entry.anchor if around is None else around / entry.relative_to(around).parts[0]
    while waiting:
        path = waiting.pop()
        if path in seen or not path.is_file() or not path.is_relative_to(own):
            continue
        seen.add(path)
        try:
            tree = parse(path.read_bytes(), str(path))
        except (SyntaxError, ValueError):
            continue
        yield str(path), tree
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                places, names = folders, [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                places = folders
                if node.level:
                    places = [path.parents[node.level - 1]] if node.level <= len(path.parents) else []
                module = node.module or ""
                names = [module, *(f"{module}.{alias.name}".strip(".") for alias in node.names)]
            else:
                continue
            waiting += [file for place in places for name in names for file in _files(place, name)]
            if places is folders:
                waiting += [
                    file for name in names if _is_found_later(folders, name) for place in later for file in _files(place, name)
                ]


def imported_modules(entry: Path) -> set[str]:
    """Return the top-level names of all modules that a program, or a module beside it, imports."""
    return imported_in(tree for _file, tree in sources(entry))


def imported_in(trees: Iterable[ast.Module]) -> set[str]:
    """Return the top-level names of all modules that these sources import."""
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    return {name.partition(".")[0] for name in names}


def holds_libraries(folder: str) -> bool:
    """Return whether a folder holds libraries: it has such a name, or it is on `sys.path` and an installer has left its
    notes there.
    """
    return os.path.basename(folder) in LIBRARIES or folder in _noted_folders(tuple(sys.path))


@lru_cache(maxsize=8)
def _noted_folders(of: tuple[str, ...]) -> frozenset[str]:
    return frozenset(os.path.realpath(folder) for folder in of if folder and _has_notes(folder))


def _has_notes(folder: str) -> bool:
    try:
        names = [name for name in os.listdir(folder) if name.endswith(_NOTES[0])]
    except OSError:
        return False
    return any(os.path.exists(os.path.join(folder, name, _NOTES[1])) for name in names)


def imported_by_libraries(names: set[str]) -> set[str]:
    """Return the top-level names of the modules that the installed libraries among `names` import, found in their text:
    a program may import a framework only through a library.
    """
    found: set[str] = set()
    for name in names - sys.stdlib_module_names:
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            continue
        places = [] if spec is None else [spec.origin or "", *(spec.submodule_search_locations or ())]
        for place in {path for each in places if any(map(holds_libraries, map(str, (path := Path(each)).parents)))}:
            for file in place.rglob("*.py") if place.is_dir() else [place] * (place.suffix == ".py"):
                found |= {each.decode() for each in _IMPORT.findall(file.read_bytes())}
    return found


def _import_folders(entry: Path) -> list[Path]:
    """Return the folders in which absolute imports start: the entry's, and those around the packages it is in."""
    folders = [entry.parent]
    while (folders[-1] / "__init__.py").is_file():
        folders.append(folders[-1].parent)
    return folders


def _later_folders(entry: Path) -> list[Path]:
    """Return the folders to search for a module that is neither in the import folders nor installed.

    With `-m`, and often with PYTHONPATH, modules come from the current folder; programs add the folder above the
    entry's to `sys.path`.
    """
    here = Path.cwd()
    return list(dict.fromkeys([*([here] if here in entry.parents else []), entry.parent.parent]))


def _is_found_later(folders: list[Path], name: str) -> bool:
    top = name.partition(".")[0]
    is_here = any((folder / top).exists() or (folder / f"{top}.py").exists() for folder in folders)
    return bool(top) and not is_here and not _is_installed(top)


@lru_cache(maxsize=1024)
def _is_installed(top: str) -> bool:
    if top in sys.stdlib_module_names or top == __name__.partition(".")[0]:
        return True
    found = importlib.machinery.PathFinder.find_spec(top, [folder for folder in sys.path if holds_libraries(folder)])
    return found is not None


def _files(folder: Path, name: str) -> list[Path]:
    base = folder.joinpath(*name.split("."))
    return [base.with_suffix(".py"), base / "__init__.py"] if name else []
