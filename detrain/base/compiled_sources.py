"""The source that is executed: the bytes of a file when Python compiled it, even if the file is written to while the
program runs.

All questions of detrain about a source (its digest, where its loops are, which code a function has) are answered from
these bytes, and so are those of `inspect` and AutoGraph, through `linecache`. Bytecode files are not used for the
user's modules: Python checks only the time and size of the source, so they may belong to an earlier source.
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
"""Sources of the program that lie in no file: the cells of a notebook, by their names."""
_caches: Final[list[Callable[[], None]]] = []


def by_file(function: Callable[[str], Found]) -> Callable[[str], Found]:
    """Cache a function's results by source file, until `keep` is called for a file with other content: the file of a
    notebook grows.
    """
    cached = functools.cache(function)
    _caches.append(cached.cache_clear)
    return functools.wraps(function)(cached)


def keep(file: str, data: bytes) -> None:
    """Keep the content of a file that is about to be executed."""
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
    """Return whether detrain has kept the source of a file."""
    return file in _sources


def source_of(file: str) -> bytes:
    """Return the source of a file as it was executed, else the content that it has now. Raises OSError."""
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
