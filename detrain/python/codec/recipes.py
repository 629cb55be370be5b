"""Kinds of objects of Python's own library, of NumPy and of pandas that are made again from their parts: small values
(dates, paths, scalars), iterators of built-in kinds, writers of CSV, files in memory, files that have been closed,
arrays of `array`, weak and read-only dictionaries, patterns, events of threads, thread-local values, queues, jobs of
pools that have ended, connections to SQLite, points in time.

Each kind is one entry of a table: its name in a graph, the function that takes an object apart, and the function that
makes one of parts. An iterator is described by the result of `__reduce__` (which `copy.copy` uses, too): its maker, the
maker's arguments, its position.
"""

from __future__ import annotations

import array
import builtins
import concurrent.futures
import contextvars
import copyreg
import csv
import datetime
import decimal
import fractions
import functools
import gc
import inspect
import io
import itertools
import logging
import operator
import os
import pathlib
import queue
import re
import sqlite3
import struct
import threading
import time
import types
import typing
import uuid
import weakref
import zoneinfo
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
import numpy as np

from detrain.base.digest import raw_bytes
from detrain.base.dtypes import dtype_name, named_dtype
from detrain.base.libraries import said
from detrain.base.paths import path_below
from detrain.base.plain_types import is_iterator
from detrain.python.codec.iterator_fields import reduce_iterator, set_state
from detrain.python.codec.kind import Holds
from detrain.python.inspect.fingerprint import database_of
from detrain.python.inspect.frames import frames_of_others
from detrain.python.inspect.names import by_class, class_name, find_type, is_own_class, module_of
from detrain.python.inspect.tables import MOMENTS, is_moment, make_moment, moment_parts
from detrain.python.process import filled_queues, pool_jobs

Parts = list[Any]


class Recipe(msgspec.Struct, frozen=True):
    """A kind of objects that are made again from their parts."""

    name: str
    """Its name in a graph."""
    parts: Callable[[Any], Parts | None]
    """Returns the parts of an object; None if it cannot be made again."""
    make: Callable[..., Any]
    """Takes a live object of the kind, or None, and the wanted parts. Returns the live one if it has these parts, or
    can get them, else a new one; None if none can be made."""
    holds: Holds = "state"


def recipe_of(value: object) -> Recipe | None:
    """Return the recipe of an object's kind, or None if there is none for it."""
    return _recipe_of_class(type(value))


@by_class
def is_reduced(cls: type) -> bool:
    """Return whether the table of libraries says that objects of an extension's class report their whole state by
    `__reduce_ex__`."""
    return bool(said(module_of(cls), "reduced")) and hasattr(cls, "__setstate__") and not is_own_class(cls)


def reduced_parts(value: Any) -> Parts | None:
    """Return the parts that an object reports of itself: its class, the arguments of its maker, its state."""
    cls, (maker, arguments, state, *items) = type(value), value.__reduce_ex__(4)
    if maker is copyreg.__newobj__ and arguments[0] is cls:  # type: ignore[attr-defined]
        arguments = arguments[1:]
    elif maker is not cls:
        return None
    return [class_name(cls), list(arguments), state] if not any(items) else None


def _made_as_said(live: Any, name: str, arguments: list[Any], state: Any) -> Any:
    """Give the live object a state, if it is made with the same arguments, or make a new one."""
    cls: Any = find_type(name)
    if cls is None or not is_reduced(cls):
        return None
    own = reduced_parts(live) if type(live) is cls else None
    made = live if own is not None and has_parts(own[1], arguments) else cls.__new__(cls, *arguments)
    made.__setstate__(state)
    return made


def describe(value: object) -> tuple[str, Parts] | None:
    """Return the name of an object's kind and its parts, or None if it cannot be made again from parts."""
    kind = recipe_of(value)
    if kind is None:
        return None
    if kind is _ITERATOR:
        return (_ENDED, []) if has_ended(value) else _reduced(value)
    parts = kind.parts(value)
    return None if parts is None else (kind.name, parts)


