"""Fingerprints of objects of libraries and extensions: digests of all readable data that an object reaches. If the
digest changes, the object has changed.

An object of an extension may keep state that Python does not see (the game behind an environment, a physics engine). An
object that shows no data at all is unreadable, and so is every object that reaches it: a change would not be seen.
"""

from __future__ import annotations

import array
import ctypes
import functools
import gc
import io
import itertools
import mmap
import operator
import os
import sqlite3
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any, Final

import numpy as np
import xxhash

from detrain.base.byte_digests import digest_bytes
from detrain.base.digest import digest_array, digest_value
from detrain.base.libraries import said, saying
from detrain.base.plain_types import CONTAINERS, NUMBERS_AND_TEXTS, is_iterator
from detrain.python.inspect.enums import is_enum
from detrain.python.inspect.frames import is_user_file, names_of
from detrain.python.inspect.held import Step, Steps, by_identity, held_by, held_by_code, walk
from detrain.python.inspect.hooks import Hooks
from detrain.python.inspect.names import (
    FRAMEWORKS,
    OF_PROCESS,
    foreign_base,
    is_library_class,
    is_namespace,
    is_own_class,
    module_of,
    own_attributes,
)
from detrain.python.inspect.ownership import extends_library, lists, of_last_use
from detrain.python.inspect.random_state import is_stream, state_of
from detrain.python.inspect.reductions import streams_kept, tells, told
from detrain.python.inspect.stored_attributes import stored_names
from detrain.python.inspect.tables import content, is_table

_LEFT_OUT: Final = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)
_OF_FUNCTIONS: Final = ("_cython", "nanobind")
"""Modules in which tools that make extensions define their own kinds of functions."""
_BY_THEMSELVES: Final = ("argparse", "contextlib")
_APART: Final = saying("apart")
_HIDING: Final = ("_sre", "_multibytecodec", "pyexpat", "_pickle")
_BETWEEN_PROCESSES: Final = "multiprocessing.synchronize"
_HASHES: Final = ("_hashlib", "_md5", "_sha1", "_sha2", "_sha256", "_sha512", "_sha3", "_blake2", "xxhash", "_xxhash", "hmac")
_OF_C: Final = (ctypes.Array, ctypes.Structure, ctypes.Union, ctypes.c_int.__base__)


class Unreadable:
    """Stands for the unknown state of an object that cannot be read: equal only to itself."""


def inside(value: object, seen: set[int] | None = None) -> object:
    """Return a digest of the numbers, texts and arrays that an object reaches, `Unreadable`, or None if the object is
    not of a library or has nothing to read.

    Objects of the program and of frameworks are captured or named by themselves: the digest of an object that reaches
    them leaves them out. `seen`: identities of what others have read, which this one leaves out and adds to.
    """
    cls = type(value)
    top, is_own = module_of(cls).partition(".")[0], extends_library(cls)
    is_foreign = is_own or is_library_class(cls)
    if top in _APART:
        return _of_apart(value, top)
    if top in FRAMEWORKS or top == "builtins" or (own_attributes(value) is not None and not is_foreign):
        return None
    parts = _of_library(value) if is_own else _parts(value)
    told_of = None
    if not is_own and not said(top, "still") and tells(cls):
        with streams_kept():
            told_of = told(value)
    if (not parts and told_of is None and _is_of_extension(value)) or _hides_where_it_is(value):
        return Unreadable()
    return _read([*parts, *(told_of or ())], value, _parts_inside, seen)


def _of_apart(value: Any, top: str) -> object:
    """Return a digest of the data that an object reaches, for a library with separate rules: its attributes, those of
    the library's objects among them, and the object behind a proxy."""

    def parts(item: Any) -> Sequence[Any] | None:
        if _hides_where_it_is(item):
            return None
        is_open = _is_looked_into(item) or module_of(type(item)).partition(".")[0] == top
        return _held(item) if is_open and own_attributes(item) is not None else _parts(item) if is_open else ()

    return _read([*([value.__wrapped__] if hasattr(value, "__wrapped__") else []), *_held(value)], value, parts)


