"""The table of adapters, each imported when the program imports its framework; and frameworks that have no adapter: a
run that trains with one is refused, at the latest at its first checkpoint, as detrain cannot read its state.
"""

from __future__ import annotations

import re
import sys
from importlib import import_module
from types import ModuleType
from typing import Any, Final

from detrain.adapters.api import Adapter, Settings
from detrain.base import keras_backend
from detrain.base.errors import FrameworkUnsupported
from detrain.base.framework_names import FRAMEWORKS, KNOWN, NAMES, FrameworkNames
from detrain.python.inspect.named import user_modules
from detrain.python.process.random_streams import Streams

ADAPTERS: Final = {each.imported: each for each in FRAMEWORKS}
"""The frameworks that have an adapter, each by the module that the program imports."""
FOLLOWED: Final = tuple(module for each in FRAMEWORKS for module in each.followed)
"""Other modules: the adapters are told when the program has imported one."""

FOREIGN: Final = ("mlx", "mindspore", "mxnet", "paddle", "tinygrad")
_TODO: Final = f"train with {NAMES}, or run the program with --bare: deterministic settings, no checkpoints"
left_out: Final[list[str]] = []
"""Frameworks that another framework has imported, and that the program's source does not import."""


def make(name: str, settings: Settings, streams: Streams) -> Adapter:
    """Return the adapter of a framework that has just been imported. Raises FrameworkUnsupported."""
    framework = ADAPTERS[name]
    _check_version(framework)
    module, made_by = framework.adapter
    adapter: Adapter = getattr(import_module(module), made_by)(settings, streams)
    return adapter


def _check_version(framework: FrameworkNames) -> None:
    """Raise FrameworkUnsupported if the adapter does not know the imported version."""
    imported = str(sys.modules[framework.imported].__version__)
    low, (major, minor) = framework.versions
    if low <= tuple(int(part) for part in re.findall(r"\d+", imported)[:2]) < (major, minor):
        return
    last = (major, minor - 1)
    known = ".".join(map(str, low)) + ("" if low == last else f" to {major}.{minor - 1}")
    wanted = f"{framework.imported}>={low[0]}.{low[1]},<{major}.{minor}"
    raise FrameworkUnsupported(
        f"{framework.name} {imported} is not supported: this detrain knows {known}",
        f"install {wanted} (the extra `detrain[{framework.imported}]`)",
    )


def imported() -> list[str]:
    """Return the names of frameworks without an adapter that the process has imported."""
    return [name for name in FOREIGN if name in sys.modules]


def check_training(*, has_updates: bool) -> list[str]:
    """Return a description of the state of frameworks without an adapter that a loop's checkpoint does not hold.
    `has_updates`: the loop has updated weights of a framework that detrain knows.

    Raises FrameworkUnsupported if only a framework without an adapter can have trained in the loop.
    """
    names = imported()
    used = next((name for name in left_out if any(_is_of(name, each) for each in user_modules().values())), "")
    if used:
        raise FrameworkUnsupported(
            f"the program uses {used}, which its source does not import and another framework has imported before it",
            f"write `import {used}` at the top of the program",
        )
    if names and not has_updates:
        raise FrameworkUnsupported(
            f"the loop has updated no weights of {NAMES}, and the program uses {' and '.join(names)}, "
            "whose weights no checkpoint holds yet",
            _TODO,
        )
    return [f"{name} (its tensors, models and random streams)" for name in names]


def _is_of(name: str, module: Any) -> bool:
    family = next(each.modules for each in KNOWN if name in each.modules)
    family = family if keras_backend.in_process() == name else family - {"keras"}
    held = (each for each in list(vars(module).values()) if isinstance(each, ModuleType))
    return any(each.__name__.partition(".")[0] in family for each in held)


def check_keras() -> None:
    """Raise FrameworkUnsupported if Keras, which was imported, computes with a framework that has no adapter."""
    backend = keras_backend.in_process()
    if not any(backend == each.imported for each in KNOWN):
        raise FrameworkUnsupported(f"Keras runs on {backend!r} here (KERAS_BACKEND), whose weights no checkpoint holds yet", _TODO)