def make_again(name: str, parts: Parts, current: object = None) -> Any:
    """Return the object of a kind with these parts: `current` if it is that, or can become it; None if none can be
    made.
    """
    if name == _ENDED:
        return current if has_ended(current) else _ended_generator()
    if name in _ITERATORS:
        return _iterated(name, parts, current)
    kind = RECIPES.get(name)
    if kind is None:
        return None
    return kind.make(current if recipe_of(current) == kind else None, *parts)


def is_same(one: Any, other: Any) -> bool:
    """Return whether two values are one object, or of one type and the same bits."""
    if one is other or type(one) is not type(other) or type(one) not in (int, float, str, bytes):
        return one is other
    return bool(struct.pack("<d", one) == struct.pack("<d", other) if type(one) is float else one == other)


def has_parts(one: object, other: object) -> bool:
    """Return whether a part can stand for another: the same object, an equal number or text, an object of the same kind
    with such parts (an iterator at the same position).
    """
    if is_same(one, other):
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(map(has_parts, one, other))
    described = describe(one), describe(other)
    return described[0] is not None and described[1] is not None and has_parts(*described)


def _anew(parts: Callable[[Any], Parts | None], make: Callable[..., Any]) -> Callable[..., Any]:
    """Return a maker of objects that cannot be changed in place: it returns the live one only if that has the parts."""

    def made(live: Any, *wanted: Any) -> Any:
        return live if live is not None and has_parts(parts(live), list(wanted)) else make(*wanted)

    return made


# Values.


def _value(name: str, parts: Callable[[Any], Parts | None], make: Callable[..., Any]) -> Recipe:
    return Recipe(name, parts, _anew(parts, make), "nothing")


def _scalar_parts(value: np.generic) -> Parts | None:
    name = dtype_name(value.dtype)
    return [name, bytes(raw_bytes(np.asarray(value)))] if name is not None and value.itemsize else None


def _made_scalar(name: str, content: bytes) -> Any:
    return np.frombuffer(bytearray(content), named_dtype(name)).reshape(())[()]


def _dtype_parts(value: np.dtype[Any]) -> Parts | None:
    name = dtype_name(value)
    return None if name is None else [name]


_SCALAR: Final = _value("numpy.generic", _scalar_parts, _made_scalar)
_DTYPE: Final = _value("numpy.dtype", _dtype_parts, named_dtype)
_TEXTS: Final[dict[type, tuple[Callable[[Any], str], Callable[[str], object]]]] = {
    datetime.date: (datetime.date.isoformat, datetime.date.fromisoformat),
    decimal.Decimal: (str, decimal.Decimal),
    uuid.UUID: (str, uuid.UUID),
    pathlib.PosixPath: (str, pathlib.Path),
    pathlib.PurePosixPath: (str, pathlib.PurePosixPath),
    pathlib.PureWindowsPath: (str, pathlib.PureWindowsPath),
}
"""Values that are made again from a text."""
VALUE_CLASSES: Final = (complex, range, fractions.Fraction, *_TEXTS)
"""Classes of values whose hash is that of the value."""


def _of_text(cls: type, write: Callable[[Any], str], read: Callable[[str], object]) -> Recipe:
    return _value(f"{module_of(cls).partition('.')[0]}.{cls.__name__}", lambda value: [write(value)], read)


def _of_time(cls: Any) -> Recipe:
    return _value(
        f"datetime.{cls.__name__}",
        lambda value: [value.replace(tzinfo=None).isoformat(), value.fold, value.tzinfo],
        lambda text, fold, zone: cls.fromisoformat(text).replace(fold=fold, tzinfo=zone),
    )


