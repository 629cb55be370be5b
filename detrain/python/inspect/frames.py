"""The user's frames between a probe and the entry of the program: which they are, and how their locals are written.

CPython can write the locals of a frame that is suspended in a call: from 3.13 on through `f_locals` (PEP 667), before
that by `PyFrame_LocalsToFast`, as debuggers do. So the rewriter need not insert assignments, and callers' locals come
back too.

Before 3.13 a frame keeps one dict for all who ask for its locals, and asking sets it to what they are now: the
program's own `config = locals()` would change, and values live on in it (a loader of the epoch before, with its
buffers). So the frame is given another dict for as long as it is asked.
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
from collections.abc import Iterator, Mapping
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
"""Where a `PyFrameObject` (Include/internal/pycore_frame.h) leads to its `_PyInterpreterFrame`, in bytes."""
_LOCALS: Final = {(3, 11): 24, (3, 12): 40}
"""Where an `_PyInterpreterFrame` of CPython keeps the dict of its locals, in bytes, by version."""
_VALUES: Final = 72
"""Where it keeps the values of its variables, in bytes: locals, then cells that are no arguments, then those of calls
around it."""

_BESIDE: Final = "__pycache__"
"""What lies beside the source that it was compiled from: Python's own modules, numba's and cffi's."""


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
    """Return the folder of libraries that a folder is, or lies in, with a slash at its end, or an empty text.

    Those of another environment, which a .pth file, PYTHONPATH or a link put on the `path`, are known by their names or
    by what an installer has noted in them; by the latter not where the program lies in them, too.
    """
    parent, name = os.path.split(folder)
    is_told = (name in LIBRARIES or not _is_at(_entry[0], folder)) and holds_libraries(folder)
    if is_told or f"{folder}/" in _library_folders():
        return f"{folder}/"
    return "" if parent == folder else _library_around(parent, path)


@lru_cache(maxsize=1 << 14)
def _without_links(folder: str) -> str:
    """Return `os.path.realpath` of a folder, asking of each folder once."""
    parent, name = os.path.split(folder)
    if not name or not os.path.isabs(folder) or os.path.normpath(folder) != folder or os.path.islink(folder):
        return os.path.realpath(folder)
    return os.path.join(_without_links(parent), name)


_program: list[str] = []
_entry: list[str] = [""]


def set_program(entry: str) -> None:
    """Say what the program is. One that is installed among libraries (`-m PACKAGE.MODULE`) counts as the user's: its
    package, or its one file.
    """
    path = os.path.realpath(entry)
    _entry[:] = [os.path.dirname(path)]
    _library_around.cache_clear()
    library = _library_around(_entry[0], tuple(sys.path))
    _program[:] = [library + path.removeprefix(library).partition("/")[0]] if library else []
    is_user_file.cache_clear()
    _is_user_folder.cache_clear()


_notebook: list[str] = []
_OF_THE_KERNEL: Final = re.compile(r"In|Out|get_ipython|exit|quit|_ih|_oh|_dh|_i{1,3}|_i\d+")
"""Names in a notebook's namespace that are IPython's own."""


def set_notebook(file: str) -> None:
    """The program is a notebook, whose cells are put one behind another into this file as they run."""
    _notebook[:] = [file]


def is_notebook() -> bool:
    """Return whether the program is a notebook: what a later cell will read, nobody knows."""
    return bool(_notebook)


def is_of_kernel(name: str) -> bool:
    """Return whether a name of a notebook's namespace is the kernel's, and no state of the program."""
    return bool(_notebook) and _OF_THE_KERNEL.fullmatch(name) is not None


@lru_cache(maxsize=1 << 16)
def is_user_file(filename: str) -> bool:
    """Return whether a file is the user's: not of Python, not an installed library's or in a library's cache, not
    detrain's, and not what the kernel says of processes and devices.
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
    """Return whether a function is the user's, or a library's around one of those: what a decorator has returned."""
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
    """Count the frames of a library's function among the user's: it runs the training loop in their place."""
    _adopted.add(code)


def frames_of_others() -> dict[int, FrameType]:
    """Return the innermost frames of the other threads, by their numbers. This one's would hold what holds it: whatever
    it leads to, an iterator that a `break` lets go of, would live on.
    """
    frames = sys._current_frames()
    del frames[threading.get_ident()]
    return frames


def outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame, the one that has called it, and so on; nothing for None."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def user_frames(innermost: FrameType) -> list[FrameType]:
    """Return the user's frames, innermost first; frames of libraries between them are left out."""
    return [each for each in outwards(innermost) if is_user_file(each.f_code.co_filename) or each.f_code in _adopted]


def catches(frame: FrameType) -> bool:
    """Return whether a frame is inside of a `try` or `with` now, so that an exception may end there."""
    entries = getattr(dis.Bytecode(frame.f_code), "exception_entries", ())
    return any(entry.start <= frame.f_lasti < entry.end for entry in entries)


