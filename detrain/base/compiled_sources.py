"""The source that is executed: what a file held when Python compiled it, whatever is written into it while the program
runs.

All that detrain asks of a source (its digest, where its loops are, which code a function has) it asks of these bytes,
and so do `inspect` and AutoGraph, through `linecache`. Bytecode files are not taken for the user's modules: by the time
and size of a source they may be of an earlier one.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import linecache
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

Found = TypeVar("Found")

_sources: Final[dict[str, bytes]] = {}
parts: Final[dict[str, bytes]] = {}
"""What a program is made of that are no files: a notebook's cells, by their names."""
_caches: Final[list[Callable[[], None]]] = []


def by_file(function: Callable[[str], Found]) -> Callable[[str], Found]:
    """Have what a function says of a source file said again, until the file is kept with other content: a notebook's
    grows.
    """
    cached = functools.cache(function)
    _caches.append(cached.cache_clear)
    return functools.wraps(function)(cached)


def keep(file: str, data: bytes) -> None:
    """Note what a file holds that is about to be executed."""
    if _sources.get(file, data) != data:
        for clear in _caches:
            clear()
    _sources[file] = data
    try:
        lines = importlib.util.decode_source(data).splitlines(keepends=True)
    except (SyntaxError, UnicodeDecodeError):
        return
    linecache.cache[file] = (len(data), None, lines, file)  # without a time, `checkcache` leaves it as it is


def is_executed(file: str) -> bool:
    """Return whether the source of a file is known."""
    return file in _sources


def source_of(file: str) -> bytes:
    """Return the source of a file as it was executed; what is there now, where that was not seen. Raises OSError."""
    data = _sources.get(file)
    if data is None:
        data = _sources[file] = Path(file).read_bytes()
    return data


def parse(source: bytes | str, filename: str = "<unknown>") -> ast.Module:
    """Return the syntax tree of a source.

    Raises SyntaxError and ValueError as `ast.parse` does, but no warning (`"\\d"`): Python gives it once, as it runs.
    """
    with warnings.catch_warnings(action="ignore"):
        return ast.parse(source, filename)


def tree_of(file: str) -> ast.Module:
    """Return the syntax tree of a file as it was executed; an empty one for a file that cannot be read or parsed."""
    try:
        return parse(source_of(file))
    except (OSError, SyntaxError, ValueError):
        return ast.Module([], [])
