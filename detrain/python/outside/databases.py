"""SQLite databases that the program writes: their content at a cut is part of the state.

A library keeps its data in a database (a study of optuna), and code before the loop reads it and writes to it again. So
a resumed run first finds each database as it was when the run opened it, and at the cut as it was there. Data that
other processes write meanwhile would be lost: a database that another process has open is refused.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import sqlite3
import sys
import urllib.parse
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from detrain.base import messages
from detrain.base.digest import Array
from detrain.base.errors import Diverged, EnvironmentChanged
from detrain.python.outside.change_log import Changes
from detrain.python.outside.clock_and_entropy import is_record

_LARGEST: Final = 64 << 20
"""In bytes: a larger database is not kept, and named as lost if it changes."""
_TOO_LARGE: Final = "the loop changes it in place, and it is too large to be held"
_IN_USE: Final = "a transaction is open"
_BESIDE: Final = ("", "-wal", "-shm", "-journal")
"""Suffixes of the files of a database."""
_THROUGH: Final = ("sqlalchemy", "alembic", "sqlite3", "contextlib")
"""Modules through which libraries open a database."""
_VERSIONS: Final = slice(18, 20)
"""Bytes in a database that say whether it has a log beside it, which a database in memory cannot have."""
_connect: Final = sqlite3.connect
"""The real `sqlite3.connect`."""


class Databases:
    """The databases that the program has opened, by their absolute paths."""

    def __init__(self, changes: Changes, is_users: Callable[[str], bool]) -> None:
        """`is_users` returns whether a file may belong to the program."""
        self._changes, self._is_users = changes, is_users
        self._process = os.getpid()
        self._began: dict[str, bytes] = {}
        """The fingerprint (see `_looks`) of each database when this process first opened it."""
        self._records: set[str] = set()
        """Databases that a library of experiment records has opened; its threads may open them again."""

    def watch(self) -> None:
        """Put the databases back that an earlier process of the run has opened, as they were then, and follow all that
        are opened from now on.
        """
        for path, name in self._changes.databases.items():
            self._begin_again(path, name)

        @functools.wraps(_connect)
        def connect(database: Any, *arguments: Any, **keywords: Any) -> Any:
            if os.getpid() == self._process and (path := _path_of(database)):
                self._opens(path)
            return _connect(database, *arguments, **keywords)

        sqlite3.connect = sqlite3.dbapi2.connect = connect

    @property
    def known(self) -> Collection[str]:
        """The databases that the run has opened."""
        return {*self._began, *self._changes.databases}

    def changed(self) -> dict[str, bytes]:
        """Return the databases that have changed since this process first opened them, each with a fingerprint."""
        return {path: now for path, before in self._began.items() if (now := _looks(path)) != before}

    def not_captured(self) -> dict[str, str]:
        """Return the databases with content that a checkpoint cannot hold, and the reasons."""
        found = {}
        for path in self.changed():
            if _size(path) > _LARGEST or self._changes.databases.get(path) is None:
                found[path] = _TOO_LARGE
            elif _is_in_transaction(path):
                found[path] = _IN_USE
        return found

    def state(self) -> dict[str, Array]:
        """Return the contents of the databases that have changed since this process first opened them."""
        lost = self.not_captured()
        return {path: _contents(path) for path in sorted(self.changed()) if path not in lost}

    def restore(self, contents: Mapping[str, Array]) -> None:
        """Restore the contents of databases at a cut. Connections stay open. Raises Diverged if one prevents it."""
        for path, data in contents.items():
            whole = bytearray(data.tobytes())
            whole[_VERSIONS] = b"\1\1"
            try:
                with contextlib.closing(_connect(":memory:")) as source, contextlib.closing(_connect(path, timeout=1)) as target:
                    source.deserialize(bytes(whole))
                    source.backup(target)
            except sqlite3.Error as error:
                raise Diverged(
                    f"{path} cannot be put back as it was at the checkpoint: {error}",
                    "does code before the loop read from it and not come to the end? Start anew with --fresh",
                ) from error

    def _opens(self, path: str) -> None:
        """Note that the program is about to open a database."""
        if path in self._began or path in self._records or not self._is_users(path):
            return
        if is_record(sys._getframe(2), _THROUGH):
            self._records.add(path)
            return
        self._began[path] = _looks(path)
        if path not in self._changes.databases:
            size = _size(path)
            self._changes.hold_database(path, functools.partial(_copy, path) if 0 < size <= _LARGEST else None, is_new=not size)

    def _begin_again(self, path: str, name: str | None) -> None:
        """Put a database back as it was when the run first opened it, and keep its content now."""
        if name is None:
            return
        start = self._changes.kept(name) if name else None
        if _size(path):
            _require_alone(path)
            later = _contents(path).tobytes()
            if start is None or later != start.read_bytes():
                kept = self._changes.kept(f"{os.path.basename(path)}.later")
                kept.parent.mkdir(exist_ok=True)
                kept.write_bytes(later)
                if self._changes.goes_on:
                    messages.say(
                        f"{path} is put back as the run found it, and then as it was at the checkpoint; {kept} has it as it is"
                    )
        for end in _BESIDE:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path + end)
        if start is not None:
            shutil.copyfile(start, path)
        self._began[path] = _looks(path)


def _path_of(database: object) -> str:
    """Return the path of the file that `connect` is to open; empty if it is no file, or is only read."""
    if not isinstance(database, str | bytes | os.PathLike):
        return ""
    name, _, query = os.fsdecode(database).partition("?")
    if name.startswith("file:"):
        if "mode=memory" in query or "mode=ro" in query or "immutable=1" in query:
            return ""
        name = urllib.parse.unquote(name.removeprefix("file:"))
    return "" if name in ("", ":memory:") else os.path.abspath(name)


def _size(path: str) -> int:
    """Return the size of a database with the log beside it, in bytes; 0 if there is none."""
    return sum(os.path.getsize(name) for name in (path, f"{path}-wal") if os.path.isfile(name))


def _looks(path: str) -> bytes:
    """Return a fingerprint of a database's state: sizes and times of its file and of the log beside it."""
    found = []
    for name in (path, f"{path}-wal"):
        with contextlib.suppress(OSError):
            now = os.stat(name)
            found.append((name, now.st_size, now.st_mtime_ns))
    return repr(found).encode()


def _contents(path: str) -> Array:
    """Return the committed content of a database."""
    with contextlib.closing(_connect(path, timeout=1)) as file:
        return np.frombuffer(file.serialize(), np.uint8)


def _copy(path: str, to: Path) -> None:
    try:
        to.write_bytes(_contents(path).tobytes())
    except sqlite3.Error as error:
        raise OSError(str(error)) from error  # no database, or in use


def _is_in_transaction(path: str) -> bool:
    """Return whether a connection has uncommitted writes: another one cannot write then."""
    try:
        with contextlib.closing(_connect(path, timeout=0, isolation_level=None)) as file:
            file.execute("begin immediate")
            file.execute("rollback")
    except sqlite3.OperationalError:
        return True
    return False


def _require_alone(path: str) -> None:
    """Raise EnvironmentChanged if another process has a database open."""
    wanted = os.stat(path)
    for process in filter(str.isdecimal, os.listdir("/proc") if os.path.isdir("/proc") else ()):
        if int(process) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            for number in os.listdir(f"/proc/{process}/fd"):
                with contextlib.suppress(OSError):
                    if os.path.samestat(os.stat(f"/proc/{process}/fd/{number}"), wanted):
                        raise EnvironmentChanged(
                            f"{path} is open in process {process}: a resumed run puts back what is in it",
                            "end that process, or start anew with --fresh",
                        )
