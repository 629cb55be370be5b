"""Objects that a resumed run does without: those that only show or record the program's work, and readers of files.

An object's class decides, never its use: a schedule on which the program only calls `step()` sets the learning rate. A
reader answers each question from a file, however often it was asked before. The table of libraries names the classes.
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
    """Return whether an object only shows or records the program's work, or only reads a file."""
    output = _said_of(type(value))  # `isinstance` asks the object itself, which may give any answer
    return output if output is not None else _is_reader(value)


def only_shows(value: object) -> bool:
    """Return whether an object only shows or records the program's work: a figure and all that is drawn in it."""
    return _said_of(type(value)) is True


def only_reads(value: object) -> bool:
    """Return whether an object is no output, but may be a reader: a program opens it anew if it is missing."""
    return _said_of(type(value)) is None


@by_class
def _said_of(cls: type) -> bool | None:
    """Return whether objects of a class are output only; None if each object must be looked at."""
    if cls is types.TracebackType:
        return True  # it only shows the place of an error
    if issubclass(cls, logging.handlers.MemoryHandler):
        return False  # its records are still to be written
    for base in cls.__mro__:
        entry(module_of(base))  # reads the package's own file of facts
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
        if module_of(type(value)).startswith("h5py."):
            return bool(value.file.mode == "r")
        if type(value).__name__ == "Transaction":
            return _is_refused_writing(value)
        return not hasattr(value, "flags") or bool(value.flags()["readonly"])  # an environment of LMDB
    except Exception:  # an edge: an extension's code; the environment or file is closed
        return True


def _is_refused_writing(transaction: Any) -> bool:
    """Return whether a transaction of LMDB only reads. None says so; but LMDB refuses a deletion for this before it
    looks at the key, and it refuses an empty key in any case.
    """
    try:
        transaction.delete(b"")
    except Exception as error:  # an edge: an extension's code
        return type(error).__name__ == "ReadonlyError"
    return False