def _read(
    first: Sequence[Any], value: object, parts: Callable[[Any], Sequence[Any] | None], seen: set[int] | None = None
) -> object:
    """Return a digest of the numbers, texts and arrays in `first`, and of those that its objects reach, `value` aside;
    None if `first` is empty. If `parts` returns None for an object, the result is `Unreadable`.
    """
    state = xxhash.xxh3_128()
    seen = set() if seen is None else seen
    left = [] if id(value) in seen else [*first]
    seen.add(id(value))
    while left:
        item = left.pop()
        if isinstance(item, NUMBERS_AND_TEXTS):
            text = hex(item) if type(item) is int else repr(item)  # Python writes no more than 4,300 digits
            state.update(text.encode("utf-8", "surrogatepass"))
        elif id(item) not in seen:
            seen.add(id(item))
            found = parts(item)
            if found is None:
                return Unreadable()
            state.update(f"{type(item).__name__};".encode())
            left += found
    return str(state.hexdigest()) if first else None


def _parts_inside(item: Any) -> Sequence[Any] | None:
    parts = _parts(item) if _is_looked_into(item) else ()
    return None if (not parts and _is_of_extension(item)) or _hides_where_it_is(item) else parts


def _parts_of_python(item: Any) -> Sequence[Any]:
    is_known = type(item) in CONTAINERS.values() or _is_of_python(item, has_attributes=False) or _semaphore(item) is not None
    return [*([_tell(item)] if isinstance(item, io.IOBase) else []), *(_parts(item) if is_known else ())]


def state_inside(
    value: object, is_state: Callable[[object], bool], seen: dict[int, tuple[Steps, Any]] | None = None
) -> Iterator[tuple[Steps, object]]:
    """Yield the objects that a library's object reaches and that are state by themselves, with the steps to them:
    `inside` leaves them out, and perhaps no other name reaches them. `seen`: what others reach, which this one leaves
    out and adds to.
    """

    found: set[int] = set()

    def below(way: tuple[Steps, Any]) -> list[tuple[Steps, Any]]:
        steps, item = way
        cls = type(item)
        is_open = cls in CONTAINERS.values() or is_library_class(cls) or extends_library(cls) or closes_over(item)
        is_open = item is value or (is_open and id(item) not in found)
        return [((*steps, step), each) for step, each in _steps_from(item)] if is_open else []

    first: list[tuple[Steps, Any]] = [((), value)]
    for steps, item in walk(first, below, lambda way: by_identity(way[1]), most=sys.maxsize, seen=seen):
        if item is not value and not isinstance(item, NUMBERS_AND_TEXTS) and is_state(item):
            found.add(id(item))
            yield steps, item


def shown_steps(steps: Steps) -> str:
    """Return steps as the text that a program would write."""
    forms = {".": ".{}", "k": " key {}", "[": "[{!r}]", "#": "[{}]", "<": ".<{}>", "(": ".{}"}
    return "".join(forms[kind].format(key) for kind, key in steps)


def digest_of_tensor(value: object, hooks: Hooks) -> str | None:
    """Return a digest of a tensor's value now, or None for any other object."""
    shared = hooks.shared(value)
    if shared is not None:
        start, stop = shared.extent
        content = hooks.tensors_of(shared.owner).read(shared.memory, holds=False)[start:stop]
        return digest_bytes(f"{shared.form[1:6]} {digest_array(content)}".encode())
    constant = hooks.tensor(value)
    return None if constant is None else digest_array(constant)


def at_steps(value: Any, steps: Sequence[Sequence[Any]]) -> Any:
    """Return the object at the end of steps from `state_inside`. Raises LookupError if there is none."""
    for kind, key in steps:
        found = [each for step, each in _steps_from(value) if step == (kind, key)]
        if not found:
            raise LookupError(key)
        value = found[0]
    return value


def _steps_from(item: Any) -> Iterator[tuple[Step, object]]:
    cls = type(item)
    if cls in (types.FunctionType, types.MethodType, functools.partial):
        yield from held_by_code(item)
    elif cls not in (set, frozenset):
        gone = of_last_use(cls)
        yield from (
            (step, each) for step, each in held_by(item) if step[0] != "." or (type(step[1]) is str and step[1] not in gone)
        )


def closes_over(item: Any) -> bool:
    """Return whether a function of a library, a method or a partial call may hold state."""
    if isinstance(item, types.MethodType | functools.partial):
        return True
    top = str(getattr(item, "__module__", "")).partition(".")[0]
    is_known = top in FRAMEWORKS or top in sys.stdlib_module_names
    if type(item) is not types.FunctionType or not item.__closure__ or is_known:
        return False
    return not is_user_file(item.__code__.co_filename)


