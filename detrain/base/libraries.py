"""What detrain knows of libraries by their names alone: one table, `libraries.toml`, which says what its words mean.

Whatever asks about a library asks here. A package adds to the table by a file of its own. Both are data.
"""

from __future__ import annotations

import dataclasses
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Literal

from detrain.base.errors import FrameworkUnsupported

_BESIDE: Final = "detrain.toml"
"""The name of a package's own file, which lies beside its `__init__.py`."""


@dataclasses.dataclass(frozen=True, slots=True)
class Library:
    """What is said of one module of a library, and of those below it. None: a shorter name answers."""

    output: bool | Literal["records"] | None = None
    processes: Sequence[str] = ()
    readers: Sequence[str] = ()
    stateless: bool | None = None
    still: bool | None = None
    reduced: bool | None = None
    last_use: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    made: Mapping[str, Mapping[str, int]] = dataclasses.field(default_factory=dict)
    answers: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    listed: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    computed: bool | None = None
    compiled: bool | None = None
    caches: Sequence[Sequence[str]] = ()
    unseen: Sequence[str] = ()
    names: bool | None = None
    apart: bool | None = None


_NOTHING: Final = Library()
_WORDS: Final = frozenset(each.name for each in dataclasses.fields(Library))
_table: Final = {name: Library(**each) for name, each in tomllib.loads(Path(__file__).with_suffix(".toml").read_text()).items()}
_asked: Final = {"detrain"}
"""Packages whose own files have been looked for."""


def libraries() -> dict[str, Library]:
    """Return the table, with what those packages say that have been asked about so far."""
    return _table


def entry(module: str) -> Library:
    """Return what is said of a module by its own name.

    Raises FrameworkUnsupported where the file of the module's package is not in the form of the table.
    """
    top = module.partition(".")[0]
    if top not in _asked and top in sys.modules:
        _asked.add(top)
        _table.update(_of_package(top))
    return _table.get(module, _NOTHING)


def said(module: str, fact: str) -> Any:
    """Return what the longest name that a module begins with says of a fact, None if none does."""
    while module:
        found = getattr(entry(module), fact)
        if found is not None:
            return found
        module = module.rpartition(".")[0]
    return None


def saying(fact: str) -> frozenset[str]:
    """Return the names of the table of which a fact holds."""
    return frozenset(name for name, each in _table.items() if getattr(each, fact))


def _of_package(top: str) -> dict[str, Library]:
    """Return what a package says of itself."""
    module: Any = sys.modules[top]
    # Past a `__getattr__` of the module's own, which may import what the program has not.
    held = ModuleType.__getattribute__(module, "__dict__") if isinstance(module, ModuleType) else {}
    folders = list(held.get("__path__", ()))
    file = Path(folders[0], _BESIDE) if folders else None
    if file is None or not file.is_file():
        return {}
    import msgspec  # detrain's own table has been looked at by its test

    try:
        table = msgspec.toml.decode(file.read_bytes(), type=dict[str, dict[str, Any]])
        found = msgspec.convert(table, dict[str, Library])
    except (OSError, msgspec.DecodeError) as error:
        raise _unfit(file, str(error)) from error
    for name, each in table.items():
        if name.partition(".")[0] != top:
            raise _unfit(file, f"it speaks of {name!r}, which is not of the package {top!r}")
        if not each.keys() <= _WORDS:
            raise _unfit(file, f"{name!r} has {min(each.keys() - _WORDS)!r}, which is none of its words")
    return found


def _unfit(file: Path, reason: str) -> FrameworkUnsupported:
    return FrameworkUnsupported(
        f"{str(file)!r} does not say of its package what detrain asks: {reason}",
        "put it right: docs/reference/libraries.md has the words; or take the file away",
    )
