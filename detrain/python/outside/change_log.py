"""The log of a run's changes to folders and files, written at once: from it, the next process after a kill knows the
state of the folders.

Files that the loop has written still exist when the run begins again, from a checkpoint or, if killed before its first
one, from its start. Code that runs a second time must then not fail: a folder that it makes exists, a file that it
removes is gone, a file that it appends to already has the lines. And a file from before the loop that the loop has
removed is missing (a checkpoint of the program's own from which it was told to go on): such files are linked beside the
checkpoints and put back.

There is one log for all processes of a run, with a line of JSON for each change; a torn last line is passed over. Kinds
of lines, with their values besides a path (NAME is that of a kept file): `begun` (questions of the program so far):
the first training loop is entered; `made` a folder; `cleared` a file; `appended` (length before) to a file; `kept`
(NAME): a file is linked; `rewritten`: a file that the program had already opened for writing before the loop; `aside`
(NAME): a process on its way to a cut has put such a file away; `filling` a cache in files with this prefix; `moved`
(new name in the same folder, inode): a file that is appended to; `dropped` (NAME, inode): such a file was removed or
emptied; `undone`: these two are undone; `created`: the loop has made a file; `database` (NAME; empty if there was none,
null if not kept): SQLite opens one; `replaced` (NAME, see `file_versions`): a file is written as a whole; `returned` (a
cut): those are as they were there; `found` (NAME): a file that code before the loop has read is written as a whole, and
kept as the run found it; `read` (NAME, number): a file with the content that code between loops has read, up to this
read of it; `cut`: a checkpoint was taken here.
"""

from __future__ import annotations

import contextlib
import glob
import io
import json
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from detrain.base.cursor import Cursor
from detrain.store.atomic_file import append_line
from detrain.store.catalogue import KEPT, TAKEN

_KINDS: Final = {
    **{"begun": 1, "made": 1, "cleared": 1, "appended": 2, "kept": 2, "rewritten": 1, "aside": 2, "filling": 1, "cut": 1},
    **{"moved": 3, "dropped": 3, "undone": 0, "created": 1, "database": 2, "replaced": 2, "returned": 1, "found": 2, "read": 3},
}
"""The number of values in a line of each kind."""
_NUMBER: Final = re.compile(r"[0-9]{6,}")
"""The form of names of kept files, so that a forged log leads to no other file."""
_COPIED_AT_ONCE: Final = 1 << 20
"""In bytes."""
NO_FILE: Final = ""
NO_ROOM: Final = "-"
"""In place of a kept file's name: there was no file, or it is not kept."""
_CUTS: Final = 3
"""The number of cuts for which versions of files are kept: no run goes back further by itself."""
_rename, _unlink, _rmdir = os.rename, os.unlink, os.rmdir  # taken before calls of the program are followed