def of_python(value: object) -> object:
    """Return a digest of the data in an object of Python's own library, or None if it is no such object with data.

    It covers numbers, texts, containers and other objects of Python's library: values that the program has put there,
    an archive's table of contents, the position of a file.
    """
    if not _is_of_python(value):
        return None
    told = [_tell(value)] if isinstance(value, io.IOBase) else []  # first: it passes on what a writer holds back
    return _read([*told, *(_of_library(value) if is_own_class(type(value)) else _parts(value))], value, _parts_of_python)


def _is_of_python(value: object, *, has_attributes: bool = True) -> bool:
    """Return whether an object's class is of Python's library, has attributes (or is written in C), and is not about
    the process itself.
    """
    module = module_of(foreign_base(type(value)))
    is_of_process = module.startswith((*OF_PROCESS, *_BY_THEMSELVES)) and module != _BETWEEN_PROCESSES
    if is_of_process or module.partition(".")[0] not in sys.stdlib_module_names:
        return False
    is_shown = own_attributes(value) is not None or not has_attributes
    return is_shown and not isinstance(value, type) and not is_enum(type(value))


def _tell(file: Any) -> object:
    try:
        return "closed" if file.closed else file.tell()
    except (OSError, ValueError):
        return None


def memory(value: Any) -> bytes | None:
    """Return the content of an object that keeps it where no attribute shows it: in its own memory, in a database. None
    for any other object.
    """
    try:
        return _memory(value)
    except (ValueError, sqlite3.Error):  # closed, released
        return b""


def _memory(value: Any) -> bytes | None:
    cls = type(value)
    module = module_of(cls).partition(".")[0]
    if isinstance(value, np.ma.MaskedArray):
        return value.data.tobytes() + np.ma.getmaskarray(value).tobytes()
    if isinstance(value, np.ndarray) and value.dtype.hasobject:  # its memory has only addresses of objects
        return value.tobytes() + str(_read(value.reshape(-1).tolist(), value, _parts_inside)).encode()
    if isinstance(value, array.array | np.ndarray | memoryview):
        return value.tobytes()
    if isinstance(value, mmap.mmap):
        return b"" if value.closed else value[:]
    if (free := _semaphore(value)) is not None:
        return b"%d" % free
    if callable(getattr(cls, "SerializeToString", None)):  # a protocol buffer
        return bytes(value.SerializeToString(deterministic=True))
    if module == "h5py" and hasattr(value, "file"):
        return b"" if value.file.mode == "r" or os.path.exists(value.file.filename) else os.urandom(16)  # only in memory
    if module_of(cls) == "multiprocessing.shared_memory" and isinstance(getattr(value, "buf", None), memoryview):
        return bytes(value.buf)
    if module_of(cls) == "multiprocessing.managers" and hasattr(value, "_getvalue"):
        return digest_value(value._getvalue(), lambda _: None).encode()
    if isinstance(value, threading.local):
        return repr(sorted(vars(value).items())).encode()
    if module_of(cls) == "multiprocessing.sharedctypes":
        return bytes(memoryview(value.get_obj()))
    if module in _HASHES and callable(getattr(value, "hexdigest", None)):
        return repr((cls.__name__, value.digest() if value.digest_size else value.hexdigest(16))).encode()
    if module == "sqlite3" and hasattr(value, "total_changes"):
        return b"" if database_of(value) else _changes_in_memory(value)
    if module == "pandas" and hasattr(cls, "rule_code"):  # a frequency never changes, and keeps its text in a cache
        return repr((cls.__name__, value.n, value.normalize, value.kwds)).encode()
    if module == "PIL" and hasattr(value, "tobytes"):
        return repr((value.mode, value.size)).encode() + bytes(value.tobytes())
    if cls.__base__ is ctypes._Pointer:
        return bytes(memoryview(value.contents)) if value else b""
    return bytes(memoryview(value)) if cls.__base__ in _OF_C else None


def _semaphore(value: Any) -> int | None:
    """Return how often a semaphore shared by processes can still be acquired; None for any other object."""
    return int(value._get_value()) if module_of(type(value)) == "_multiprocessing" and hasattr(value, "_get_value") else None


def _changes_in_memory(connection: sqlite3.Connection) -> bytes:
    """Return bytes that differ if a database in memory has changed: its rows, its tables, the form of its results."""
    cursor = connection.cursor()
    cursor.row_factory = None
    schema = cursor.execute("pragma schema_version").fetchone()
    return repr((connection.total_changes, schema, id(connection.row_factory), id(connection.text_factory))).encode()


