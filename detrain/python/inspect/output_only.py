"""What a resumed run goes on without: objects that show or record what a program does, and readers of files.

What they are decides, never how the program uses them: a schedule that is only told `step()` sets the learning rate. A
reader is one that gives for each question what lies in a file; it does not matter how often it was asked. Which classes
are such, the table of libraries says.
"""

from __future__ import annotations

import logging.handlers
import sys
import zipfile
from typing import Any

import numpy as np

from detrain.base.libraries import libraries, said
from detrain.python.inspect.names import module_of


def is_output_only(value: Any) -> bool:
    """Return whether an object only shows or records what a program does, or reads a file that nobody writes."""
    cls = type(value)  # `isinstance` asks the object itself, which may say what it likes
    if issubclass(cls, logging.handlers.MemoryHandler):
        return False  # what it holds is still to be written
    output = said(module_of(cls), "output")
    return bool(output) or (output is None and _is_reader(value))


def _is_reader(value: Any) -> bool:
    cls = type(value)
    if issubclass(cls, zipfile.ZipFile | np.memmap):
        return bool(value.mode == "r")
    kinds = [getattr(sys.modules.get(module), name, None) for module, each in libraries().items() for name in each.readers]
    if not any(isinstance(kind, type) and issubclass(cls, kind) for kind in kinds):
        return False
    try:
        return not hasattr(value, "flags") or bool(value.flags()["readonly"])  # an environment of LMDB
    except Exception:  # an edge: an extension's; it is closed
        return True
