"""The results of trials: a SQLite file for each worker, with a mark before each trial and a row behind it.

There is no other state. The missing trials are those of the plan that no file knows.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import xxhash

from detrain.base import messages
from detrain.base.errors import LedgerInvalid, StoreError
from detrain.faults.population.trial_row import TrialRow

_TYPES: Final = {field.name: field.type for field in msgspec.structs.fields(TrialRow)}
_NAMES: Final = tuple(_TYPES)
_COLUMNS: Final = ", ".join(f'"{name}"' for name in _NAMES)
_SQL: Final[dict[object, str]] = {int: "INTEGER", bool: "INTEGER", float: "REAL", float | None: "REAL"}
_GROUP: Final = 256
"""The most rows of a commit."""
_GROUP_S: Final = 1.0
"""The longest time that rows wait for a commit, in seconds."""
_BUSY_S: Final = 60.0


class Ledger:
    """The file of one worker, which only that worker writes."""

    def __init__(self, path: Path, digest: str) -> None:
        """Open the file of the plan with the given digest, or make it. Raises LedgerInvalid, StoreError."""
        self._path, self._waiting, self._committed = path, 0, time.monotonic()
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._told():
            self._file = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None)
            self._file.execute("PRAGMA journal_mode=WAL")
            self._file.execute("PRAGMA synchronous=NORMAL")
            self._file.execute("BEGIN IMMEDIATE")
            columns = ", ".join(f'"{name}" {_SQL.get(_TYPES[name], "TEXT")}' for name in _NAMES)
            self._file.execute(f"CREATE TABLE IF NOT EXISTS trial({columns.replace('INTEGER', 'INTEGER PRIMARY KEY', 1)})")
            self._file.execute("CREATE TABLE IF NOT EXISTS begun(number INTEGER PRIMARY KEY)")
            self._file.execute("CREATE TABLE IF NOT EXISTS unfired(number INTEGER PRIMARY KEY, why TEXT)")
            self._file.execute("CREATE TABLE IF NOT EXISTS lost(number INTEGER, worker TEXT)")
            self._file.execute("CREATE TABLE IF NOT EXISTS plan(digest TEXT)")
            known = self._file.execute("SELECT digest FROM plan").fetchone()
            if known is None:
                self._file.execute("INSERT INTO plan VALUES (?)", (digest,))
            self._file.execute("COMMIT")
        if known is not None and known[0] != digest:
            raise LedgerInvalid(f"{str(path)!r} is of the plan {known[0]}, this one is {digest}", "give another --name")
        self._file.isolation_level = None

    def note_running(self, number: int | None) -> None:
        """Mark a trial as begun, or as over (None): the mark names the trial in which a worker died.

        The mark is on disk when this returns.
        """
        with self._told():
            self._open()
            self._file.execute("DELETE FROM begun")
            if number is not None:
                self._file.execute("INSERT INTO begun VALUES (?)", (number,))
            self.commit()

    def add(self, row: TrialRow) -> None:
        """Write a row."""
        marks = ", ".join("?" * len(_NAMES))
        with self._told():
            self._open()
            self._file.execute(f"INSERT OR REPLACE INTO trial VALUES ({marks})", _values(row))
        self._count()

    def add_unfired(self, number: int, why: str) -> None:
        """Write that a trial's fault did not fire: there is no such trial."""
        with self._told():
            self._open()
            self._file.execute("INSERT OR REPLACE INTO unfired VALUES (?, ?)", (number, why))
        self._count()

    def add_lost(self, number: int, worker: str) -> None:
        """Write that a worker died in a trial."""
        with self._told():
            self._open()
            self._file.execute("INSERT INTO lost VALUES (?, ?)", (number, worker))
            self.commit()

    def commit(self) -> None:
        """Write all waiting rows to disk."""
        with self._told():
            if self._file.in_transaction:
                self._file.execute("COMMIT")
        self._waiting, self._committed = 0, time.monotonic()

    def close(self) -> None:
        """Write all waiting rows to disk, and close the file."""
        self.commit()
        with self._told():
            self._file.close()

    def _open(self) -> None:
        if not self._file.in_transaction:
            self._file.execute("BEGIN IMMEDIATE")

    def _count(self) -> None:
        self._waiting += 1
        if self._waiting >= _GROUP or time.monotonic() - self._committed > _GROUP_S:
            self.commit()

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            todo = "make room there and run the campaign again: what is in the ledger stays" if "full" in str(error) else ""
            raise StoreError(f"cannot write {str(self._path)!r}: {error}", todo or "run the campaign again") from error