def _slot_of_locals(frame: FrameType) -> ctypes.c_void_p:
    inner = ctypes.c_void_p.from_address(id(frame) + _INNER_FRAME).value or 0
    return ctypes.c_void_p.from_address(inner + _LOCALS[sys.version_info[:2]])


@lru_cache(maxsize=1)
def has_known_frames() -> bool:
    """Return whether frames are laid out as this module takes them to be."""
    if sys.implementation.name != "cpython" or sys.version_info[:2] not in _LOCALS or object.__basicsize__ != 16:
        return False
    frame = sys._getframe()
    slot = _slot_of_locals(frame)
    is_so = slot.value is None and slot.value != id(frame.f_locals) == _slot_of_locals(frame).value
    frame.f_locals.clear()
    del frame  # it leads to itself, and to all callers: what they hold would live on
    return is_so


@contextlib.contextmanager
def _locals_apart(frame: FrameType) -> Iterator[dict[str, object]]:
    """Give the locals of a frame, those of a function in a dict of their own: the frame keeps the one that it had, as
    it was.
    """
    if not (frame.f_code.co_flags & inspect.CO_OPTIMIZED and has_known_frames()):
        yield frame.f_locals
        return
    slot = _slot_of_locals(frame)
    theirs, slot.value = slot.value, None
    try:
        yield frame.f_locals
    finally:
        ours, slot.value = slot.value, theirs
        if ours is not None:
            ctypes.pythonapi.Py_DecRef(ctypes.c_void_p(ours))


def cells_of(frame: FrameType) -> dict[str, CellType] | None:
    """Return the cells of a frame's variables that functions close over, its own and those of calls around it, by name.

    None if they cannot be read: in a CPython whose frames are laid out otherwise.
    """
    code = frame.f_code
    if not (code.co_cellvars or code.co_freevars):
        return {}
    if not has_known_frames():
        return None
    inner = ctypes.c_void_p.from_address(id(frame) + _INNER_FRAME).value or 0
    own = [name for name in code.co_cellvars if name not in code.co_varnames]
    found, bound = {}, names_of(frame)
    for place, name in enumerate((*code.co_varnames, *own, *code.co_freevars)):
        if name not in code.co_cellvars and name not in code.co_freevars:
            continue
        held = ctypes.c_void_p.from_address(inner + _VALUES + place * _POINTER).value
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
    """Return what the names of a frame are bound to, in a dict of its own."""
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
    # From 3.12 on a frame that is inside an inlined comprehension hands out its names anew each time, its variable
    # among them.
    return frame.f_code.co_name == "<module>" and names is not frame.f_locals


def live_locals(frame: FrameType) -> dict[str, object]:
    """Return the locals of a suspended frame that may still be read."""
    live = live_names(frame.f_code, frame.f_lasti)
    if is_module_frame(frame):
        live |= names_read_by_functions(frame.f_code)
        values = dict(frame.f_globals)
        if may_read_any_global(frame.f_code) or frame.f_code.co_filename in _notebook:
            live |= {name for name in values if not name.startswith("__")}
    else:
        values = names_of(frame)
    return {name: value for name, value in values.items() if name in live}


def write_locals(frame: FrameType, values: Mapping[str, object]) -> None:
    """Bind names in a suspended frame; closure cells are written through."""
    if is_module_frame(frame):
        frame.f_globals.update(values)
        return
    if _WRITES_THROUGH:
        frame.f_locals.update(values)
        return
    with _locals_apart(frame) as names:
        names.update(values)
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))


def is_second_call(frame: FrameType, code: CodeType | None, first: int) -> bool:
    """Return whether a frame is in a call of a function that a first call of it, the frame `first`, has led to: an
    engine that trains has another one validate.
    """
    calls = (id(each) for each in outwards(frame) if each.f_code is code)
    return next(calls, first) != first and first in calls


def is_of_cache(folder: str, program: str) -> bool:
    """Return whether a folder is inside of one in which libraries keep what they compile or write while a program runs,
    and make again from it (Inductor's kernels, Triton's, C++ extensions, what numba and Cython have compiled). Paths
    are absolute, without links; `program` is the folder of the program's entry.

    A cache that the program itself lies in counts for none (`TORCHINDUCTOR_CACHE_DIR=/tmp`): what a library writes
    there could not be told from the program's.
    """
    return _BESIDE in folder.split("/") or any(_is_in(folder, each) and not _is_in(program, each) for each in _caches())


def _caches() -> list[str]:
    caches = (cache for each in libraries().values() for cache in each.caches)
    named = [os.environ.get(variable) or default for variable, default in caches]
    return [os.path.realpath(os.path.expanduser(name)) for name in named if name]


def _is_in(folder: str, cache: str) -> bool:
    return f"{folder}/".startswith(f"{cache.rstrip('/')}/")
