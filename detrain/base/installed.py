"""What is installed, as the notes of installers beside the packages say: versions, and entry points.

`importlib.metadata` says the same, and is asked where notes may lie elsewhere than in folders of `sys.path`, or name an
entry point that is asked for. To import it and have it read all notes takes 20 ms of each start.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterable
from functools import lru_cache
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_Path = tuple[tuple[str, int], ...]
_VERSION: Final = re.compile(rb"^Version:[ \t]*(\S+)[ \t]*\r?$", re.MULTILINE)


def entry_points(group: str) -> list[EntryPoint]:
    """Return what installed packages bring for a group, each package's as the first of its name on the path does."""
    if group.encode() not in _brought(_path()):
        return []
    from importlib import metadata

    return list(metadata.entry_points(group=group))


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of those among these packages that are installed, by the name that was given."""
    notes = _notes(_path())
    found = {}
    for package in packages:
        note = None if notes is None else notes.get(_plain(package), "")
        version = _VERSION.search(_read(note, "METADATA") or _read(note, "PKG-INFO")) if note else None
        if version is not None:
            found[package] = version[1].decode()
        elif note != "":
            from importlib import metadata

            with contextlib.suppress(metadata.PackageNotFoundError):
                found[package] = metadata.version(package)
    return found


def _path() -> _Path:
    """Return the folders where notes lie, and when something was last put into them or taken out."""
    return tuple((folder, os.stat(folder or ".").st_mtime_ns if os.path.exists(folder or ".") else 0) for folder in sys.path)


@lru_cache(maxsize=1)
def _notes(path: _Path) -> dict[str, str] | None:
    """Return the folders of notes by the plain names of their packages; None where notes may lie elsewhere, too."""
    if any(hasattr(finder, "find_distributions") for finder in sys.meta_path if finder is not PathFinder):
        return None
    found: dict[str, str] = {}
    for folder, _time in path:
        if os.path.isfile(folder) or folder.endswith(".egg"):
            return None
        with contextlib.suppress(OSError):
            for name in os.listdir(folder or "."):
                if name.lower().endswith((".dist-info", ".egg-info")):
                    found.setdefault(_plain(name.rpartition(".")[0].partition("-")[0]), os.path.join(folder, name))
    return found


@lru_cache(maxsize=1)
def _brought(path: _Path) -> bytes:
    """Return the text of all entry points that may be detrain's; where not all are seen, what leads to any group."""
    notes = _notes(path)
    if notes is None:
        return b"detrain.frameworks detrain.reducers detrain.fault_models"
    return b"".join(text for text in (_read(note, "entry_points.txt") for note in notes.values()) if b"detrain." in text)


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "_", name).lower()


def _read(folder: str, name: str) -> bytes:
    try:
        file = os.open(f"{folder}/{name}", os.O_RDONLY)
    except OSError:
        return b""
    with open(file, "rb") as opened:
        return opened.read()