_BY_CLASS: Final[dict[Any, Recipe]] = {
    complex: _value("builtins.complex", lambda value: [value.real, value.imag], complex),
    range: _value("builtins.range", lambda value: [value.start, value.stop, value.step], range),
    fractions.Fraction: _value("fractions.Fraction", lambda value: [value.numerator, value.denominator], fractions.Fraction),
    datetime.datetime: _of_time(datetime.datetime),
    datetime.time: _of_time(datetime.time),
    datetime.timedelta: _value(
        "datetime.timedelta", lambda value: [value.days, value.seconds, value.microseconds], datetime.timedelta
    ),
    datetime.timezone: _value("datetime.timezone", lambda value: list(value.__getinitargs__()), datetime.timezone),
    zoneinfo.ZoneInfo: _value("zoneinfo.ZoneInfo", lambda value: [value.key] if value.key else None, zoneinfo.ZoneInfo),
    # As an array, or by NumPy's own `str`, they would lose their trailing zeros.
    np.str_: _value("numpy.str_", lambda value: [str.__str__(value)], np.str_),
    np.bytes_: _value("numpy.bytes_", lambda value: [bytes.__getitem__(value, slice(None))], np.bytes_),
    time.struct_time: _value("time.struct_time", lambda value: list(value.__reduce__()[1]), time.struct_time),
    re.Pattern: _value("re.Pattern", lambda value: [value.pattern, value.flags], re.compile),
    **{cls: _of_text(cls, *how) for cls, how in _TEXTS.items()},
}


def _add(cls: Any, name: str, parts: Callable[[Any], Parts | None], make: Callable[..., Any]) -> None:
    _BY_CLASS[cls] = Recipe(name, parts, make)


def _add_anew(cls: Any, name: str, parts: Callable[[Any], Parts | None], make: Callable[..., Any]) -> None:
    _add(cls, name, parts, _anew(parts, make))


for _name in ("Ellipsis", "NotImplemented"):
    _one = functools.partial(getattr, builtins, _name)
    _BY_CLASS[type(_one())] = _value(f"builtins.{_name}", lambda _: [], _one)
for _getter in (operator.itemgetter, operator.attrgetter):
    _add_anew(_getter, f"operator.{_getter.__name__}", lambda value: list(value.__reduce__()[1]), _getter)
for _view in ("keys", "values", "items"):
    _shown = functools.partial(lambda name, held: getattr(dict, name)(held), _view)
    _add_anew(type(_shown({})), f"builtins.dict_{_view}", gc.get_referents, _shown)
_slice = _value("builtins.slice", lambda value: [value.start, value.stop, value.step], slice)
_BY_CLASS[slice] = msgspec.structs.replace(_slice, holds="others")


def _filled_bytes(live: bytearray | None, content: bytes) -> bytearray:
    if live is None:
        return bytearray(content)
    live[:] = content
    return live


_add(bytearray, "builtins.bytearray", lambda value: [bytes(value)], _filled_bytes)


# Descriptions of code.


def _parameter(of: inspect.Parameter) -> Parts:
    return [of.name, int(of.kind), of.default, of.annotation]


def _made_signature(parameters: list[Any], returned: Any) -> inspect.Signature:
    made = [
        inspect.Parameter(name, inspect._ParameterKind(kind), default=default, annotation=annotation)
        for name, kind, default, annotation in parameters
    ]
    return inspect.Signature(made, return_annotation=returned)


_add_anew(
    inspect.Signature,
    "inspect.Signature",
    lambda value: [[_parameter(each) for each in value.parameters.values()], value.return_annotation],
    _made_signature,
)
_add_anew(
    type(typing.Union[int, str]),  # noqa: UP007  what `|` makes is of another class
    "typing.Union",
    lambda value: [list(typing.get_args(value))] if typing.get_origin(value) is typing.Union else None,
    lambda members: typing.Union[tuple(members)],  # noqa: UP007
)


# Files.

_Writer: Final = type(csv.writer(io.StringIO()))
_DIALECT: Final = (
    *("delimiter", "doublequote", "escapechar", "lineterminator", "quotechar", "quoting", "skipinitialspace", "strict"),
)
_FILES: Final = ("FileIO", "BufferedReader", "BufferedWriter", "BufferedRandom", "TextIOWrapper")
_DICT_WRITER: Final = ("fieldnames", "restval", "extrasaction", "writer")


