"""Facts about libraries, by the names of their modules: one table, `libraries.toml`, which explains its own words.

All code that needs a fact about a library asks here. A package can add to the table by its own file. Both are data.
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
"""The name of a package's own file with facts, which lies beside its `__init__.py`."""


@dataclasses.dataclass(frozen=True, slots=True)
class Library:
    """The facts about one module of a library and the modules below it. None: the entry of a parent module decides."""

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
"""Packages of which detrain has already looked for the file."""


def libraries() -> dict[str, Library]:
    """Return the table, with the entries of all packages that were asked about so far."""
    return _table


def entry(module: str) -> Library:
    """Return the entry for exactly this module; an empty one if there is none.

    Raises FrameworkUnsupported if the file of the module's package does not have the form of the table.
    """
    top = module.partition(".")[0]
    if top not in _asked and top in sys.modules:
        _asked.add(top)
        _table.update(_of_package(top))
    return _table.get(module, _NOTHING)


def said(module: str, fact: str) -> Any:
    """Return a fact about a module: that of the module, else of its nearest parent that states it, else None."""
    while module:
        found = getattr(entry(module), fact)
        if found is not None:
            return found
        module = module.rpartition(".")[0]
    return None


def saying(fact: str) -> frozenset[str]:
    """Return the names in the table for which a fact is set."""
    return frozenset(name for name, each in _table.items() if getattr(each, fact))


def _of_package(top: str) -> dict[str, Library]:
    """Return the entries in a package's own file; none if it has no file."""
    module: Any = sys.modules[top]
    # Without a `__getattr__` of the module: it may import modules that the program has not imported.
    held = ModuleType.__getattribute__(module, "__dict__") if isinstance(module, ModuleType) else {}
    folders = list(held.get("__path__", ()))
    file = Path(folders[0], _BESIDE) if folders else None
    if file is None or not file.is_file():
        return {}
    import msgspec  # detrain's own table needs no check: a test checks it

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
