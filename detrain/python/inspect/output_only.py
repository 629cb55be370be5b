"""What a resumed run goes on without: objects that show or record what a program does, and readers of files.

What they are decides, never how the program uses them: a schedule that is only told `step()` sets the learning rate. A
reader is one that gives for each question what lies in a file; it does not matter how often it was asked. Which classes
are such, the table of libraries says.
"""

from __future__ import annotations

import logging.handlers
import sys
import types
import zipfile
from typing import Any

import numpy as np

from detrain.base.libraries import entry, libraries, said
from detrain.python.inspect.names import by_class, module_of


def is_output_only(value: Any) -> bool:
    """Return whether an object only shows or records what a program does, or reads a file that nobody writes."""
    output = _said_of(type(value))  # `isinstance` asks the object itself, which may say what it likes
    return output if output is not None else _is_reader(value)


def only_reads(value: object) -> bool:
    """Return whether an object is no output, but may be a reader: a program opens it where it is not there."""
    return _said_of(type(value)) is None


@by_class
def _said_of(cls: type) -> bool | None:
    """Return whether objects of a class are output only; None where each has to be looked at."""
    if cls is types.TracebackType:
        return True  # it shows where an error was
    if issubclass(cls, logging.handlers.MemoryHandler):
        return False  # what it holds is still to be written
    for base in cls.__mro__:
        entry(module_of(base))  # a package's own file is read once the package is asked about
    output = said(module_of(cls), "output")
    if output is not None:
        return bool(output)
    readers = [getattr(sys.modules.get(module), name, None) for module, each in libraries().items() for name in each.readers]
    kinds = (zipfile.ZipFile, np.memmap, *(kind for kind in readers if isinstance(kind, type)))
    return None if issubclass(cls, kinds) else False


def _is_reader(value: Any) -> bool:
    if issubclass(type(value), zipfile.ZipFile | np.memmap):
        return bool(value.mode == "r")
    try:
        return not hasattr(value, "flags") or bool(value.flags()["readonly"])  # an environment of LMDB
    except Exception:  # an edge: an extension's; it is closed
        return True
