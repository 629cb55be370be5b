"""Positions of objects that yield or take in items one after another: generators, iterators, open files.

A resumed run leaves these objects as its process has them. A checkpoint names those that have moved since the loop was
entered.
"""

from __future__ import annotations

import collections.abc
import contextlib
import contextvars
import ctypes
import dis
import functools
import gc
import io
import itertools
import logging
import os
import re
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Executor
from types import CodeType, GeneratorType
from typing import Any, Final

import numpy as np

from detrain.base.byte_digests import digest_bytes
from detrain.base.framework_names import KNOWN, MODULES, has_native_loaders
from detrain.base.libraries import said, saying
from detrain.base.plain_types import is_iterator
from detrain.python.inspect.fingerprint import Unreadable, inside, memory, of_python
from detrain.python.inspect.frames import is_user_file, names_of
from detrain.python.inspect.names import (
    FRAMEWORKS,
    OF_CLASSES,
    by_class,
    class_name,
    foreign_base,
    is_made_module,
    is_open,
    is_own_class,
    is_user_module,
    module_of,
    shows_library_class,
)
from detrain.python.inspect.pure_functions import is_recomputable
from detrain.python.inspect.tables import content, is_table

HANDS_ON: Final = (enumerate, zip, itertools.islice)
"""Python's iterators that pass on the items of other iterators."""
OVER_DATA: Final = (type(iter([0])), type(iter((0,))), type(iter(range(0))))
_OVER_ITEMS: Final = type(iter(np.empty(0)))
"""Iterators over objects that have no iterator of their own and give their items by number: arrays of NumPy."""
_FILES: Final = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom, io.FileIO)
_STANDARD: Final = (sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__)
_STDERR: Final = 2
_BUILTIN: Final = ("builtins", "itertools")
_STILL: Final = FRAMEWORKS.union(
    ("logging", "typing", "types", "abc", "_thread", "weakref", "inspect", "__future__", "functools", "warnings", "ssl"),
    ("importlib", "_frozen_importlib", "_frozen_importlib_external"),
)
_UNREAD: Final = _STILL - saying("apart")
_WORKERS: Final = (Executor, threading.Thread, threading.Condition)
_OF_WORKERS: Final = tuple(f"multiprocessing.{name}" for name in ("context", "managers", "pool", "process"))
"""Modules of objects that do work, or wait for it: threads, processes and their jobs are checked separately."""
_PIPES: Final = ("multiprocessing.connection", "multiprocessing.queues")
_BUILTIN_STILL: Final = (
    object,
    super,
    CodeType,
    os.DirEntry,
    re.Match,
)
_STREAMS: Final = ("zlib", "_bz2", "_lzma")
"""Modules of compressors, which do not show the data that they have taken in."""
_STAND_INS: Final = "detrain.python.outside."
"""Prefix of detrain's modules with replacements of Python's functions: `from io import open` gives a program one."""
_HIDDEN: Final = tuple(name for each in KNOWN for name in each.hidden)
_READERS: Final = tuple(module for each in KNOWN for module in each.readers)
"""Prefixes of the modules with a framework's own files, which have a position."""


def is_plain_iterator(value: object, known: Callable[[object], bool | None] = lambda _value: None) -> bool:
    """Return whether drawing from an iterator runs no code of the program: it goes over a range, a list, a tuple or an
    array, perhaps inside of `enumerate`, `zip`, `islice` or a progress bar. `known` may answer for an iterator first.
    """
    if (answer := known(value)) is not None:
        return answer
    is_of_framework = _is_of_framework(value)
    if is_of_framework or is_progress_bar(value) or isinstance(value, HANDS_ON):
        inner = list(iterators_in(gc.get_referents(value)))
        return (is_of_framework or bool(inner)) and all(is_plain_iterator(each, known) for each in inner)
    if type(value) is _OVER_ITEMS:
        return all(type(each) in (np.ndarray, np.memmap) for each in gc.get_referents(value))
    return isinstance(value, OVER_DATA)


def _is_of_framework(value: object) -> bool:
    """Return whether an iterator is a suspended generator of a framework's own code, such as that of a JAX array."""
    if not isinstance(value, GeneratorType) or value.gi_frame is None:
        return False
    return has_native_loaders(str(value.gi_frame.f_globals.get("__name__", "")))


def is_progress_bar(value: object) -> bool:
    """Return whether an iterator belongs to a progress bar of tqdm, which passes on the items of another iterator."""
    return (
        isinstance(value, GeneratorType)
        and value.gi_code.co_name == "__iter__"
        and value.gi_frame is not None
        and (value.gi_frame.f_globals.get("__name__", "") in ("tqdm.std", "tqdm.notebook", "tqdm.asyncio"))
    )