class Changes:
    """The changes of one run: those of earlier processes, and those of this one. Paths are absolute."""

    def __init__(self, path: Path, since: Cursor | None, *, is_fresh: bool = False) -> None:
        """Read the log.

        `since` is the cut from which the run goes on, None if it begins. With `is_fresh`, the run starts anew: earlier
        folders, removals, moves and versions do not count.
        """
        self._path, self._is_fresh, self._began_at = path, is_fresh, time.time()
        self.kept_in = path.with_suffix(KEPT)
        self._begun: dict[str, list[str]] | None = None
        self._made: set[str] = set()
        """Folders made, and files cleared away, by an earlier process at a later moment of the run."""
        self._cleared: set[str] = set()
        self.appended: dict[str, int] = {}
        """Files that were first appended to at a later moment of the run, with their lengths before."""
        self.created: set[str] = set()
        """Files that the loop made at a later moment of the run."""
        self._kept: dict[str, str] = {}
        self._is_gone: set[str] = set()
        """Kept files that were cleared away before the cut from which the run goes on."""
        self._rewritten: set[str] = set()
        """Files that the loop wrote as a whole, or took away, before that cut."""
        self._aside: dict[str, str] = {}
        """Such files that are put away for now: code before the loop writes them again, but the cut needs the loop's
        content."""
        self._moves: list[tuple[str, str, int]] = []
        """Files that a later moment of the run has moved: (old path, new path, inode)."""
        self._dropped: list[Path] = []
        """Files that this process has kept since the newest cut; in the next attribute, between the two newest cuts."""
        self._dropped_before: list[Path] = []
        self.databases: dict[str, str | None] = {}
        """Databases that the run has opened, with the names under which they are kept as they were then: empty if there
        was none, None if it is not kept."""
        self.versions: dict[str, str] = {}
        """Files that a later moment has written as a whole, with the names of their kept content at the cut."""
        self._at_cuts: dict[str, dict[str, str]] = {}
        """A copy of `versions` at each cut: entries after the cut may have been put back."""
        self._old: list[list[Path]] = [[]]
        """Files kept between the newest cuts, one list for each; the last list is for the time since the newest cut."""
        self._as_found: dict[str, str] = {}
        """Files that code before the loop has read and the loop has written as a whole, with the names under which they
        are kept as the run found them."""
        self._read: dict[str, dict[int, str]] = {}
        """Files that code between loops has read, with the names of their kept contents by the number of the read."""
        self._names, self._since = 0, _name(since)
        lines = _lines(path)
        self._filling = {values[0] for kind, *values in lines if kind == "filling"}
        cuts = [number for number, (kind, *values) in enumerate(lines) if kind == "cut" and values == [_name(since)]]
        renamed = {path for kind, *values in lines if kind in ("moved", "dropped") for path in values[:2]}
        appended = [values for kind, *values in reversed(lines) if kind == "appended"]
        self.found: dict[str, int] = {path: size for path, size in appended if path not in renamed}
        """Files that are appended to and were never renamed, with their lengths when the run first appended."""
        self.folders = frozenset(values[0] for kind, *values in lines if kind == "made" and not is_fresh)
        """Folders that earlier processes have made at any moment of the run."""
        start = cuts[-1] + 1 if cuts else 0 if since is None else len(lines)
        for number, (kind, *values) in enumerate(lines):
            self._names += kind in ("kept", "aside", "dropped", "replaced", "database", "found", "read")
            if kind == "read" and not is_fresh:
                self._read.setdefault(values[0], {})[values[2]] = values[1]
            if kind == "found":
                self._as_found[values[0]] = values[1]
            elif kind == "database":
                self.databases[values[0]] = values[1]
            elif kind == "aside":
                self._aside[values[0]] = values[1]
            elif kind == "rewritten":
                self._rewritten |= {values[0]} if number < start else set()
            elif kind == "kept":
                self._kept[values[0]] = values[1]
                self._is_gone |= {values[0]} if number < start else set()
            elif number < start and kind == "replaced" and values[1] not in (NO_FILE, NO_ROOM):
                self.prune_later(values[1])  # an earlier process has kept it
            elif number >= start:
                self._take(kind, values, is_fresh=is_fresh)
        self._has_begun = since is not None

    @property
    def goes_on(self) -> bool:
        """Whether the run has a checkpoint to go on from, or has entered its first loop."""
        return self._has_begun

    @property
    def heard(self) -> dict[str, list[str]] | None:
        """The recorded questions of the program up to its first loop, if the run was killed before its first
        checkpoint.
        """
        return None if self._has_begun else self._begun

    def found_by_run(self) -> dict[str, int | Path | None]:
        """Return the state in which the run found files that it has changed, by path: a length, a kept file, or None if
        there was none.

        The log must be that of a run that begins. Files that were written as a whole and are not kept are left out.
        """
        versions = {path: name for path, name in self.versions.items() if name != NO_ROOM} | self._as_found
        kept = {path: self.kept_in / name if name != NO_FILE else None for path, name in versions.items()}
        return {**dict.fromkeys(self.folders | self.created), **self.appended, **dict.fromkeys(self.created), **kept}

    def put_back(self) -> None:
        """Before the program starts, put back the files that it found at its first start (or, for a fresh run, that it
        would find now).
        """
        self.return_aside()
        for path, name in self._kept.items():
            if not os.path.lexists(path):
                with contextlib.suppress(OSError):
                    os.makedirs(os.path.dirname(path), exist_ok=True)
                    link_file(self.kept_in / name, path)
        if self._is_fresh:
            self.forget()
            self._kept.clear()
            self.databases.clear()

    def move_back(self, keep: Callable[[str], None]) -> None:
        """Before the program starts, move files back that a later moment has moved. `keep` takes away a file that is in
        their place.
        """
        for path, now, inode in reversed(self._moves):
            with contextlib.suppress(OSError):
                if os.stat(now).st_ino == inode:
                    if os.path.lexists(path):
                        keep(path)
                    _move(now, path)
        if self._moves:
            self._moves.clear()
            self._add("undone")

    def move(self, path: str, to: str) -> None:
        """Note that a file that is appended to is about to be renamed."""
        if os.path.dirname(path) == os.path.dirname(to):
            self._add("moved", path, to, os.stat(path).st_ino)

    def drop(self, path: str) -> None:
        """Keep a file that was appended to, before it is cleared away."""
        self._keep_dropped(path, link_file)

    def empty(self, path: str) -> None:
        """Keep a copy of a file that was appended to, before it is emptied."""
        self._keep_dropped(path, copy_file)

    def _keep_dropped(self, path: str, put: Callable[[str, Path], object]) -> None:
        with contextlib.suppress(OSError):
            kept = self.kept_in / self.new_name()
            put(path, kept)
            self._add("dropped", path, kept.name, os.stat(kept).st_ino)
            self._dropped.append(kept)

    def create(self, path: str) -> None:
        """Note that the loop is about to make a file."""
        self.created.discard(path)
        self._add("created", path)

    def hold_database(self, path: str, copy: Callable[[Path], object] | None, *, is_new: bool) -> None:
        """Keep a database before it is opened; `copy` writes its content to a path, None if it is not to be kept."""
        name = "" if is_new else None
        with contextlib.suppress(OSError):
            if copy is not None:
                taken = self.new_name()
                copy(self.kept_in / taken)
                name = taken
        self.databases[path] = name
        self._add("database", path, name)

    def kept(self, name: str) -> Path:
        """Return the path of the kept file with such a name."""
        return self.kept_in / name

    def rewrite(self, path: str) -> None:
        """Note that the loop writes a file as a whole, or takes it away: code before the loop may write it, too."""
        if path not in self._rewritten:
            self._rewritten.add(path)
            self._add("rewritten", path)

    def put_aside(self, path: str, put: Callable[[str, Path], object] | None = None) -> None:
        """Put a file away, by `put` or else by a move, that the loop has written, before code ahead of the loop writes
        or removes it again; note if there is none.
        """
        if path not in self._rewritten or path in self._aside:
            return
        if os.path.isfile(path):
            with contextlib.suppress(OSError):
                name = self.new_name()
                self._aside[path] = name
                self._add("aside", path, name)
                (put or move_file)(path, self.kept_in / name)
        elif not os.path.lexists(path):
            self._aside[path] = NO_FILE

    def return_aside(self) -> None:
        """Move the files that were put aside back, over the files that were written there since."""
        for path, name in self._aside.items():
            with contextlib.suppress(OSError):
                if name == NO_FILE:
                    if os.stat(path).st_mtime >= self._began_at:  # else another rank has returned it
                        _unlink(path)
                elif (self.kept_in / name).is_file():
                    os.makedirs(os.path.dirname(path), exist_ok=True)
                    move_file(self.kept_in / name, path)
        self._aside.clear()

    def note_version(self, path: str, name: str) -> None:
        """Note that a file is about to be written as a whole for the first time since the cut."""
        self._add("replaced", path, name)

    def prune_later(self, name: str) -> None:
        """Have the kept file with this name removed some cuts later."""
        self._old[-1].append(self.kept_in / name)

    def keep_as_found(self, path: str) -> None:
        """Keep a file that code before the loop has read, before it is written as a whole for the first time in the
        run."""
        if path not in self._as_found:
            name = self.new_name()
            with contextlib.suppress(OSError):
                copy_file(path, self.kept_in / name)
                self._as_found[path] = name
                self._add("found", path, name)

    def as_found(self, path: str) -> Path | None:
        """Return the path of the kept copy of such a file as the run found it; None if there is none."""
        return self.kept_in / self._as_found[path] if path in self._as_found else None

    def keep_read(self, path: str, number: int, put: Callable[[str, Path], object]) -> None:
        """Keep the content that code between loops has read, up to this read of the file, by `put`."""
        with contextlib.suppress(OSError):
            name = self.new_name()
            put(path, self.kept_in / name)
            self._add("read", path, name, number)

    def as_read(self, path: str, number: int) -> Path | None:
        """Return the path of the kept content that this read of a file had; None if there is none."""
        numbers = [each for each in self._read.get(path, ()) if each >= number]
        name = self._read[path][min(numbers)] if numbers else self._aside.get(path, NO_FILE)
        return self.kept_in / name if name != NO_FILE and (self.kept_in / name).is_file() else None

    def is_rewritten(self, path: str) -> bool:
        """Return whether the loop has written a file as a whole."""
        return path in self._rewritten

    def returned(self) -> None:
        """Note that the files that were replaced after the cut are as they were there."""
        self._add("returned", self._since)

    def is_gone(self, name: str) -> bool:
        """Return whether the kept file with this name was of too early a moment, and has been removed."""
        return not (self.kept_in / f"{name}{TAKEN}").exists()

    def new_name(self) -> str:
        """Return a new name for a kept file, which is never given twice: forked children count on from here, too."""
        self.kept_in.mkdir(exist_ok=True)
        while True:
            name = f"{self._names:06d}"
            self._names += 1
            with contextlib.suppress(FileExistsError):
                io.FileIO(self.kept_in / f"{name}{TAKEN}", "x").close()
                if not os.path.lexists(self.kept_in / name):
                    return name

    def arrive(self) -> None:
        """As the run arrives at its cut, remove the files that had been removed before it."""
        for path in self._is_gone:
            with contextlib.suppress(OSError):
                if os.path.samefile(path, self.kept_in / self._kept[path]):
                    os.unlink(path)
        self._is_gone.clear()

    def begin(self, heard: dict[str, list[str]]) -> None:
        """Note that the program enters its first training loop (or is started again with probes there)."""
        if not self._has_begun:
            self._has_begun = True
            self._add("begun", heard)

    def make(self, path: str, real: Callable[[], object]) -> None:
        """Make a folder, unless a later moment of the run has made it already."""
        if not (path in self._made and os.path.isdir(path)):
            real()
        self._made.discard(path)
        self._add("made", path)

    def unmake(self) -> None:
        """Remove the folders that only a later moment of the run has made, if nothing is left in them."""
        for path in sorted(self._made, reverse=True):  # those in a folder before the folder
            with contextlib.suppress(OSError):
                _rmdir(path)
                self._made.discard(path)

    def clear(self, path: str, real: Callable[[], object]) -> None:
        """Remove a file or folder by `real`. It may be absent if a later moment has removed it already."""
        try:
            real()
        except FileNotFoundError:
            if path not in self._cleared:
                raise
        self._cleared.discard(path)
        self._add("cleared", path)

    def keep(self, path: str, before: float) -> None:
        """Keep a file that is about to be removed, if it is older than `before` (seconds since 1970)."""
        with contextlib.suppress(OSError):
            if path not in self._kept and os.path.isfile(path) and os.stat(path).st_mtime < before:
                name = self.new_name()
                link_file(path, self.kept_in / name)
                self._kept[path] = name
                self._add("kept", path, name)

    def append(self, path: str, size: int) -> None:
        """Note that a file of `size` bytes is appended to for the first time."""
        self._add("appended", path, self.appended.pop(path, size))

    def fill(self, prefix: str) -> None:
        """Note that a cache in files is opened.

        Remove the lock of an earlier process of this run that was killed while it filled the cache.
        """
        if prefix in self._filling:
            for lock in glob.glob(f"{glob.escape(prefix)}_*.lockfile"):
                with contextlib.suppress(OSError):
                    os.unlink(lock)
            self._filling.discard(prefix)
        self._add("filling", prefix)

    def cut(self, cursor: Cursor) -> None:
        """Note that a checkpoint is taken here.

        Changes that an earlier process made at a still later moment are logged again, after this line.
        """
        for kept in self._dropped_before:  # no run goes back that far by itself
            for each in (kept, kept.with_name(f"{kept.name}{TAKEN}")):
                each.unlink(missing_ok=True)
        self._dropped_before, self._dropped = self._dropped, []
        self._old.append([])
        for kept in self._old.pop(0) if len(self._old) > _CUTS else ():
            for each in (kept, kept.with_name(f"{kept.name}{TAKEN}")):
                with contextlib.suppress(FileNotFoundError):
                    _unlink(each)
        lines: list[tuple[Any, ...]] = [("cut", _name(cursor))]
        lines += [("made", path) for path in sorted(self._made)]
        lines += [("cleared", path) for path in sorted(self._cleared)]
        lines += [("appended", path, size) for path, size in sorted(self.appended.items())]
        lines += [("created", path) for path in sorted(self.created)]
        for line in lines:
            self._add(*line)

    def forget(self) -> None:
        """Remove the log of a run that has ended by itself without a checkpoint: the next run begins anew."""
        self._path.unlink(missing_ok=True)
        shutil.rmtree(self.kept_in, ignore_errors=True)

    def _take(self, kind: str, values: list[Any], *, is_fresh: bool) -> None:
        if kind in ("moved", "dropped") and not is_fresh:
            to = values[1] if kind == "moved" else str(self.kept_in / values[1])
            self._moves.append((values[0], to, values[2]))
        elif kind == "undone":
            self._moves.clear()
        elif kind == "replaced" and not is_fresh:
            self.versions.setdefault(values[0], values[1])
        elif kind == "cut":
            self._at_cuts[values[0]] = dict(self.versions)
        elif kind == "returned":
            self.versions = dict(self._at_cuts.get(values[0], {}))
        elif kind == "appended":
            self.appended.setdefault(values[0], values[1])
        elif kind == "created":
            self.created.add(values[0])
        elif kind == "begun" and not is_fresh:
            self._begun = values[0]
        elif kind in ("made", "cleared") and not is_fresh:
            (self._made if kind == "made" else self._cleared).add(values[0])

    def _add(self, *line: Any) -> None:
        with contextlib.suppress(OSError):
            append_line(self._path, json.dumps(line).encode() + b"\n")


