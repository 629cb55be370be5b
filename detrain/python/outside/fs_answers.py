"""Questions of the program to the file system outside of its loops, and files that it removes there.

That code runs again when a run resumes, and then finds files that the loop has written since: it would go on by itself
from its own checkpoints, number its folder of results anew, or remove files of the run. So the answers are recorded,
and a resumed run gets the first run's answers; files that the first run removed are not removed again. Data that the
program prepared before its loop (a download, a cache), and has not touched since, stay visible: preparing them again
would take hours, or a network.

Libraries ask for the program, too (a checkpoint manager, for its newest step), and ask more than can be recorded. For
them, files below the program's folder that were written since the first run entered its loop do not exist.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import pathlib
import shutil
import stat
import sys
import time
from collections.abc import Callable, Collection, Iterable
from types import FrameType
from typing import Any, Final

import xxhash

from detrain.base import messages
from detrain.python.outside.change_log import Changes
from detrain.python.outside.clock_and_entropy import Outside, is_asked_by_library, is_asked_by_program, sorted_entries
from detrain.python.outside.open_files import Files

_THROUGH: Final = ("pathlib", "glob")
_THROUGH_WALK: Final = ("os", "pathlib", "glob")
_THROUGH_LINK: Final = ("posixpath", "pathlib", "glob")
_THROUGH_READ: Final = ("pathlib", "numpy", "gzip", "bz2", "lzma", "zipfile", "tarfile", "torch.serialization")
"""Modules through which the program may ask about files."""
_PYTHONS: Final = frozenset({"<frozen posixpath>", "<frozen genericpath>", "<frozen importlib._bootstrap_external>"})
"""Files with the code of modules through which it never asks."""
_YES_OR_NO: Final[tuple[tuple[Any, str], ...]] = (
    *((os.path, name) for name in ("exists", "lexists", "isfile", "isdir", "islink")),
    *((pathlib.Path, name) for name in ("exists", "is_file", "is_dir")),
    (os, "access"),
)
_TELLING: Final[tuple[tuple[Any, str], ...]] = (
    *((os, name) for name in ("stat", "lstat")),
    *((os.path, name) for name in ("getsize", "getmtime", "getatime", "getctime")),
)
"""Functions that raise an error if the path does not exist."""
_CLEARING: Final[tuple[tuple[Any, str], ...]] = (
    *((os, name) for name in ("remove", "unlink", "rename", "replace")),
    *((shutil, name) for name in ("rmtree", "move")),
)
"""Functions that take a file or folder away."""
_OVER: Final = ("rename", "replace", "move")
"""Functions that may put a file in the place of another."""
_MOST_NAMES: Final = 1000
"""Longer listings are of data, to which training adds nothing."""
_ALL: Final = "all"
_NO: Final = "0"
_LEAST_BYTES: Final = 1 << 20
"""Folders with fewer bytes may be folders of results, which first get only the settings of the run."""
_MOST_FILES: Final = 10_000
_NAME_DIGITS: Final = 12
_scandir: Final = os.scandir
_stat: Final = os.stat
_lstat: Final = os.lstat
_access: Final = os.access
"""The real functions."""


class Answers:
    """The answers of one run, over all its processes."""

    def __init__(self, outside: Outside, files: Files, changes: Changes) -> None:
        self._outside, self._files, self._changes = outside, files, changes
        self._said: set[str] = set()
        self._data: dict[str, bool] = {}
        """Whether paths that an earlier process has made, and for which libraries have asked, are data."""
        self.asked: dict[str, int] = {}
        """How often each yes-or-no question was asked. Only the turns with the answer no are recorded."""
        self._started = time.time()
        self._has_entered = False
        self._is_asking = False
        """Whether a question is being answered: questions asked inside of it are not the program's."""

    def enter(self) -> None:
        """Note that the program enters its first training loop."""
        self._has_entered = True

    def watch(self) -> None:
        """Replace the functions of Python by ones that give the recorded answers."""
        for owner, name in _YES_OR_NO:
            setattr(owner, name, self._asking(name, getattr(owner, name)))
        for owner, name in _TELLING:
            setattr(owner, name, self._telling(name, getattr(owner, name)))
        os.readlink = self._leading(os.readlink)
        for known in (os.supports_fd, os.supports_dir_fd, os.supports_follow_symlinks, os.supports_effective_ids):
            known |= {getattr(os, each.__name__) for each in known}
        os.listdir = self._listing(os.listdir, lambda name: name)
        os.scandir = self._listing(os.scandir, lambda entry: entry.name)
        self._files.may_read, self._files.was_there = self._may_read, self._was_there
        for owner, name in _CLEARING:
            setattr(owner, name, self._clearing(name, getattr(owner, name)))

    def is_so(self, question: str, path: Any, real: Callable[[], bool]) -> bool:
        """Return the answer to a yes-or-no question about a path."""
        if not self._outside.is_recording:
            return real()
        kind = _kind(question, path)
        turn = self.asked[kind] = self.asked.get(kind, 0) + 1
        if str(turn) in self._outside.readings.get(kind, ()):
            return self._is_prepared(path) and self._ask(real)
        is_there = self._ask(real)
        if not is_there:  # a yes needs no record: there may be thousands of data files
            self._outside.note(kind, str(turn))
        return is_there

    def _ask(self, real: Callable[[], bool]) -> bool:
        before, self._is_asking = self._is_asking, True
        try:
            return real()
        finally:
            self._is_asking = before

    def told(self, question: str, path: Any, real: Callable[[], str]) -> str:
        """Return the answer, a text, to a question about a path."""
        return self._outside.read(_kind(question, path), real) if self._outside.is_recording else real()

    def among(self, question: str, path: Any, items: Iterable[Any], name_of: Callable[[Any], str]) -> list[Any]:
        """Return the items of a folder (or, with whole paths as names, of a pattern's matches) that existed when the
        first run asked, or that are prepared data.
        """
        now = list(items)
        if not self._outside.is_recording:
            return now
        names = [_digest(name_of(item)) for item in now]
        recorded = self._outside.read(_kind(question, path), lambda: "".join(names) if len(names) <= _MOST_NAMES else _ALL)
        known = {recorded[start : start + _NAME_DIGITS] for start in range(0, len(recorded), _NAME_DIGITS)}
        return [
            item
            for item, name in zip(now, names, strict=True)
            if recorded == _ALL or name in known or self._is_prepared(_beside(path, name_of(item)))
        ]

    def clear(self, question: str, path: Any, real: Callable[[], object], over: Any = None) -> None:
        """Remove or rename a file or folder, if the first run has not done that, or this process has made it. `over`: a
        path that may lose its file to the renamed one.
        """
        if over is not None and self._outside.is_in_loop:
            self._changes.keep(os.path.abspath(os.fsdecode(over)), self._outside.entered_at)

        def cleared() -> str:
            try:
                real()
            except FileNotFoundError:
                return _NO
            return "1"

        if not self._outside.is_recording:
            self._clear_in_loop(path, real)
        elif self._is_new(path):
            real()
            self._outside.read(_kind(question, path), lambda: "1")  # the next turn has the next answer
        elif self._outside.read(_kind(question, path), cleared) == _NO:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))

    def _clear_in_loop(self, path: Any, real: Callable[[], object]) -> None:
        """Remove a file or folder; in a loop, a later moment of the run may have
        removed it already.
        """
        if not self._outside.is_in_loop:
            real()
            return
        known = os.path.abspath(os.fsdecode(path))
        self._changes.keep(known, self._outside.entered_at)
        self._changes.clear(known, real)

    def fill(self, prefix: str) -> None:
        """Note that a cache in files is opened; an earlier process may have left it half filled and locked."""
        self._changes.fill(os.path.abspath(prefix))

    def _is_prepared(self, path: Any) -> bool:
        """Return whether a path was made before the first run's loop, and not touched since: it is data, no result."""
        entered = self._outside.entered_at
        path = os.fsdecode(path)
        if entered > self._started or self._files.counts_on(path):
            return False
        is_prepared = _is_data(path, entered)
        if is_prepared and path not in self._said:
            self._said.add(path)
            messages.say(f"{path!r} was made by the first run before its loop, and not touched since: it is taken as data")
        return is_prepared

    def _is_later(self, path: str, *, is_listed: bool) -> bool:
        """Return whether an earlier process wrote a file in or after the first run's loop; for a listed folder, whether
        it and all its content were written since the run's start. A folder of data may have been made before the loop.
        """
        if not self._files.is_in_reach(path) or self._files.was_found(path):
            return False
        is_folder = os.path.isdir(path)
        if is_folder and not is_listed:
            return False
        since = self._outside.started_at if is_folder else self._outside.entered_at
        waiting, count = [path], 0
        with contextlib.suppress(OSError):
            while waiting and count < _MOST_FILES:
                item, count = waiting.pop(), count + 1
                info = _lstat(item)
                if not since <= info.st_mtime < self._started:
                    return False
                if stat.S_ISDIR(info.st_mode):
                    with _scandir(item) as entries:
                        waiting += [entry.path for entry in entries]
            return not waiting and not (is_folder and self._is_kept_data(path))
        return False

    @property
    def _is_before(self) -> bool:
        """Whether this process has not reached the first loop yet, which an earlier process had entered."""
        return not self._has_entered and self._outside.entered_at < self._started

    def _is_left(self, path: str) -> bool:
        """Return whether a path is, or lies in, a folder of an earlier process that this one has not made yet, and is
        no data: in the first run, code may have made the folder only after this question.
        """
        folder = self._files.left_in(path)
        if folder is None or self._is_new(folder) or self._is_new(path):
            return False
        return not (self._is_kept_data(folder) or self._is_kept_data(path))

    def _is_kept_data(self, path: str) -> bool:
        if path not in self._data:
            self._data[path] = _is_data(path, self._outside.entered_at)
        return self._data[path]

    def _hides(self, path: Any, frame: FrameType, through: Collection[str], *, is_listed: bool = False) -> bool:
        """Return whether a path exists, but must not for the asking library, as it did not in the first run.
        `is_listed`: a listing of its folder contains it.
        """
        if self._is_asking or not self._is_before or not _is_path(path) or _is_own(frame):
            return False
        known = os.path.abspath(os.fsdecode(path))

        def hides() -> bool:
            is_left = _is_there(path) and (self._is_left(known) or self._is_later(known, is_listed=is_listed))
            return is_left and is_asked_by_library(frame, through)

        return self._files.is_near(known) and self._ask(hides)

    def _is_new(self, path: Any) -> bool:
        try:
            return _lstat(path).st_mtime >= self._started
        except OSError:
            return False

    def _may_read(self, path: Any) -> bool:
        """Return whether a file that is about to be read existed in the first run (or does not exist now)."""
        frame = sys._getframe(2)  # the one that calls `open`
        if self._is_program(path, frame, _THROUGH_READ):
            return self.is_so("read", path, lambda: _access(path, os.F_OK)) or not _access(path, os.F_OK)
        return not self._hides(path, frame, _THROUGH_READ)

    def was_there(self, path: Any) -> bool:
        """Return whether a file that is about to be made, and must not exist, existed in the first run."""
        return self.told("make", path, lambda: "1" if _is_there(path) else _NO) != _NO

    def _was_there(self, path: Any, frame: FrameType) -> bool:
        """Return whether a file that is about to be made, and must not exist, existed in the first run."""
        return self.was_there(path) if self._is_program(path, frame, _THROUGH_READ) else _is_there(path)

    def _asking(self, question: str, real: Callable[..., bool]) -> Callable[..., bool]:
        @functools.wraps(real)
        def ask(path: Any, *arguments: Any, **keywords: Any) -> bool:
            frame = sys._getframe(1)
            if _is_pythons(frame):
                return real(path, *arguments, **keywords)
            if self._is_program(path, frame, _THROUGH):
                return self.is_so(question, path, lambda: real(path, *arguments, **keywords))
            return real(path, *arguments, **keywords) and not self._hides(path, frame, _THROUGH)

        return ask

    def _telling(self, question: str, real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def tell(path: Any, *arguments: Any, **keywords: Any) -> Any:
            frame = sys._getframe(1)
            if _is_pythons(frame):
                return real(path, *arguments, **keywords)
            if self._is_program(path, frame, _THROUGH):
                is_hidden = not self.is_so(question, path, lambda: _is_there(path)) and _is_there(path)
            else:
                is_hidden = self._hides(path, frame, _THROUGH)
            if is_hidden:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))
            return real(path, *arguments, **keywords)

        return tell

    def _leading(self, real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def read_link(path: Any, **keywords: Any) -> Any:
            """Return the target of a link, as it was when the program first asked."""
            if not self._is_program(path, sys._getframe(1), _THROUGH_LINK):
                return real(path, **keywords)
            if not self.is_so("readlink", path, lambda: _is_there(path)):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))
            return self.told("leads to", path, lambda: os.fspath(real(path, **keywords)))

        return read_link

    def _is_program(self, path: Any, frame: FrameType, through: Collection[str]) -> bool:
        """Return whether the program asks about a path, outside of its loops."""
        if self._is_asking or not _is_path(path) or not self._outside.is_recording:
            return False
        return self._ask(lambda: is_asked_by_program(frame, through))

    def _listing(self, real: Callable[..., Any], name_of: Callable[[Any], str]) -> Callable[..., Any]:
        @functools.wraps(real)
        def list_folder(path: Any = ".") -> Any:
            frame = sys._getframe(1)
            if not self._is_program(path, frame, _THROUGH_WALK):
                return self._for_library(path, real, frame, name_of)
            if not self.is_so("list", path, lambda: _is_there(path)):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))
            found = real(path)
            among = self.among(real.__name__, path, found, name_of)
            return among if isinstance(found, list) else sorted_entries(among)

        return list_folder

    def _for_library(self, path: Any, real: Callable[..., Any], frame: FrameType, name_of: Callable[[Any], str]) -> Any:
        """Return a listing for a library, without items that do not exist for it yet."""
        if not self._is_before or not _is_path(path):
            return real(path)
        if self._hides(path, frame, _THROUGH_WALK):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))
        found = real(path)
        names = {name_of(item): item for item in found}
        left = [item for name, item in names.items() if not self._hides(_beside(path, name), frame, _THROUGH_WALK, is_listed=True)]
        return left if isinstance(found, list) else sorted_entries(left)

    def _clearing(self, question: str, real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def clear(*arguments: Any, **keywords: Any) -> Any:
            named = [keywords[name] for name in ("path", "src", "dst") if name in keywords]
            given: list[Any] = [*arguments, *named, None, None]
            path, over = given[:2]
            is_watched = self._outside.is_recording or self._outside.is_in_loop
            if not (_is_path(path) and is_watched and is_asked_by_program(sys._getframe(1), _THROUGH)):
                return real(*arguments, **keywords)
            is_over = question in _OVER and _is_path(over)
            found: list[Any] = []
            self.clear(question, path, lambda: found.append(real(*arguments, **keywords)), over if is_over else None)
            return found[0] if found else _moved_to(path, over) if question == "move" else None

        return clear


def _moved_to(path: Any, to: Any) -> Any:
    """Return what `shutil.move` has returned."""
    return os.path.join(to, os.path.basename(os.fspath(path).rstrip(os.sep))) if os.path.isdir(to) else to


def _is_pythons(frame: FrameType) -> bool:
    """Return whether a frozen module of Python itself asks: `realpath` asks for each folder of a path, tens of
    thousands of times as a framework is imported. The program does not ask through these modules.
    """
    return frame.f_code.co_filename in _PYTHONS


def _is_own(frame: FrameType) -> bool:
    """Return whether detrain itself asks, for itself or for others."""
    return str(frame.f_globals.get("__name__", "")).startswith("detrain.")


def _is_data(path: str, before: float) -> bool:
    """Return whether a path is a file that is not empty, or a folder with enough bytes in its files,
    and nothing there was written since `before` (seconds since 1970).
    """
    total, count, waiting = 0, 0, [path]
    try:
        if not stat.S_ISDIR(_stat(path).st_mode):
            return _stat(path).st_size > 0 and _stat(path).st_mtime < before
        while waiting and count < _MOST_FILES:
            with _scandir(waiting.pop()) as entries:
                for entry in entries:
                    found = entry.stat()
                    if found.st_mtime >= before:
                        return False
                    total, count = total + found.st_size, count + 1
                    waiting += [entry.path] if entry.is_dir(follow_symlinks=False) else []
        return total >= _LEAST_BYTES and _stat(path).st_mtime < before
    except OSError:
        return False


def _beside(folder: Any, name: str) -> str:
    return name if "/" in name else os.path.join(os.fsdecode(folder), name)


def _is_there(path: Any) -> bool:
    try:
        _lstat(path)
    except (OSError, ValueError):
        return False
    return True


def _is_path(path: object) -> bool:
    return isinstance(path, str | os.PathLike)


def _kind(question: str, path: Any) -> str:
    """Return the key of a question. It has a digest in place of the path, which may be that of another machine."""
    path = path.decode(errors="surrogateescape") if isinstance(path, bytes) else path
    return f"{question} {xxhash.xxh3_64_hexdigest(os.fsencode(os.path.normpath(path)))}"


def _digest(name: str) -> str:
    return xxhash.xxh3_64_hexdigest(os.fsencode(name))[:_NAME_DIGITS]
