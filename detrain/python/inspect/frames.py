"""The user's frames between a probe and the entry of the program, and access to their locals.

CPython can write the locals of a frame that is suspended in a call: from 3.13 on through `f_locals` (PEP 667), before
that by `PyFrame_LocalsToFast`, as debuggers do. So the rewriter need not insert assignments, and detrain can restore
callers' locals, too.

Before 3.13 a frame keeps one dict of its locals, and each read of `f_locals` updates it to their values now: the
program's own `config = locals()` would change, and the dict would keep values alive (a loader of the epoch before, with
its buffers). So detrain gives the frame another dict while it reads or writes them.
"""

from __future__ import annotations

import contextlib
import ctypes
import dis
import inspect
import os
import re
import site
import sys
import sysconfig
import threading
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from types import CellType, CodeType, FrameType, FunctionType
from typing import Any, Final

from detrain.base import PACKAGE
from detrain.base.libraries import libraries
from detrain.base.source_files import LIBRARIES, holds_libraries
from detrain.python.inspect.live_names import live_names, may_read_any_global, names_read_by_functions

_WRITES_THROUGH: Final = sys.version_info >= (3, 13)
_POINTER: Final = ctypes.sizeof(ctypes.c_void_p)
_INNER_FRAME: Final = 24
"""Offset in bytes of the pointer from a `PyFrameObject` (Include/internal/pycore_frame.h) to `_PyInterpreterFrame`."""
_LOCALS: Final = {(3, 11): 24, (3, 12): 40, (3, 13): 40, (3, 14): 40}
"""Offset in bytes of the dict of locals in CPython's `_PyInterpreterFrame`, by version."""
_VALUES: Final = 80 if sys.version_info >= (3, 14) else 72
"""Offset in bytes of the values of its variables: locals, then cells that are no arguments, then cells of enclosing
functions."""
_TAG: Final = 3 if sys.version_info >= (3, 14) else 0
"""Bits of a value that are no address: from 3.14 on, the lowest one says that the frame does not own the object."""
_UNBOUND: Final = 1 if sys.version_info >= (3, 14) else None
"""A variable's value while it is not bound (`PyStackRef_NULL`, Include/internal/pycore_stackref.h)."""

_BESIDE: Final = "__pycache__"
"""Folder of files that are compiled from the source beside it: by Python itself, numba and cffi."""


@lru_cache(maxsize=1)
def _library_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    folders = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders.update(site.getsitepackages())
    folders.add(site.getusersitepackages())
    folders.add(str(PACKAGE))
    return tuple(sorted(str(Path(folder).resolve()) + "/" for folder in folders))


@lru_cache(maxsize=1 << 14)
def _library_around(folder: str, path: tuple[str, ...]) -> str:
    """Return the folder of libraries that is this folder or contains it, ending with a slash; else an empty text.

    Folders of libraries of another environment, put on `path` by a .pth file, PYTHONPATH or a link, are known by their
    names or by an installer's notes in them. Notes do not count if the program lies in the folder, too.
    """
    parent, name = os.path.split(folder)
    is_told = (name in LIBRARIES or not _is_at(_entry[0], folder)) and holds_libraries(folder)
    if is_told or f"{folder}/" in _library_folders():
        return f"{folder}/"
    return "" if parent == folder else _library_around(parent, path)


@lru_cache(maxsize=1 << 14)
def _without_links(folder: str) -> str:
    """Return `os.path.realpath` of a folder; each folder on its path is checked only once."""
    parent, name = os.path.split(folder)
    if not name or not os.path.isabs(folder) or os.path.normpath(folder) != folder or os.path.islink(folder):
        return os.path.realpath(folder)
    return os.path.join(_without_links(parent), name)


_program: list[str] = []
_entry: list[str] = [""]


def set_program(entry: str, loops: Iterable[str] = ()) -> None:
    """Set the program's entry, and the files of its training loops. What of these is installed among libraries (`-m
    PACKAGE.MODULE`; a library that trains for the program) counts as the user's, with its package, or as one file.
    """
    _entry[:] = [os.path.dirname(os.path.realpath(entry))]
    _library_around.cache_clear()
    _program[:] = filter(None, map(installed_package, (entry, *loops)))
    is_user_file.cache_clear()
    _is_user_folder.cache_clear()


def installed_package(file: str) -> str:
    """Return the folder of the package of a file, or the file itself, if it is installed among libraries; else an empty
    text.
    """
    path = os.path.realpath(file)
    library = _library_around(os.path.dirname(path), tuple(sys.path))
    return library + path.removeprefix(library).partition("/")[0] if library else ""


def is_of_package(file: str, package: str) -> bool:
    """Return whether a file lies in an installed package, or is it."""
    return bool(package) and _is_at(os.path.realpath(file), package)


_notebook: list[str] = []
_OF_THE_KERNEL: Final = re.compile(r"In|Out|get_ipython|exit|quit|_ih|_oh|_dh|_i{1,3}|_i\d+")
"""Matches IPython's own names in a notebook's namespace."""