def _lines(path: Path) -> list[list[Any]]:
    """Return the valid lines of a log."""
    found = []
    with contextlib.suppress(OSError):
        for text in path.read_bytes().splitlines():
            with contextlib.suppress(ValueError):
                line = json.loads(text)
                is_line = isinstance(line, list) and line and len(line) - 1 == _KINDS.get(line[0])
                is_none = is_line and (line[0], line[-1]) in (("replaced", NO_FILE), ("replaced", NO_ROOM))
                is_kept = is_line and (
                    line[0] in ("kept", "aside", "dropped", "replaced", "found", "read") or (line[0] == "database" and line[2])
                )
                is_kept = is_kept and not is_none
                is_moved = is_line and line[0] == "moved"
                if is_line and (
                    (not is_kept or _NUMBER.fullmatch(line[2]))
                    and (not is_moved or os.path.dirname(line[1]) == os.path.dirname(line[2]))
                ):
                    found.append(line)
    return found


def _name(cursor: Cursor | None) -> str:
    return "" if cursor is None else f"{cursor.phase} {cursor.epoch} {cursor.batch} {cursor.cut}"


def _move(source: str | Path, target: str | Path) -> None:
    """Move a file in one step, also between disks."""
    try:
        os.replace(source, target)
    except OSError:
        part = f"{target}.part"
        shutil.copy2(source, part)
        os.replace(part, target)
        os.unlink(source)


def copy_file(source: str | Path, target: str | Path) -> None:
    """Copy a file with its times and rights, by functions that detrain does not follow."""
    with io.FileIO(source) as read, io.FileIO(target, "w") as written:
        shutil.copyfileobj(read, written, _COPIED_AT_ONCE)
    shutil.copystat(source, target)


def move_file(source: str | Path, target: str | Path) -> None:
    """Move a file in one step, also between disks, by functions that detrain does not follow."""
    try:
        _rename(source, target)
    except OSError:
        part = f"{target}.part"
        copy_file(source, part)
        _rename(part, target)
        _unlink(source)


def link_file(source: str | Path, target: str | Path) -> None:
    """Give a file a second name; make a copy if that is on another disk."""
    try:
        os.link(source, target)
    except OSError:
        copy_file(source, target)
