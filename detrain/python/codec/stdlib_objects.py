"""Objects of Python's own library with a state that can be read and made again: iterators of built-in kinds, writers of
CSV, files in memory, files that have been closed, arrays of `array`, dictionaries that hold weakly or are only shown,
patterns, events of threads, what a thread keeps to itself, queues, jobs of pools that have ended, connections to
SQLite.

An iterator is described by what `__reduce__` says of it (the same that `copy.copy` uses): what makes it, from what, how
far.
"""

from __future__ import annotations

import array
import builtins
import concurrent.futures
import contextvars
import csv
import gc
import inspect
import io
import itertools
import os
import queue
import re
import sqlite3
import sys
import threading
import types
import typing
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final

from detrain.python.inspect.fingerprint import database_of
from detrain.python.inspect.names import module_of
from detrain.python.process import filled_queues, pool_jobs

_Tee: Final[Any] = type(itertools.tee(())[0])
_TeeData: Final[Any] = getattr(itertools, "_tee_dataobject", None)
"""What the iterators of one `tee` share; up to Python 3.13."""
_MAKERS: Final = {
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
_NAMES: Final = {id(maker): name for name, maker in _MAKERS.items()}
_DRAWN_FROM: Final = {
    **dict.fromkeys(("builtins.enumerate", "itertools.accumulate", "itertools.cycle", "itertools.islice"), slice(0, 1)),
    **dict.fromkeys(("builtins.zip", "itertools.compress", "itertools.zip_longest"), slice(None)),
    **dict.fromkeys(
        ("builtins.filter", "builtins.map", "itertools.dropwhile", "itertools.starmap", "itertools.takewhile"), slice(1, None)
    ),
}
"""Which arguments of a maker it draws from: iterators that have begun, `()` for one that `zip_longest` has used up."""
_Writer: Final = type(csv.writer(io.StringIO()))
_COPYING: Final = ("dict_", "set_", "odict_")
"""Iterators that describe themselves by a copy of what is left, not by what they go over."""
_DIALECT: Final = (
    *("delimiter", "doublequote", "escapechar", "lineterminator", "quotechar", "quoting", "skipinitialspace", "strict"),
)
_FILES: Final = ("FileIO", "BufferedReader", "BufferedWriter", "BufferedRandom", "TextIOWrapper")
_DICT_WRITER: Final = ("fieldnames", "restval", "extrasaction", "writer")


_QUEUES: Final[tuple[Any, ...]] = (queue.Queue, queue.LifoQueue, queue.PriorityQueue, queue.SimpleQueue)
_QUEUES_BY_KIND: Final = {f"queue.{cls.__name__}": cls for cls in _QUEUES}
_UNBOUND: Final = object()
_WEAK: Final = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary)