def set_notebook(file: str) -> None:
    """Set the program to be a notebook. Its cells are appended to this file as they run."""
    _notebook[:] = [file]


def is_notebook() -> bool:
    """Return whether the program is a notebook: it is unknown which names later cells will read."""
    return bool(_notebook)


def is_of_kernel(name: str) -> bool:
    """Return whether a name in a notebook's namespace belongs to the kernel, and is no state of the program."""
    return bool(_notebook) and _OF_THE_KERNEL.fullmatch(name) is not None


@lru_cache(maxsize=1 << 16)
def is_user_file(filename: str) -> bool:
    """Return whether a file is the user's: it does not belong to Python, an installed library, a library's cache or
    detrain, and is no file of the kernel about processes and devices.
    """
    if not filename or filename.startswith("<") or "__autograph_generated_file" in filename:
        return False
    return _is_user_folder(os.path.dirname(filename)) or any(_is_at(os.path.realpath(filename), place) for place in _program)


def _is_at(path: str, place: str) -> bool:
    return path == place or path.startswith(place + "/")


@lru_cache(maxsize=1 << 14)
def _is_user_folder(folder: str) -> bool:
    path = _without_links(folder)
    if any(_is_at(path, place) for place in _PSEUDO_FILES):
        return False
    return not _library_around(path, tuple(sys.path)) and not is_of_cache(path, _entry[0])


def has_user_code(function: object) -> bool:
    """Return whether a function is the user's, or is a library's wrapper around one, as a decorator returns it."""
    for _ in range(_MOST_DECORATORS):
        if not isinstance(function, FunctionType):
            return False
        if is_user_file(function.__code__.co_filename):
            return True
        function = vars(function).get("__wrapped__")
    return False


_PSEUDO_FILES: Final = ("/proc", "/sys")
_MOST_DECORATORS: Final = 16
_adopted: set[CodeType] = set()


def adopt(code: CodeType) -> None:
    """Count the frames of a library's function as the user's: it runs the training loop for the program."""
    _adopted.add(code)


def frames_of_others() -> dict[int, FrameType]:
    """Return the innermost frames of the other threads, by thread number. A reference to this thread's frame would be a
    cycle, and objects in it, such as an iterator that a `break` drops, would live on.
    """
    frames = sys._current_frames()
    del frames[threading.get_ident()]
    return frames


def outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame, its caller, and so on; nothing for None."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def user_frames(innermost: FrameType) -> list[FrameType]:
    """Return the user's frames, innermost first, without frames of libraries between them."""
    return [each for each in outwards(innermost) if is_user_file(each.f_code.co_filename) or each.f_code in _adopted]


def catches(frame: FrameType) -> bool:
    """Return whether a frame is now inside of a `try` or `with`, which may catch an exception."""
    entries = getattr(dis.Bytecode(frame.f_code), "exception_entries", ())
    return any(entry.start <= frame.f_lasti < entry.end for entry in entries)


def _slot(frame: FrameType, offset: int) -> ctypes.c_void_p:
    inner = ctypes.c_void_p.from_address(id(frame) + _INNER_FRAME).value or 0
    return ctypes.c_void_p.from_address(inner + offset)


def _value_at(frame: FrameType, place: int) -> int | None:
    """Return the address of the object that a frame's variable is bound to, None for an unbound one."""
    return (_slot(frame, _VALUES + place * _POINTER).value or 0) & ~_TAG or None


@lru_cache(maxsize=1)
def has_known_frames() -> bool:
    """Return whether frames in memory have the layout that this module assumes."""
    if sys.implementation.name != "cpython" or sys.version_info[:2] not in _LOCALS or object.__basicsize__ != 16:
        return False
    return _has_known_variables(object(), object()) and (_WRITES_THROUGH or _has_known_locals())


def _has_known_variables(first: object, second: object, unbound: object = None) -> bool:
    del unbound
    frame = sys._getframe()
    found = [_value_at(frame, place) for place in range(3)]
    is_so = found == [id(first), id(second), None] and _slot(frame, _VALUES + 2 * _POINTER).value == _UNBOUND
    del frame  # it refers to itself and to all callers: their objects would live on
    return is_so


def _has_known_locals() -> bool:
    frame = sys._getframe()
    slot = _slot(frame, _LOCALS[sys.version_info[:2]])
    is_so = slot.value is None and slot.value != id(frame.f_locals) == slot.value
    frame.f_locals.clear()
    del frame
    return is_so


@contextlib.contextmanager
def _locals_apart(frame: FrameType) -> Iterator[dict[str, object]]:
    """Yield the locals of a frame, for a function in a separate dict: the dict that the frame had keeps its content."""
    if not (frame.f_code.co_flags & inspect.CO_OPTIMIZED and has_known_frames()):
        yield frame.f_locals
        return
    slot = _slot(frame, _LOCALS[sys.version_info[:2]])
    theirs, slot.value = slot.value, None
    try:
        yield frame.f_locals
    finally:
        ours, slot.value = slot.value, theirs
        if ours is not None:
            ctypes.pythonapi.Py_DecRef(ctypes.c_void_p(ours))