class PassedOn:
    """An iterator whose values a generator of the program passes on by `yield from`; `begin` and `note` hear of each
    value, and `forget` if one is sent to the iterator.
    """

    __slots__ = ("_begin", "_forget", "_note", "iterator")

    def __init__(
        self,
        values: collections.abc.Iterable[object],
        begin: Callable[[], object],
        note: Callable[[object], object],
        forget: Callable[[], object],
    ) -> None:
        self.iterator = iter(values)
        self._begin, self._note, self._forget = begin, note, forget

    def __iter__(self) -> PassedOn:
        return self

    def __next__(self) -> object:
        self._begin()
        value = next(self.iterator)
        self._note(value)
        return value

    def send(self, value: object) -> object:
        self._forget()
        return self.iterator.send(value)  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> object:
        return getattr(self.iterator, name)  # `throw` and `close`, where it has them


def iterators_in(values: collections.abc.Iterable[object]) -> collections.abc.Iterator[object]:
    """Yield the iterators among some values and in tuples among them."""
    for value in values:
        if isinstance(value, tuple):
            yield from iterators_in(value)
        elif is_iterator(value):
            yield value.iterator if type(value) is PassedOn else value


def position(value: Any, seen: set[int] | None = None) -> object:
    """Return the position of an object, to be compared for equality, or None if it has no position.

    No item is drawn from the object. `seen`: as in `inside`.
    """
    module = module_of(foreign_base(type(value)))
    known = next((tell for kinds, tell in _POSITIONS if isinstance(value, kinds)), None)
    if known is not None:
        return known(value)
    if is_iterator(value) and module in _BUILTIN:
        hint = getattr(value, "__length_hint__", None)
        return hint() if hint is not None else object()  # unknown: it may have moved
    held = memory(value)
    if held is not None:
        return digest_bytes(held)
    if _is_pipe(type(value)):
        return _is_drained(value) or object()  # data in the pipe cannot be read
    if _is_file_of_framework(type(value)):
        return _read_up_to(value)
    if is_made_module(value):
        return tuple((name, id(item)) for name, item in vars(value).items())
    if module in _STREAMS:
        return object()
    if type(value).__name__ == "reader" and module == "_csv":
        return value.line_num
    if is_table(value):
        return content(value)
    if module.partition(".")[0] in _UNREAD:
        return None
    found = inside(value, seen)
    return of_python(value) if found is None else found


def _of_generator(value: Any) -> object:
    frame = value.gi_frame
    return "ended" if frame is None else (frame.f_lasti, tuple(sorted((n, id(v)) for n, v in names_of(frame).items())))


def _of_variable(value: Any) -> object:
    now = value.get(None)
    return repr(now) if isinstance(now, bool | int | float | str | bytes | None) else id(now)


def _of_logging(value: Any) -> object:
    # `buffer`: the records that a handler writes later.
    parts = (*value.filters, *getattr(value, "handlers", ()), getattr(value, "formatter", None), *getattr(value, "buffer", ()))
    # The level of a logger is a setting of the process.
    return value.level if isinstance(value, logging.Handler) else None, tuple(map(id, parts))


def _of_cache(value: Any) -> object:
    return None if _is_cache_of_library(value) else "computed" if is_recomputable(value) else value.cache_info()


def _is_cache_of_library(value: Any) -> bool:
    """Return whether a function that caches its results is a library's own, not one
    that the program has made.
    """
    place: Any
    code = getattr(value.__wrapped__, "__code__", None)
    if code is None or is_user_file(code.co_filename):
        return False
    module = place = sys.modules.get(value.__module__)
    for name in value.__qualname__.split("."):
        place = getattr(place, name, None)
    return not is_user_module(module) and (place is value or "<locals>" in value.__qualname__)


def place_of(value: Any, is_loader: Callable[[object], bool]) -> str | None:
    """Return the position of an object as a text that is the same in another process, or None if it has no such
    position.

    `is_loader` tells whether a framework restores an iterator's position.
    """
    if isinstance(value, GeneratorType):
        return _place_of_generator(value, is_loader)
    if is_loader(value):
        return "brought back"
    now = position(value)
    return repr(now) if now is not None and type(now) not in (object, Unreadable) else None


def _place_of_generator(value: Any, is_loader: Callable[[object], bool]) -> str | None:
    """Return the position of a generator: the positions of the iterators in it, and its local counters and texts.

    A library's generator without such iterators has none, as it may count out of sight. Counters of a progress bar are
    left out: they follow the time.
    """
    frame = value.gi_frame
    if frame is None:
        return "ended"
    drawn = [each for each in iterators_in(gc.get_referents(value)) if each is not value]
    inner = [place_of(each, is_loader) for each in drawn if not (is_own_class(type(each)) or is_open(type(each)))]  # captured
    if None in inner or not (inner or is_user_file(frame.f_code.co_filename)):
        return None
    names = {} if said(frame.f_globals.get("__name__", ""), "output") else names_of(frame)
    told = sorted((name, item) for name, item in names.items() if type(item) in (bool, int, str))
    return digest_bytes(repr((frame.f_lasti, told, inner)).encode())


def takes_in(value: object) -> bool:
    """Return whether an object is a generator to which a value can be sent: loading the same batches again does not
    send it.
    """
    return isinstance(value, GeneratorType) and _uses_yields(value.gi_code)


