"""The adapters, and the modules whose import calls for them.

An adapter is imported when the program imports its framework.
"""

from __future__ import annotations

import re
import sys
from importlib import import_module
from typing import Final

from detrain.adapters.api import Adapter, Settings
from detrain.base.errors import FrameworkUnsupported
from detrain.base.framework_names import FRAMEWORKS, FrameworkNames
from detrain.python.process.random_streams import Streams

ADAPTERS: Final = {each.imported: each for each in FRAMEWORKS}
"""The frameworks that have an adapter, by the module whose import brings them in."""
FOLLOWED: Final = tuple(module for each in FRAMEWORKS for module in each.followed)
"""Other modules of whose import the adapters are told."""


def make(name: str, settings: Settings, streams: Streams) -> Adapter:
    """Return the adapter of a framework, which has just been imported. Raises FrameworkUnsupported."""
    framework = ADAPTERS[name]
    _check_version(framework)
    module, made_by = framework.adapter
    adapter: Adapter = getattr(import_module(module), made_by)(settings, streams)
    return adapter


def _check_version(framework: FrameworkNames) -> None:
    """Raise FrameworkUnsupported where the adapter does not know the version that has been imported."""
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