def cells_of(frame: FrameType) -> dict[str, CellType] | None:
    """Return the cells of a frame's closure variables by name, its own and those of enclosing functions.

    None if they cannot be read, because this CPython has another layout of frames.
    """
    code = frame.f_code
    if not (code.co_cellvars or code.co_freevars):
        return {}
    if not has_known_frames():
        return None
    own = [name for name in code.co_cellvars if name not in code.co_varnames]
    found, bound = {}, names_of(frame)
    for place, name in enumerate((*code.co_varnames, *own, *code.co_freevars)):
        if name not in code.co_cellvars and name not in code.co_freevars:
            continue
        held = _value_at(frame, place)
        if not held or ctypes.c_void_p.from_address(held + _POINTER).value != id(CellType):
            return None
        cell = ctypes.cast(held, ctypes.py_object).value
        try:
            is_same = cell.cell_contents is bound.get(name, cell)
        except ValueError:
            is_same = name not in bound
        if not is_same:
            return None
        found[name] = cell
    return found


def names_of(frame: FrameType) -> dict[str, Any]:
    """Return the values of a frame's local names, in a new dict."""
    if _WRITES_THROUGH:
        return dict(frame.f_locals)
    with _locals_apart(frame) as names:
        return dict(names)


def is_module_frame(frame: FrameType) -> bool:
    """Return whether the frame runs a module's top level, so that its locals are the module's globals."""
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return False
    names = frame.f_locals
    if names is frame.f_globals:
        return True
    # From 3.12 on, a frame that is inside an inlined comprehension returns a new dict each time, with the variable of
    # the comprehension in it.
    return frame.f_code.co_name == "<module>" and names is not frame.f_locals


def live_locals(frame: FrameType) -> dict[str, object]:
    """Return the locals of a suspended frame that may still be read."""
    values = dict(frame.f_globals) if is_module_frame(frame) else names_of(frame)
    live = live_among(frame, values)
    return {name: value for name, value in values.items() if name in live}


def live_among(frame: FrameType, names: Iterable[str]) -> set[str]:
    """Return those of some names that a suspended frame may still read, whether they are bound or not."""
    live = live_names(frame.f_code, frame.f_lasti)
    if not is_module_frame(frame):
        return {name for name in names if name in live}
    is_any = may_read_any_global(frame.f_code) or frame.f_code.co_filename in _notebook
    live |= names_read_by_functions(frame.f_code)
    return {name for name in names if name in live or (is_any and not name.startswith("__"))}


def write_locals(frame: FrameType, values: Mapping[str, object]) -> None:
    """Bind names in a suspended frame, also those in closure cells."""
    if is_module_frame(frame):
        frame.f_globals.update(values)
        return
    if _WRITES_THROUGH:
        frame.f_locals.update(values)
        return
    with _locals_apart(frame) as names:
        names.update(values)
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))


def can_unbind(frame: FrameType) -> bool:
    """Return whether `unbind_local` can be called for the frame of a function."""
    return bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED) and has_known_frames()


def unbind_local(frame: FrameType, name: str) -> None:
    """Unbind a local of a suspended function, as `del` does."""
    if name not in names_of(frame):
        return
    cells = cells_of(frame) or {}
    if name in cells:
        del cells[name].cell_contents
        return
    slot = _slot(frame, _VALUES + frame.f_code.co_varnames.index(name) * _POINTER)
    if _WRITES_THROUGH:
        frame.f_locals[name] = None  # which keeps the old value for as long as the frame's stack may borrow it
        slot.value = _UNBOUND
        return
    held, slot.value = slot.value, None
    ctypes.pythonapi.Py_DecRef(ctypes.c_void_p(held))


def is_second_call(frame: FrameType, code: CodeType | None, first: int) -> bool:
    """Return whether a frame is in a second call of a function, inside of its first call, which has the frame `first`:
    an engine that trains runs another engine that validates.
    """
    calls = (id(each) for each in outwards(frame) if each.f_code is code)
    return next(calls, first) != first and first in calls


def is_of_cache(folder: str, program: str) -> bool:
    """Return whether a folder is inside of a library's cache: a folder for files that libraries compile or write while
    a program runs, and can make again (kernels of Inductor and Triton, C++ extensions, code compiled by numba and
    Cython). Paths are absolute, without links; `program` is the folder of the program's entry.

    A cache that contains the program itself does not count (`TORCHINDUCTOR_CACHE_DIR=/tmp`): a library's files there
    could not be told from the program's.
    """
    return _BESIDE in folder.split("/") or any(_is_in(folder, each) and not _is_in(program, each) for each in _caches())


def _caches() -> list[str]:
    caches = (cache for each in libraries().values() for cache in each.caches)
    named = [os.environ.get(variable) or default for variable, default in caches]
    return [os.path.realpath(os.path.expanduser(name)) for name in named if name]


def _is_in(folder: str, cache: str) -> bool:
    return f"{folder}/".startswith(f"{cache.rstrip('/')}/")