class Ledgers:
    """All ledger files of a campaign, for reading."""

    def __init__(self, folder: Path, digest: str) -> None:
        self._folder, self._digest = folder, digest

    @property
    def files(self) -> list[Path]:
        """The files, by name."""
        return sorted(self._folder.glob("*.sqlite"))

    def set_damaged_aside(self) -> list[str]:
        """Rename files that cannot be read, with a warning: their trials are missing then, and run again.

        Raises LedgerInvalid for one of another plan.
        """
        found = []
        for path in self.files:
            try:
                with _reading(path) as file:
                    is_whole = file.execute("PRAGMA quick_check").fetchone()[0] == "ok"
                    (digest,) = file.execute("SELECT digest FROM plan").fetchone() or ("",)
                    file.execute("SELECT number FROM trial, lost, begun, unfired LIMIT 1") if not is_whole else None
            except (sqlite3.DatabaseError, TypeError):
                is_whole, digest = False, ""
            if is_whole and digest and digest != self._digest:
                raise LedgerInvalid(f"{str(path)!r} is of the plan {digest}, this one is {self._digest}", "give another --name")
            if is_whole and digest:
                continue
            for suffix in ("", "-wal", "-shm"):
                with contextlib.suppress(FileNotFoundError):
                    os.replace(f"{path}{suffix}", f"{path}.damaged-{int(time.time())}{suffix}")
            found.append(path.name)
            messages.warn(f"the ledger {path.name} is damaged: it is set aside as {path.name}.damaged-…, its trials run again")
        return found

    def rows(self) -> Iterator[TrialRow]:
        """Yield the rows of all files, by number. Raises LedgerInvalid if two rows of a trial differ."""
        with contextlib.ExitStack() as stack:
            sources = [_rows(stack.enter_context(_reading(path))) for path in self.files]
            merged = heapq.merge(*sources, key=lambda row: row.number)
            for number, group in itertools.groupby(merged, key=lambda row: row.number):
                first, *others = group
                for other in others:
                    if other.timeless() != first.timeless():
                        names = [name for name in _NAMES if getattr(other.timeless(), name) != getattr(first.timeless(), name)]
                        raise LedgerInvalid(
                            f"trial {number} came out in two ways: {', '.join(names)} (on {first.host} and {other.host})",
                            "the machines, or their libraries, are not the same to the bit: use one kind of them",
                        )
                yield first

    def unfired(self) -> dict[int, str]:
        """Return the trials whose faults did not fire, and why."""
        return dict(sorted(self._each("SELECT number, why FROM unfired")))

    def known(self) -> set[int]:
        """Return the numbers of the trials that have a row, or whose fault did not fire."""
        return {row[0] for row in self._each("SELECT number FROM trial UNION SELECT number FROM unfired")}

    def lost(self) -> dict[int, int]:
        """Return the number of workers that died in each trial."""
        found: dict[int, int] = {}
        for number, count in self._each("SELECT number, COUNT(*) FROM lost GROUP BY number"):
            found[number] = found.get(number, 0) + count
        return found

    def running(self, shard: str) -> int | None:
        """Return the trial that a file's worker is in, or was in when it died, as far as it is known."""
        path = self._folder / f"{shard}.sqlite"
        if not path.is_file():
            return None
        with _reading(path) as file:
            found = file.execute("SELECT number FROM begun").fetchone()
            if found is None or file.execute("SELECT 1 FROM trial WHERE number = ?", found).fetchone() is not None:
                return None
        return int(found[0])

    def shares(self) -> dict[str, int]:
        """Return the number of trials of each outcome; a trial that two workers did counts twice."""
        found: dict[str, int] = {}
        for outcome, count in self._each("SELECT outcome, COUNT(*) FROM trial GROUP BY outcome"):
            found[outcome] = found.get(outcome, 0) + count
        return found

    def digest(self) -> str:
        """Return the digest (xxh3-128, hex) of all rows, without times and hosts, and of faults that did not fire."""
        state = xxhash.xxh3_128()
        encoder = msgspec.json.Encoder(order="deterministic")
        for row in self.rows():
            state.update(encoder.encode(row.timeless()))
        state.update(encoder.encode(list(self.unfired().items())))
        return state.hexdigest()

    def _each(self, query: str) -> Iterator[tuple[Any, ...]]:
        for path in self.files:
            with _reading(path) as file:
                try:
                    yield from file.execute(query).fetchall()
                except sqlite3.OperationalError:  # the file has no tables yet
                    continue


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    file = sqlite3.connect(path, timeout=_BUSY_S)
    try:
        yield file
    finally:
        file.close()


def _values(row: TrialRow) -> list[object]:
    values = [getattr(row, name) for name in _NAMES]
    return [",".join(map(str, value)) if isinstance(value, tuple) else value for value in values]


def _rows(file: sqlite3.Connection) -> Iterator[TrialRow]:
    try:
        found = file.execute(f"SELECT {_COLUMNS} FROM trial ORDER BY number")
    except sqlite3.OperationalError:
        return
    for values in found:
        entry: dict[str, Any] = dict(zip(_NAMES, values, strict=True))
        entry["bits"] = tuple(map(int, filter(None, entry["bits"].split(","))))
        entry["is_equal"] = bool(entry["is_equal"])
        yield TrialRow(**entry)