def _writer_parts(writer: Any) -> Parts | None:
    """Return a CSV writer's file and dialect. The garbage collector shows the file: the writer holds its `write`."""
    owners = [getattr(held, "__self__", None) for held in gc.get_referents(writer) if getattr(held, "__name__", "") == "write"]
    return [owners[0], *[getattr(writer.dialect, name) for name in _DIALECT]] if len(owners) == 1 else None


def _made_dict_writer(*parts: Any) -> csv.DictWriter[Any]:
    writer = object.__new__(csv.DictWriter)
    vars(writer).update(zip(_DICT_WRITER, parts, strict=True))
    return writer


def _filled_memory(cls: Callable[[], Any]) -> Callable[..., Any]:
    def filled(live: Any, content: Any, position: int) -> Any:
        memory = cls() if live is None else live
        memory.seek(0)
        memory.truncate(0)
        memory.write(content)
        memory.seek(position)
        return memory

    return filled


def _closed_parts(file: Any) -> Parts | None:
    """Return the parts of a closed file: its class, its name and its mode; None for an open one."""
    name, mode = getattr(file, "name", None), getattr(file, "mode", None)
    is_named = isinstance(name, str | int) and isinstance(mode, str | None)
    return [type(file).__name__, name, mode] if file.closed and is_named else None


def _closed(live: Any, cls: str, name: str | int, mode: str | None) -> object | None:
    if cls not in _FILES:
        return None
    if live is not None and type(live).__name__ == cls and live.name == name:
        live.close()
        return live  # type: ignore[no-any-return]
    plain = (mode or "w").translate(str.maketrans("x", "w", "bt"))
    raw = io.FileIO(os.devnull, plain)
    vars(raw)["name"] = name
    file: Any = raw
    if cls != "FileIO":
        buffered = io.BufferedRandom if "+" in plain else io.BufferedReader if "r" in plain else io.BufferedWriter
        file = buffered(raw)
    if cls == "TextIOWrapper":
        file = io.TextIOWrapper(file, "utf-8")
        file.mode = mode
    file.close()
    return file  # type: ignore[no-any-return]


def _connected(table: sqlite3.Connection) -> Parts | None:
    """Return the parts of a connection to one database in a file, outside of a transaction; else None. Paths below the
    current folder are relative to it: the folder may be moved.
    """
    path = database_of(table)
    if not path or table.in_transaction:
        return None
    return [path_below(path) or path, table.isolation_level, table.row_factory, table.text_factory]


def _reconnected(live: sqlite3.Connection | None, path: str, isolation: Any, rows: Any, texts: Any) -> sqlite3.Connection | None:
    """Return the live connection if it is to this database, else a new one if the database is there. Elsewhere than
    below the current folder that one only reads: a checkpoint must not decide where to write.
    """
    known = None if live is None else _connected(live)
    if live is None or known is None or known[0] != path:
        if not os.path.isfile(path):
            return None
        is_elsewhere = os.path.isabs(path) or os.pardir in path.split(os.sep)
        live = (
            sqlite3.connect(f"{pathlib.Path(path).absolute().as_uri()}?mode=ro", uri=True)
            if is_elsewhere
            else sqlite3.connect(path)
        )
    live.isolation_level, live.row_factory, live.text_factory = isolation, rows, texts
    return live


_add_anew(_Writer, "csv.writer", _writer_parts, lambda file, *said: csv.writer(file, **dict(zip(_DIALECT, said, strict=True))))
_add_anew(csv.DictWriter, "csv.DictWriter", lambda value: [getattr(value, name) for name in _DICT_WRITER], _made_dict_writer)
for _memory in (io.StringIO, io.BytesIO):
    _add(
        _memory,
        f"io.{_memory.__name__}",
        lambda value: None if value.closed else [value.getvalue(), value.tell()],
        _filled_memory(_memory),
    )