@functools.lru_cache(maxsize=512)
def _uses_yields(code: CodeType) -> bool:
    names = [each.opname for each in dis.get_instructions(code)]
    # A RESUME lies in between.
    behind = [names[index + 2 : index + 3] for index, name in enumerate(names) if name == "YIELD_VALUE"]
    # The second kind belongs to `yield from`.
    return any(each not in (["POP_TOP"], ["JUMP_BACKWARD_NO_INTERRUPT"]) for each in behind)


def _place(file: Any) -> object:
    try:
        return None if file.closed or is_standard(file) else file.tell()
    except (OSError, ValueError):
        return None


@by_class
def _is_file_of_framework(cls: type) -> bool:
    return any(module_of(base).startswith(_READERS) for base in cls.__mro__)


@by_class
def _is_pipe(cls: type) -> bool:
    return any(module_of(base) in _PIPES for base in cls.__mro__)


def _is_drained(pipe: Any) -> bool:
    """Return whether a pipe between processes holds no data."""
    if hasattr(pipe, "poll"):
        return bool(pipe.closed or not pipe.readable or not pipe.poll())
    return bool(pipe.empty() and not getattr(pipe, "_buffer", None))


def _read_up_to(file: Any) -> int | None:
    """Return the read position of a framework's file; None for one that is written: detrain follows its content."""
    try:
        return int(file.tell()) if set("wa+").isdisjoint(file.mode) else None
    except Exception:  # an edge: a framework's code
        return None


def is_standard(file: Any) -> bool:
    """Return whether a file is a standard stream of the process, perhaps in a new wrapper."""
    try:
        return file in _STANDARD or file.fileno() <= _STDERR
    except (AttributeError, OSError, ValueError):
        return False


def is_open_for_writing(value: Any) -> bool:
    """Return whether an object is a file that is open for writing, and no standard stream."""
    if not isinstance(value, _FILES) or is_standard(value):
        return False
    return not value.closed and value.writable()


def stands_still(value: object) -> bool:
    """Return whether an object without a position is known by its class to yield nothing."""
    if isinstance(value, _FILES) and is_standard(value):
        return not value.closed and value.writable()  # standard output, under a progress bar
    base = foreign_base(type(value))
    module = module_of(base)
    is_of_c = isinstance(value, ctypes.CDLL) or (module, type(value).__name__) == ("ctypes", "_FuncPtr")
    if module in _OF_WORKERS or isinstance(value, _WORKERS) or is_of_c:  # a library of C code is like a module
        return True
    if module.partition(".")[0] in MODULES:
        return not class_name(base).startswith(_HIDDEN)
    is_part = type(value) in (*_BUILTIN_STILL, *OF_CLASSES) or shows_library_class(value)
    is_kind = module.partition(".")[0] in _STILL or is_part or module.startswith(_STAND_INS)
    is_said = bool(said(module, "still") or said(module, "compiled")) and not hasattr(base, "tell")  # a file has a position
    return (is_kind or is_said) and not is_iterator(value)


def is_iterator_of_library(value: object) -> bool:
    """Return whether an object without a position yields items one after another, and is neither a file nor a
    framework's.
    """
    # Python calls a file an iterator, too: of its lines.
    is_other = isinstance(value, io.IOBase) or module_of(type(value)).partition(".")[0] in MODULES
    return is_iterator(value) and not is_other and not stands_still(value)


_POSITIONS: Final[tuple[tuple[Any, Callable[[Any], object]], ...]] = (
    (GeneratorType, _of_generator),
    (itertools.count, repr),
    (io.TextIOBase | io.BufferedReader | io.BufferedRandom | io.FileIO, _place),
    (contextvars.Context, lambda value: tuple((id(variable), id(item)) for variable, item in value.items())),
    (contextvars.ContextVar, _of_variable),
    (logging.Filterer, _of_logging),
    (logging.Formatter, lambda value: (value._fmt, value.datefmt)),
    (logging.LoggerAdapter, lambda value: repr(getattr(value, "extra", None))),  # a derived class may lack it (dill's)
    (threading.Semaphore, lambda value: value._value),
    (threading.Barrier, lambda value: (value.n_waiting, value.broken)),
    (np.flatiter | np.broadcast, lambda value: value.index),
    (np.nditer, lambda value: "ended" if value.finished else value.iterindex),
    (subprocess.Popen, lambda value: repr(value.returncode)),
    (contextlib._GeneratorContextManager, lambda value: position(value.gen)),
    (contextlib.ExitStack | contextlib.AsyncExitStack, lambda value: len(value._exit_callbacks)),
    (weakref.finalize, lambda value: value.alive),
    (weakref.WeakSet | weakref.WeakKeyDictionary, lambda value: tuple(sorted(map(id, value)))),
    (weakref.WeakValueDictionary, lambda value: tuple(sorted(map(id, value.values())))),
    (functools._lru_cache_wrapper, _of_cache),
)
"""Functions that return the position of an object, by its class; derived classes count, too."""