class _Begun:
    """What gives an iterator as it is to whom asks for one: `__iter__` of a program's own would begin it again."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        self._iterator = iterator

    def __iter__(self) -> Iterator[Any]:
        return self._iterator


def parts(value: Any) -> tuple[str, list[object]] | None:
    """Return the kind of an object and what it is made of, or None if it is of no kind that is known here."""
    cls = type(value)
    module = module_of(cls)
    if cls is weakref.ref and value.__callback__ is None:
        return "weakref.ref", [value()]
    if cls in weakref.ProxyTypes:
        return "weakref.proxy", [_behind_proxy(value)]
    if cls is re.Pattern:
        return "re.Pattern", [value.pattern, value.flags]
    if cls is inspect.Signature:
        return "inspect.Signature", [[_parameter(each) for each in value.parameters.values()], value.return_annotation]
    if typing.get_origin(value) is typing.Union:
        return "typing.Union", [list(typing.get_args(value))]
    if cls is _Writer:
        file = _file_behind(value)
        return None if file is None else ("csv.writer", [file, *[getattr(value.dialect, name) for name in _DIALECT]])
    if cls is csv.DictWriter:
        return "csv.DictWriter", [getattr(value, name) for name in _DICT_WRITER]
    if cls in (io.StringIO, io.BytesIO) and not value.closed:
        return f"io.{cls.__name__}", [value.getvalue(), value.tell()]
    if cls is array.array:
        return "array.array", [value.typecode, value.tobytes()]
    if cls is sqlite3.Connection:
        return _connected(value)
    if cls is threading.Event:
        return "threading.Event", [value.is_set()]
    if cls is threading.local:
        return "threading.local", [vars(value)]
    if cls is contextvars.ContextVar and (bound := contextvars.copy_context().get(value, _UNBOUND)) is not _UNBOUND:
        return "contextvars.ContextVar", [bound]
    if cls is queue.Queue:
        filled_queues.met.add(value)
    if cls in _QUEUES and _is_alone():
        return f"queue.{cls.__name__}", _queued(value)
    if cls is concurrent.futures.Future:
        return ("concurrent.futures.Future", [value._result]) if value.done() and _has_result(value) else None
    if cls is types.MappingProxyType:
        inside = gc.get_referents(value)
        is_of_class = type(inside[0]) is not dict or "__module__" in inside[0]
        return None if is_of_class else ("types.MappingProxyType", inside)
    if cls is weakref.WeakSet:
        return "weakref.WeakSet", [list(value)]
    if cls in _WEAK:
        entries = list(value.items())
        return f"weakref.{cls.__name__}", [[key for key, _ in entries], [item for _, item in entries]]
    if module == "_io" and cls.__name__ in _FILES and value.closed:
        return _closed(value)
    is_iterator = module in ("builtins", "itertools") and (isinstance(value, Iterator) or cls is _TeeData)
    return _reduced(value) if is_iterator and not cls.__name__.startswith(_COPYING) and not _scans(value) else None


def _behind_proxy(proxy: Any) -> object:
    """Return what a weak proxy stands for, whose attributes it has; None once that is gone."""
    try:
        return proxy.__repr__.__self__
    except ReferenceError:
        return None


def _parameter(of: inspect.Parameter) -> list[object]:
    return [of.name, int(of.kind), of.default, of.annotation]


def _made_parameter(name: str, kind: int, default: object, annotation: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect._ParameterKind(kind), default=default, annotation=annotation)


def _has_result(job: Any) -> bool:
    return not job.cancelled() and job.exception() is None


def _scans(value: Any) -> bool:
    """Return whether an iterator is one of `re.finditer`: where it is in its text is kept by an object that does not
    say.
    """
    if type(value).__name__ != "callable_iterator":
        return False
    return any(type(getattr(each, "__self__", None)).__name__ == "SRE_Scanner" for each in gc.get_referents(value))


def remake(kind: str, values: list[Any], current: Any) -> Any:
    """Return the object of a kind with these parts:

    `current` if it is that, or can become it; None if none can be made.
    """
    if type(current) in (io.StringIO, io.BytesIO) and kind == f"io.{type(current).__name__}":
        _fill(current, *values)
        return current
    if kind == "io.closed" and type(current).__name__ == values[0] in _FILES and current.name == values[1]:
        current.close()
        return current
    if type(current) is array.array and kind == "array.array" and current.typecode == values[0]:
        _fill_array(current, values[1])
        return current
    if type(current) in _WEAK and kind == f"weakref.{type(current).__name__}":
        _fill_weak(current, *values)
        return current
    if type(current) is weakref.WeakSet and kind == "weakref.WeakSet":
        _fill_set(current, *values)
        return current
    if type(current) is threading.Event and kind == "threading.Event":
        _set_event(current, is_set=values[0])
        return current
    if type(current) is contextvars.ContextVar and kind == "contextvars.ContextVar":
        current.set(values[0])
        return current
    if kind in _QUEUES_BY_KIND:
        return _refilled(current, kind, values)
    if kind == "sqlite3.Connection":
        return _reconnected(current, *values)
    now = parts(current)
    old = now[1] if now is not None and now[0] == kind else []
    if _is_same(old, values):
        return current
    if kind == "builtins.iter" and len(old) == len(values) == 2 and _is_same(old[0], values[0]):
        current.__setstate__(values[1])
        return current
    return make(kind, values)


def make(kind: str, values: list[Any]) -> Any:
    """Return a new object of a kind with these parts; None if none can be made."""
    if kind == "csv.writer":
        return csv.writer(values[0], **dict(zip(_DIALECT, values[1:], strict=True)))
    if kind == "csv.DictWriter":
        writer = object.__new__(csv.DictWriter)
        vars(writer).update(zip(_DICT_WRITER, values, strict=True))
        return writer
    if kind == "sqlite3.Connection":
        return _reconnected(None, *values)
    if kind in ("io.StringIO", "io.BytesIO"):
        memory: Any = io.StringIO() if kind == "io.StringIO" else io.BytesIO()
        _fill(memory, *values)
        return memory
    if kind == "io.closed":
        return _make_closed(*values)
    if kind == "threading.local":
        vars(local := threading.local()).update(values[0])
        return local
    if kind == "threading.Event":
        _set_event(event := threading.Event(), is_set=values[0])
        return event
    if kind == "weakref.proxy":
        return weakref.proxy(_Begun(iter(())) if values[0] is None else values[0])
    if kind == "re.Pattern":
        return re.compile(*values)
    if kind == "inspect.Signature":
        return inspect.Signature([_made_parameter(*each) for each in values[0]], return_annotation=values[1])
    if kind == "typing.Union":
        return typing.Union[tuple(values[0])]  # noqa: UP007  what `|` makes is of another class
    if kind == "weakref.ref":
        return weakref.ref(_Begun(iter(())) if values[0] is None else values[0])  # one of what is gone is dead at once
    if kind in ("weakref.WeakKeyDictionary", "weakref.WeakValueDictionary"):
        weak: Any = weakref.WeakKeyDictionary() if kind == "weakref.WeakKeyDictionary" else weakref.WeakValueDictionary()
        _fill_weak(weak, *values)
        return weak
    if kind == "weakref.WeakSet":
        return weakref.WeakSet(*values)
    if kind == "array.array":
        return array.array(*values)
    if kind == "concurrent.futures.Future":
        job: Any = concurrent.futures.Future()
        job.set_result(*values)
        return job
    if kind == "types.MappingProxyType":
        return types.MappingProxyType(*values)
    maker: Callable[..., Any] | None = _MAKERS.get(kind)
    if maker is None:
        return None
    arguments, state = [*values[0]], values[1:]
    begun = _DRAWN_FROM.get(kind, slice(0, 0))
    arguments[begun] = [_Begun(each) if isinstance(each, Iterator) else each for each in arguments[begun]]
    made = maker(*arguments)
    if state and state[0] is not None:
        with _quiet():
            made.__setstate__(state[0])
    return made


def _reduced(value: Any) -> tuple[str, list[object]] | None:
    """Return what an iterator is made of: [the maker's arguments, its state if it has one]."""
    try:
        with _quiet():
            maker, arguments, *state = value.__reduce__()
    except (TypeError, ValueError):
        return None
    name = _NAMES.get(id(maker))
    if name == "itertools.cycle":  # what it has saved is its own: it must not be filled with something else
        state = [(list(state[0][0]), state[0][1])]
    return None if name is None or len(state) > 1 else (name, [arguments, *state])


def _connected(table: sqlite3.Connection) -> tuple[str, list[object]] | None:
    """Return what there is to a connection to one database in a file, outside of a transaction. Paths below the current
    folder are relative to it: the folder may be moved.
    """
    path = database_of(table)
    if not path or table.in_transaction:
        return None
    relative = os.path.relpath(path)
    shown = path if relative.startswith(os.pardir) else relative
    return "sqlite3.Connection", [shown, table.isolation_level, table.row_factory, table.text_factory]


def _reconnected(current: object, path: str, isolation: Any, rows: Any, texts: Any) -> sqlite3.Connection | None:
    """Return `current` if it is a connection to a database, else a new one, if that is there and below the current
    folder: a file must not say where to write.
    """
    known = _connected(current) if type(current) is sqlite3.Connection else None
    if known is None or known[1][0] != path:
        if os.path.isabs(path) or os.pardir in path.split(os.sep) or not os.path.isfile(path):
            return None
        current = sqlite3.connect(path)
    assert isinstance(current, sqlite3.Connection)
    current.isolation_level, current.row_factory, current.text_factory = isolation, rows, texts
    return current


def _closed(file: Any) -> tuple[str, list[object]] | None:
    """Return what there is to a closed file: its class, its name and its mode."""
    name, mode = getattr(file, "name", None), getattr(file, "mode", None)
    is_named = isinstance(name, str | int) and isinstance(mode, str | None)
    return ("io.closed", [type(file).__name__, name, mode]) if is_named else None


def _make_closed(cls: str, name: str | int, mode: str | None) -> object | None:
    if cls not in _FILES:
        return None
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


def _fill(memory: Any, content: Any, position: int) -> None:
    memory.seek(0)
    memory.truncate(0)
    memory.write(content)
    memory.seek(position)


def _set_event(event: threading.Event, *, is_set: bool) -> None:
    if is_set != event.is_set():
        (event.set if is_set else event.clear)()


def _is_alone() -> bool:
    """Return whether no other thread of the program runs: what is in a queue would be chance, or on its way."""
    others = [thread for thread in threading.enumerate() if thread is not threading.current_thread()]
    frames = sys._current_frames() if others else {}
    return all(type(each).__module__ == "tqdm._monitor" or pool_jobs.is_idle(each, frames.get(each.ident or 0)) for each in others)


def _queued(held: Any) -> list[Any]:
    """Return how many things a queue may hold, how many tasks are not done, and what is in it."""
    if type(held) is not queue.SimpleQueue:
        return [held.maxsize, held.unfinished_tasks, held.queue]
    content = [held.get_nowait() for _ in range(held.qsize())]
    for item in content:
        held.put(item)
    return [0, 0, content]


def _refilled(current: Any, kind: str, values: list[Any]) -> object | None:
    """Return a queue with these parts, `current` if it is one; None while other threads may put something in: a resumed
    run has started them again, and they end as they did.
    """
    cls = _QUEUES_BY_KIND[kind]
    held = current if type(current) is cls else cls()
    if not filled_queues.wait_until(_is_alone):
        return None
    if cls is not queue.SimpleQueue:
        held.maxsize, held.unfinished_tasks, held.queue = values
        return held  # type: ignore[no-any-return]
    while not held.empty():
        held.get_nowait()
    for item in values[2]:
        held.put(item)
    return held  # type: ignore[no-any-return]


def _fill_weak(held: Any, keys: list[Any], values: list[Any]) -> None:
    held.clear()
    for key, value in zip(keys, values, strict=True):
        held[key] = value


def _fill_set(held: weakref.WeakSet[Any], values: list[Any]) -> None:
    held.clear()
    held.update(values)


def _fill_array(held: array.array[Any], content: bytes) -> None:
    """Fill an array in place, others may look at its memory; while they do, it cannot grow."""
    if len(held) * held.itemsize == len(content):
        memoryview(held).cast("B")[:] = content
    else:
        del held[:]
        held.frombytes(content)


def _is_same(one: object, other: object) -> bool:
    """Return whether a part is the one that is there: the same object, or one as good: an equal number, an iterator as
    far.
    """
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(map(_is_same, one, other))
    described = parts(one), parts(other)
    if described[0] is not None and described[1] is not None:
        return _is_same(*described)
    return isinstance(one, bool | int | float | str | bytes | range) and one == other


def _file_behind(writer: Any) -> object | None:
    """Return the file whose `write` a writer of CSV holds: Python does not say, the garbage collector does."""
    owners = [getattr(held, "__self__", None) for held in gc.get_referents(writer) if getattr(held, "__name__", "") == "write"]
    return owners[0] if len(owners) == 1 else None


def _quiet() -> warnings.catch_warnings[None]:
    """Leave out the warning that iterators of `itertools` will not be copied from Python 3.14 on: there they are named
    instead.
    """
    return warnings.catch_warnings(action="ignore")
