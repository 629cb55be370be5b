"""Versions and entry points of the installed packages, from the installers' notes (`.dist-info`) beside them.

`importlib.metadata` gives the same answers. It is asked only if notes may lie elsewhere than in folders of `sys.path`,
or name a wanted entry point: importing it and having it read all notes would take 20 ms of each start.
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

_VERSION: Final = re.compile(rb"^Version:[ \t]*(\S+)[ \t]*\r?$", re.MULTILINE)


def entry_points(group: str) -> list[EntryPoint]:
    """Return the entry points of a group. Of packages with the same name, the first one on `sys.path` counts."""
    if (notes := _notes()) is not None and not any(group.encode() in _brought(note) for note in notes.values()):
        return []
    from importlib import metadata

    return list(metadata.entry_points(group=group))


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of these packages by their names as given, without those that are not installed."""
    notes = _notes()
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


def _notes() -> dict[str, str] | None:
    """Return the folders of notes by the normalized names of their packages; None if notes may also lie elsewhere."""
    if any(hasattr(finder, "find_distributions") for finder in sys.meta_path if finder is not PathFinder):
        return None
    found: dict[str, str] = {}
    for folder in sys.path:
        if os.path.isfile(folder) or folder.endswith(".egg"):
            return None
        with contextlib.suppress(OSError):
            found = {**_notes_in(folder or os.getcwd(), os.stat(folder or ".").st_mtime_ns), **found}
    return found


@lru_cache(maxsize=64)
def _notes_in(folder: str, _changed_ns: int) -> dict[str, str]:
    notes = [name for name in os.listdir(folder) if name.lower().endswith((".dist-info", ".egg-info"))]
    return {_plain(name.rpartition(".")[0].partition("-")[0]): os.path.join(folder, name) for name in reversed(notes)}


@lru_cache(maxsize=1 << 12)
def _brought(note: str) -> bytes:
    text = _read(note, "entry_points.txt")
    return text if b"detrain." in text else b""


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "_", name).lower()


def _read(folder: str, name: str) -> bytes:
    try:
        file = os.open(f"{folder}/{name}", os.O_RDONLY)
    except OSError:
        return b""
    with open(file, "rb") as opened:
        return opened.read()