def database_of(connection: sqlite3.Connection) -> str:
    """Return the path of a connection's database file; empty if it has none, or belongs to another thread."""
    try:
        rows = connection.cursor()
        rows.row_factory = None  # the program's own may give anything
        names = rows.execute("pragma database_list").fetchall()
    except sqlite3.Error:
        return ""
    return str(names[0][2] or "") if len(names) == 1 else ""


def _is_looked_into(item: Any) -> bool:
    is_known = type(item) in CONTAINERS.values() or isinstance(item, np.ndarray) or is_stream(item) or is_table(item)
    is_known = is_known or _is_iterator_of_python(item)
    return is_known or is_library_class(type(item)) or extends_library(type(item))


def _of_library(value: object) -> list[Any]:
    """Return the parts of an object of the program's class, without those that its methods store: they are captured."""
    return _held(value, stored_names(type(value)))


def _parts(item: Any) -> list[Any]:
    """Return the parts of an object: its items, attributes, content or referents."""
    cls = type(item)
    if cls in CONTAINERS.values():
        if isinstance(item, set | frozenset):
            return _elements(item)
        if cls in (list, tuple):  # one inside of an extension may have slots that are not filled yet
            return gc.get_referents(item)[::-1]
        if isinstance(item, dict):
            return [] if is_namespace(item) else [*item.keys(), *item.values()]
        return list(item)
    if cls is np.ndarray:
        return item.reshape(-1).tolist() if item.dtype.hasobject else [digest_array(item)]
    if is_stream(item):
        return [repr(state_of(item))]
    if is_table(item):
        return [repr(content(item))]
    if _is_iterator_of_python(item):
        return _parts_of_iterator(item)
    held = memory(item)
    if held is not None:
        return [held]
    # Objects of extensions tell the garbage collector which objects they refer to.
    found = gc.get_referents(item) if own_attributes(item) is None else _held(item)
    return [each for each in found if not isinstance(each, _LEFT_OUT)]


def _held(item: Any, left_out: frozenset[str] = frozenset()) -> list[Any]:
    """Return names and values of attributes and slots, sorted, without attributes left from the last use, and the items
    of a container."""
    gone = left_out | of_last_use(type(item)) | lists(type(item))
    found = list(held_by(item))
    named = sorted(((str(name), held) for (kind, name), held in found if kind == "." and name not in gone), key=itemgetter(0))
    items = _elements(item) if isinstance(item, set | frozenset) else [held for (kind, _), held in found if kind != "."]
    return [*(each for pair in named for each in pair), *items]


def _elements(item: Any) -> list[Any]:
    """Return the number of elements of a set, and the texts of those that are numbers or texts, sorted."""
    base: Any = set if isinstance(item, set) else frozenset
    return [base.__len__(item), *sorted(repr(each) for each in base.__iter__(item) if isinstance(each, NUMBERS_AND_TEXTS))]


def _is_iterator_of_python(item: Any) -> bool:
    return is_iterator(item) and module_of(type(item)) in ("builtins", "itertools")


def _parts_of_iterator(item: Any) -> list[Any]:
    if isinstance(item, types.GeneratorType):
        return ["ended"] if item.gi_frame is None else [item.gi_frame.f_lasti, *names_of(item.gi_frame).values()]
    if isinstance(item, itertools.count | itertools.repeat):
        return [repr(item)]
    return [operator.length_hint(item, -1), *gc.get_referents(item)]


def _hides_where_it_is(item: Any) -> bool:
    """Return whether an object is an iterator (a database's cursor), a parser or a scanner that does not show its
    position."""
    module = module_of(type(item))
    if isinstance(item, itertools.cycle) or module in _HIDING:
        return True
    is_other = is_iterator(item) and not _is_iterator_of_python(item)
    return is_other and own_attributes(item) is None and not _has_slots(type(item)) and not module.startswith(_OF_FUNCTIONS)


def _has_slots(cls: type) -> bool:
    return any("__slots__" in vars(base) for base in cls.__mro__)


def _is_of_extension(item: Any) -> bool:
    """Return whether an object belongs to an extension, and may change without a trace."""
    cls = type(item)
    module = module_of(cls)
    top = module.partition(".")[0]
    has_no_attributes = own_attributes(item) is None and not _has_slots(cls)
    is_foreign = is_library_class(cls) and top not in sys.stdlib_module_names and not said(top, "still")
    return has_no_attributes and is_foreign and not module.startswith(_OF_FUNCTIONS)