for _file in _FILES:
    _add(getattr(io, _file), "io.closed", _closed_parts, _closed)
_add(sqlite3.Connection, "sqlite3.Connection", _connected, _reconnected)


# Objects that are filled in place.


def _filled_array(live: array.array[Any] | None, code: str, content: bytes) -> array.array[Any]:
    """Fill an array in place, as other objects may view its memory; while they do, it cannot grow."""
    if live is None or live.typecode != code:
        return array.array(code, content)
    if len(live) * live.itemsize == len(content):
        memoryview(live).cast("B")[:] = content
    else:
        del live[:]
        live.frombytes(content)
    return live


def _filled_weak(cls: Any) -> Callable[..., Any]:
    def filled(live: Any, keys: list[Any], values: list[Any]) -> Any:
        held = cls() if live is None else live
        held.clear()
        for key, value in zip(keys, values, strict=True):
            held[key] = value
        return held

    return filled


def _filled_weak_set(live: weakref.WeakSet[Any] | None, values: list[Any]) -> weakref.WeakSet[Any]:
    held: weakref.WeakSet[Any] = weakref.WeakSet() if live is None else live
    held.clear()
    held.update(values)
    return held


def _set_event(live: threading.Event | None, is_set: bool) -> threading.Event:
    event = threading.Event() if live is None else live
    if is_set != event.is_set():
        (event.set if is_set else event.clear)()
    return event


def _made_local(values: dict[str, Any]) -> threading.local:
    vars(local := threading.local()).update(values)
    return local


_UNBOUND: Final = object()


def _bound(variable: contextvars.ContextVar[Any]) -> Parts | None:
    value = contextvars.copy_context().get(variable, _UNBOUND)
    return None if value is _UNBOUND else [value]


def _bind(live: contextvars.ContextVar[Any] | None, value: object) -> contextvars.ContextVar[Any] | None:
    if live is not None:
        live.set(value)
    return live


def _done(job: concurrent.futures.Future[Any]) -> Parts | None:
    return [job.result()] if job.done() and not job.cancelled() and job.exception() is None else None


def _made_job(result: object) -> concurrent.futures.Future[Any]:
    job: concurrent.futures.Future[Any] = concurrent.futures.Future()
    job.set_result(result)
    return job


def _behind_view(view: types.MappingProxyType[Any, Any]) -> Parts | None:
    """Return the dictionary behind a read-only view; None for a class's."""
    inside = gc.get_referents(view)
    return inside if type(inside[0]) is dict and "__module__" not in inside[0] else None


_add(array.array, "array.array", lambda value: [value.typecode, value.tobytes()], _filled_array)
_add(threading.Event, "threading.Event", lambda value: [value.is_set()], _set_event)
_add_anew(threading.local, "threading.local", lambda value: [vars(value)], _made_local)
_add(contextvars.ContextVar, "contextvars.ContextVar", _bound, _bind)
_add_anew(concurrent.futures.Future, "concurrent.futures.Future", _done, _made_job)
_add_anew(types.MappingProxyType, "types.MappingProxyType", _behind_view, types.MappingProxyType)
_add(weakref.WeakSet, "weakref.WeakSet", lambda value: [list(value)], _filled_weak_set)
WEAK: Final = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary)
for _weak in WEAK:
    _add(
        _weak,
        f"weakref.{_weak.__name__}",
        lambda value: [[key for key, _ in value.items()], [item for _, item in value.items()]],
        _filled_weak(_weak),
    )


# Objects that stand for another one.


class _Begun:
    """An iterable that gives an iterator as it is; `__iter__` of the program's own iterator could begin it again."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        self._iterator = iterator

    def __iter__(self) -> Iterator[Any]:
        return self._iterator


def _behind_proxy(proxy: Any) -> Parts:
    """Return the object behind a weak proxy as the only part; None once it is gone."""
    try:
        return [proxy.__repr__.__self__]
    except ReferenceError:
        return [None]


def _or_gone(value: object) -> Any:
    """Return an object; for None, one that is gone at once, so that weak references to it are dead."""
    return _Begun(iter(())) if value is None else value


_add_anew(
    weakref.ref,
    "weakref.ref",
    lambda value: [value()] if value.__callback__ is None else None,
    lambda value: weakref.ref(_or_gone(value)),
)
for _proxy in weakref.ProxyTypes:
    _add(_proxy, "weakref.proxy", _behind_proxy, lambda _live, value: weakref.proxy(_or_gone(value)))


# Queues.


def _is_alone() -> bool:
    """Return whether no other thread of the program runs; else the content of a queue would be a matter of chance."""
    others = [thread for thread in threading.enumerate() if thread is not threading.current_thread()]
    frames = frames_of_others() if others else {}
    return all(type(each).__module__ == "tqdm._monitor" or pool_jobs.is_idle(each, frames.get(each.ident or 0)) for each in others)


def _queued(held: Any) -> Parts | None:
    """Return how many items a queue may hold, how many tasks are not done, and its items; None while threads run."""
    if type(held) is queue.Queue:
        filled_queues.met.add(held)
    if not _is_alone():
        return None
    if type(held) is not queue.SimpleQueue:
        return [held.maxsize, held.unfinished_tasks, held.queue]
    content = [held.get_nowait() for _ in range(held.qsize())]
    for item in content:
        held.put(item)
    return [0, 0, content]


def _refilled(cls: Any) -> Callable[..., Any]:
    """Return a function that fills a queue. It waits for the other threads, which may put items in and end as in the
    first run; it returns None if they go on.
    """

    def refilled(live: Any, most: int, unfinished: int, content: Any) -> Any:
        held = cls() if live is None else live
        if not filled_queues.wait_until(_is_alone):
            return None
        if cls is not queue.SimpleQueue:
            held.maxsize, held.unfinished_tasks, held.queue = most, unfinished, content
            return held
        while not held.empty():
            held.get_nowait()
        for item in content:
            held.put(item)
        return held

    return refilled


_QUEUES: Final[tuple[Any, ...]] = (queue.Queue, queue.LifoQueue, queue.PriorityQueue, queue.SimpleQueue)
for _queue in _QUEUES:
    _add(_queue, f"queue.{_queue.__name__}", _queued, _refilled(_queue))


# Iterators.

_Tee: Final[Any] = type(itertools.tee(())[0])
_TeeData: Final[Any] = getattr(itertools, "_tee_dataobject", None)
"""The class of the data that the iterators of one `tee` share; up to Python 3.13."""
_ITERATORS: Final[dict[str, Any]] = {
    **({"itertools.tee": _Tee, "itertools.tee data": _TeeData} if _TeeData is not None else {}),
    **{f"builtins.{name}": getattr(builtins, name) for name in ("iter", "reversed", "enumerate", "zip", "map", "filter")},
    **{
        f"itertools.{name}": getattr(itertools, name)
        for name in (
            *("accumulate", "chain", "combinations", "combinations_with_replacement", "compress", "count", "cycle", "dropwhile"),
            *("islice", "permutations", "product", "repeat", "starmap", "takewhile", "zip_longest"),
        )
    },
}
"""The makers of iterators, by the names of their kinds."""
_ENDED: Final = "builtins.generator"
"""The kind of a generator that has run to its end."""
_NAMES: Final = {id(maker): name for name, maker in _ITERATORS.items()}
_DRAWN_FROM: Final = {
    **dict.fromkeys(("builtins.enumerate", "itertools.accumulate", "itertools.cycle", "itertools.islice"), slice(0, 1)),
    **dict.fromkeys(("builtins.zip", "itertools.compress", "itertools.zip_longest"), slice(None)),
    **dict.fromkeys(
        ("builtins.filter", "builtins.map", "itertools.dropwhile", "itertools.starmap", "itertools.takewhile"), slice(1, None)
    ),
}
"""The arguments that a maker draws from: iterators that have begun, `()` for one that `zip_longest` has used up."""
_COPYING: Final = ("dict_", "set_", "odict_")
"""Beginnings of the names of iterators that describe themselves by a copy of the items left, not by their source."""


def has_ended(value: object) -> bool:
    """Return whether a value is a generator that has run to its end: it yields nothing any more, whatever made it."""
    return type(value) is types.GeneratorType and value.gi_frame is None


def _ended_generator() -> Iterator[object]:
    nothing: tuple[object, ...] = ()
    made = (item for item in nothing)
    next(made, None)
    return made


def _scans(value: Any) -> bool:
    """Return whether an iterator is one of `re.finditer`: its position is in an object that does not tell it."""
    if type(value).__name__ != "callable_iterator":
        return False
    return any(type(getattr(each, "__self__", None)).__name__ == "SRE_Scanner" for each in gc.get_referents(value))


def _reduced(value: Any) -> tuple[str, Parts] | None:
    """Return the kind and the parts of an iterator: [the maker's arguments, its state if it has one]; or None."""
    if _scans(value):
        return None
    try:
        maker, arguments, *state = reduce_iterator(value)
    except (TypeError, ValueError):
        return None
    name = _NAMES.get(id(maker))
    if name == "itertools.cycle":  # its saved items are its own: no other values may be filled in
        state = [(list(state[0][0]), state[0][1])]
    return None if name is None or len(state) > 1 else (name, [arguments, *state])


def _iterated(name: str, parts: Parts, current: object) -> Any:
    """Return an iterator of a kind with these parts: the live one if it is at this position, or can be set to it."""
    found = describe(current)
    old = found[1] if found is not None and found[0] == name else []
    if has_parts(old, parts):
        return current
    if name == "builtins.iter" and len(old) == len(parts) == 2 and has_parts(old[0], parts[0]):
        current.__setstate__(parts[1])  # type: ignore[attr-defined]
        return current
    arguments, state = [*parts[0]], parts[1:]
    begun = _DRAWN_FROM.get(name, slice(0, 0))
    arguments[begun] = [_Begun(each) if is_iterator(each) else each for each in arguments[begun]]
    made = _ITERATORS[name](*arguments)
    if state and state[0] is not None:
        set_state(made, state[0])
    return made


# The table.

_REDUCED: Final = Recipe("restored", reduced_parts, _made_as_said)
_ITERATOR: Final = Recipe("iterator", lambda _: None, lambda *_: None)
_OF_PANDAS: Final = {name: _value(name, moment_parts, functools.partial(make_moment, name)) for name in MOMENTS}
_LOGGER: Final = _value("logging.Logger", lambda logger: [logger.name], logging.getLogger)
"""For loggers that the loop has asked for; others stay as they are."""
_ALL: Final = (*_BY_CLASS.values(), _SCALAR, _DTYPE, _REDUCED, _LOGGER, *_OF_PANDAS.values())
RECIPES: Final[dict[str, Recipe]] = {kind.name: kind for kind in _ALL}
"""All kinds but iterators, by their names."""


@by_class
def _recipe_of_class(cls: Any) -> Recipe | None:
    if cls in _BY_CLASS:
        return _BY_CLASS[cls]
    if issubclass(cls, np.generic):
        return _SCALAR
    if issubclass(cls, np.dtype):
        return _DTYPE
    module = module_of(cls)
    is_iterator = module in ("builtins", "itertools") and (issubclass(cls, Iterator) or cls is _TeeData)
    if is_iterator and not cls.__name__.startswith(_COPYING):
        return _ITERATOR
    if is_reduced(cls):
        return _REDUCED
    return _OF_PANDAS[f"pandas.{cls.__name__.removesuffix('Type')}"] if is_moment(cls) else None
