"""Files that the program writes: their lengths at a cut, and the way back to these lengths.

A resumed process opens its files anew before it reaches the cut. A file that was open when the loop was entered or at
the cut, or to which the program appends, must then not be emptied. At the cut, detrain sets it back to its length
there, and keeps the rest beside the checkpoints. A file that the loop has written anew is put aside while code before
the loop writes it again. A file that was first appended to at a later moment, or by a run that was killed before its
first checkpoint, is set back, too, by the log of `change_log`. detrain follows files opened through Python's `open`,
also those that `pathlib`, `logging`, pandas and Keras's CSVLogger open.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import functools
import io
import itertools
import os
import re
import shlex
import sys
import time
import weakref
from collections.abc import Callable, Container, Iterable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn

from detrain.base import messages
from detrain.base.added_statements import as_it_was
from detrain.base.byte_digests import digest_bytes, digest_source
from detrain.base.cursor import FileState
from detrain.base.errors import DetrainError, NotCapturable
from detrain.base.in_place import in_place_of
from detrain.base.paths import path_below
from detrain.python.inspect.frames import is_user_file
from detrain.python.outside import event_files, log_handlers
from detrain.python.outside.change_log import Changes, copy_file, link_file
from detrain.python.outside.file_versions import How, Versions
from detrain.python.outside.read_again import ReadAgain
from detrain.store.job_home import folders_beside

_is_there: Final = os.path.lexists
"""The real function, taken before the program's questions are followed: questions here are not the program's."""
_os_open: Final = os.open
"""The real function: `open`, which calls it here, has been heard."""
_WRITING: Final = frozenset("wxa+")
_LONGEST_STEM: Final = 200
"""The longest part of a name, in bytes; file systems take 255 for the whole name."""
_SETTINGS: Final = frozenset({".cfg", ".conf", ".ini", ".json", ".py", ".toml", ".yaml", ".yml"})
_MOST_SETTINGS_BYTES: Final = 1 << 20
"""Larger files are data: their batches are compared."""
_PLACE_OF_OPENER: Final = 5
"""The place of `opener` among the parameters of `open` after the mode."""


class Files:
    """The files that the program has opened for writing."""

    def __init__(self) -> None:
        self._open: dict[str, list[weakref.ref[Any]]] = {}
        self._appended: dict[str, int] = {}
        """Files that are appended to, with their lengths before this process first appended."""
        self._kept: list[frozenset[str]] = []
        """The files of each checkpoint to which the run is on its way: they must not be emptied."""
        self._made: set[str] = set()
        self._near: tuple[str, ...] = ()
        """The folder in which the program was started, and the folders that the run has made; each ends in a slash."""
        self._made_here: set[str] = set()
        """Folders that code of this process has asked for, or in which it has made or written files."""
        self._then: dict[str, tuple[int, int]] = {}
        """For files that are appended to: (length in the killed run at some place of the program, length here at the
        same place)."""
        self._kept_folders = False
        self._resumed_from: float | None = None
        self._started = time.time()
        self._written: set[str] = set()
        self._said: set[str] = set()
        self._held: set[str] = set()
        """Files that were open when a loop was entered: code that a resumed run executes again has opened them."""
        self.handlers: weakref.WeakSet[Any] = weakref.WeakSet()
        """Handlers of `logging` that were there when a loop was entered."""
        self._is_before_loop = True
        """Whether the first loop has not been entered yet."""
        self._read_before: set[str] = set()
        """Files that code before the first loop has read."""
        self._settings: dict[str, str] = {}
        """The digests of those among them that hold settings."""
        self._made_in_loop: set[str] = set()
        self._is_on_way = False
        self.versions: Versions | None = None
        self.allowed: Container[str] = ()
        """Files that a resumed run may read although they are of a later moment."""
        self.fail: Callable[[DetrainError], object] = fail_here
        """Ends the process with an error."""
        self.is_between: Callable[[], bool] = lambda: False
        """Whether code between two loops runs, or behind the last."""
        self._again: ReadAgain | None = None
        self._changes: Changes | None = None
        self._own = re.compile(r"(?!)")
        self.may_read: Callable[[Any], bool] = lambda _path: True
        """Whether a file was there when the first run read it at this place of the program."""
        self.was_there: Callable[[Any, FrameType], bool] = lambda path, _frame: _is_there(path)
        """Whether a file was there when the first run made it, and no other, at this place of the program."""
        self.hear: Callable[[str, str], None] = lambda _path, _mode: None
        """Called with path and mode of each file before it is opened."""
        self._base = os.getcwd()
        """The folder to which names in checkpoints are relative, even if the program calls `os.chdir`."""

    def watch(
        self, kept: Iterable[Iterable[str]], made: Iterable[str], changes: Changes, home: Path, program: str, *, is_new: bool
    ) -> None:
        """Follow all calls of `open` and `os.mkdir` from now on.

        `kept` are the files of each checkpoint on the way, and `made` the folders of the last: making these again is no
        error. With `is_new`, first undo the appending of a run that was killed before its first checkpoint.
        """
        self._changes, self._again = changes, ReadAgain(changes)
        own = rf"{re.escape(os.path.abspath(home))}/(\.|inst\.info$|.*\.tail$|{re.escape(program)}-r\d)"
        self._own = re.compile("|".join([own, *map(re.escape, folders_beside(home.absolute()))]))
        changes.move_back(lambda path: _take_away(path, home))
        changes.put_back()
        self.versions = Versions(changes, self._base)
        self.versions.put_back(changes.versions)
        if is_new:
            for path in changes.appended:
                _undo_appending(path, changes, home, "before the run that was killed")
        self._kept = [frozenset(map(self.path_of, files)) for files in kept]
        self._then = {path: (size, os.path.getsize(path)) for path, size in changes.found.items() if os.path.isfile(path)}
        self._is_on_way = bool(self._kept)
        self._made = set(map(self.path_of, made))
        self._kept_folders = bool(self._made)
        self._near = tuple(f"{folder}/" for folder in (self._base, *self._made, *changes.folders))
        original = os.mkdir

        @in_place_of(os, "mkdir")
        def mkdir(path: Any, *args: Any, **kwargs: Any) -> None:
            known = os.path.abspath(os.fsdecode(path)) if not isinstance(path, int) else ""
            if self.is_own(known):
                original(path, *args, **kwargs)
                return
            self._has_here(known)
            if not (self._kept_folders and known in self._made and os.path.isdir(known)):
                changes.make(known, lambda: original(path, *args, **kwargs))
                self._made.add(known)
                self._near += (f"{known}/",)

        builtins.open = io.open = _Open(self)

    def counts_on(self, path: Any) -> bool:
        """Return whether the checkpoint to which the run is on its way needs a file."""
        return self._is_kept(os.path.abspath(os.fsdecode(path)))

    @property
    def is_again(self) -> bool:
        """Whether an earlier process of the run has already executed the code that runs now."""
        return self._is_on_way or (self._changes is not None and self._changes.heard is not None)

    def is_near(self, path: str) -> bool:
        """Return whether a path is, or lies below, the folder in which the program was started or one that the run has
        made. This quick test filters most of the 30,000 questions of imports."""
        return f"{path}/".startswith(self._near)

    def is_in_reach(self, path: str) -> bool:
        """Return whether a path is the user's, lies below the folder in which the program was started or one that the
        run has made, and was not made or written by this process.
        """
        is_below = path.startswith(self._near)
        is_made_here = path in self._made_here or path in self._written
        return is_below and not is_made_here and not self.is_own(path) and is_user_file(path)

    def _has_here(self, folder: str) -> None:
        """Note that code of this process has a folder, and so the folders around it."""
        if folder not in self._made_here:
            self._made_here.update((folder, *map(str, Path(folder).parents)))

    def left_in(self, path: str) -> str | None:
        """Return the outermost folder among a path and its parents that an earlier process of the run has made and code
        of this one has not asked for yet; None if there is none.
        """
        if self._changes is None or not self._changes.folders:
            return None
        way = [path[:end] for end, letter in enumerate(path) if letter == "/"] + [path]  # imports ask 30,000 times
        outermost = next((each for each in way if each in self._changes.folders and each not in self._made_here), None)
        is_anyones = outermost is None or self.versions is None or self.versions.is_of_others(path) or not is_user_file(path)
        return None if is_anyones else outermost

    def is_own(self, path: str) -> bool:
        """Return whether a path is that of a file of detrain: in the folder of
        checkpoints, with such a name.
        """
        return self._own.match(path) is not None

    def _is_kept(self, path: str) -> bool:
        return any(path in files for files in self._kept)

    def reads(self, file: Any) -> None:
        """Note that the program reads a file. Refuse one that was written after the checkpoint, and not by this
        process: its content is of a later moment.
        """
        try:
            path = os.path.abspath(os.fsdecode(file))
            written = os.stat(path).st_mtime
        except (OSError, TypeError, ValueError):
            return
        if self._is_before_loop:
            self._read_before.add(path)
        is_new = self._resumed_from is not None and self._resumed_from < written < self._started
        is_later = is_new and path not in self._written and is_user_file(path) and not self.is_own(path)
        if (is_later or self.is_stale(path)) and path not in self._said:
            self._said.add(path)
            shown = self.shown(path)
            what = f"{shown} is read, which was written after the checkpoint: it holds what a later moment put there"
            if shown in self.allowed:
                messages.warn(what)
            else:
                how = f"start anew with --fresh; or add `--allow-lost {shlex.quote(shown)}`, which reads it as it is"
                self.fail(NotCapturable(what, how))

    def takes_settings(self, path: str, opened: Any) -> None:
        """Note the content of a small file with settings that code before the first loop reads. `opened` is the file
        that is opened in its place.
        """
        is_new = self._is_before_loop and os.path.splitext(path)[1] in _SETTINGS and path not in self._settings
        if is_new and os.path.isfile(opened) and is_user_file(path) and not self.is_own(path):
            with contextlib.suppress(OSError), io.FileIO(opened) as file:
                if os.fstat(file.fileno()).st_size <= _MOST_SETTINGS_BYTES:
                    data = file.readall()
                    is_source = path.endswith(".py")  # it may be executed, as nanoGPT's settings are
                    self._settings[path] = as_it_was(digest_source(data)) if is_source else digest_bytes(data)

    def settings(self) -> dict[str, str]:
        """Return the digests of the files with settings that code before the first loop has read, by their paths as
        checkpoints have them; without files that the run itself writes.
        """
        return {self.shown(path): digest for path, digest in self._settings.items() if not self._is_of_run(path)}

    def reads_between(self, path: str) -> Path | None:
        """Note that the program reads a file. Return the kept content that code between loops read there in the first
        run, on the way to a cut; None if the file has that content.
        """
        is_between = self._changes is not None and not self._is_before_loop and self._changes.is_rewritten(path)
        if self._again is None or not is_between or not self.is_between():
            return None
        kept = self._again.as_read(path) if self._is_on_way else None
        self._again.reads(path)
        return kept

    def leaves(self, path: str, *, is_removed: bool = False) -> None:
        """Note that a file is about to be written as a whole or removed: code between loops may have read it."""
        if self._again is not None and not self._is_on_way:
            self._again.leaves(path, is_removed=is_removed)

    def changed_since(self, moment: float) -> list[str]:
        """Return the user's files that code before the first loop has read here and that were changed between a moment
        and the start of this process, but not by the run itself.
        """
        read = [path for path in sorted(self._read_before) if os.path.isfile(path) and is_user_file(path)]
        changed = [path for path in read if moment < os.stat(path).st_ctime < self._started]  # a move counts, too
        shown = [self.shown(path) for path in changed if not (self.is_own(path) or self._is_of_run(path))]
        return [path for path in shown if path not in self.allowed]

    def _is_of_run(self, path: str) -> bool:
        """Return whether the run has written a file."""
        is_found = self._changes is not None and self._changes.as_found(path) is not None
        return is_found or path in self._then or path in self._written or self._is_kept(path)

    def as_then(self, path: str) -> Path | None:
        """Return a temporary file with the content that a file had for the killed run at this place of the program, or
        None if the file itself has that content. For a log, it is the content that the killed run found, with the lines
        added by this process; for a file that the loop writes as a whole, the content that code before the loop found.
        """
        if self._changes is None or not os.path.isfile(path):
            return None
        kept = self._changes.as_found(path) if self._is_before_loop and path not in self._written else None
        found, before = self._then.get(path, (0, 0))
        if not self._is_on_way or (kept is None and found == before):
            return None
        view = self._changes.kept_in / self._changes.new_name()
        with io.FileIO(kept or path) as source, io.FileIO(view, "w") as target:
            target.write(source.read(-1 if kept else found))
            if kept is None:
                source.seek(before)
                target.write(source.read())
        return view

    def was_found(self, path: str) -> bool:
        """Return whether it is known that the run found a file, with content, that its loop has changed since."""
        is_kept = self._changes is not None and self._changes.as_found(path) is not None
        return is_kept or self._then.get(path, (0, 0))[0] > 0

    def opened(self, path: str, mode: str, file: Any, size: int) -> None:
        """Note that a file of `size` bytes has been opened for writing."""
        if "a" in mode:
            is_new = path not in self._written or (path in self._made_in_loop and path not in self._appended)
            self._appended.setdefault(path, size)
            if self._changes is not None and is_new:
                self._changes.append(path, size)
        self._written.add(path)
        if self._is_before_loop:
            self._has_here(os.path.dirname(path))
        self._open.setdefault(path, []).append(weakref.ref(file))

    def has_whole(self, path: str, source: str | None = None) -> None:
        """Note that this process writes a file as a whole, or has moved another to its place, `source`."""
        if source is None or source in self._written:
            self._written.add(path)
        else:
            self._written.discard(path)

    def enter(self) -> None:
        """Note that the program enters a loop."""
        self._held |= {path for path in list(self._open) if self._live(path)}
        self.handlers.update(log_handlers.emptying())
        if self._changes is not None and self._is_before_loop and not self._is_on_way:
            self._changes.unmake()
        self._is_before_loop = False

    def moves(self, path: str, to: str) -> None:
        """Note that a file is about to be renamed."""
        if self._changes is None or not (os.path.isfile(path) or os.path.islink(path)):
            return
        if not self.is_followed(path):
            self.touches(path, copy_file)
            self.keep(path, "moved")
            self.removes(to)
        elif os.path.dirname(path) != os.path.dirname(to):
            self.removes(path)
            if not _is_there(to):
                self.creates(to)
            self.removes(to)
        else:
            self.removes(to, is_over=True)
            self._changes.move(path, to)
            self._appended.pop(path, None)  # the next file by this name is a new one
            self._held.add(to)

    def removes(self, path: str, *, is_over: bool = False) -> None:
        """Note that a file is about to be removed; with `is_over`, a log takes its place."""
        if self._changes is not None and self.is_followed(path):
            if os.path.isfile(path):
                self._changes.drop(path)
                self._appended.pop(path, None)
        elif not is_over or os.path.isfile(path):
            self.touches(path, link_file)
            self.keep(path, "replaced")

    def is_followed(self, path: str) -> bool:
        """Return whether a file is a log: it is appended to, or was open when a loop was entered."""
        return path in self._appended or path in self._held

    def rewrites(self, path: str) -> bool:
        """Note that a file is about to be opened and emptied.

        Return whether it must not be emptied: a checkpoint needs its content.
        """
        self._then.pop(path, None)  # it is overwritten here, and no longer grows as before
        if self._is_kept(path) and os.path.isfile(path):
            return True
        if not self._is_on_way and self._changes is not None and _is_there(path) and self.is_followed(path):
            self._changes.empty(path)
        return False

    def touches(self, path: str, put: Callable[[str, Path], object] | None = None) -> None:
        """Note that a file is about to be written as a whole or to be taken away, or another to be put in its place: on
        the way to a cut, put away, by `put` or else by a move, what the loop has written there.
        """
        if self._changes is None or self._is_kept(path) or self.is_own(path):
            return
        if put is not None and self.versions is not None and self.versions.is_of_others(path):  # a temporary file
            return
        if self._is_on_way:
            self._changes.put_aside(path, put)
        elif not self._is_before_loop:
            self._changes.rewrite(path)

    def creates(self, path: str) -> None:
        """Note that a file that does not exist is about to be opened for writing."""
        if not (self._is_before_loop or self._changes is None or self._is_on_way or self.is_own(path)):
            self._made_in_loop.add(path)
            self._changes.create(path)

    def keep(self, path: str, how: How) -> None:
        """Keep a file that is no log before it changes as a whole, if it is the user's and the program is in a loop."""
        is_in_loop = not self._is_before_loop and not self._is_on_way  # on the way to a cut, files are put aside
        is_state = is_in_loop and not self._is_kept(path) and not self.is_followed(path) and not self.is_own(path)
        if self.versions is not None and is_state and is_user_file(path):
            is_as_found = path in self._read_before and path not in self._written
            self.versions.keep(path, how, is_as_found=is_as_found, is_stale=self.is_stale(path))

    def begin_cut(self) -> None:
        """Note that a checkpoint is taken."""
        if self.versions is not None:
            self.versions.begin_cut()

    def is_stale(self, path: str) -> bool:
        """Return whether a file has content of a moment after the cut, and this process has not written it since."""
        return self.versions is not None and path in self.versions.stale and path not in self._written

    def is_known(self, value: object) -> bool:
        """Return whether a resumed run restores the position of an open file: `open` made it, it is still at its path,
        and no other open file is.
        """
        return any(self._live(path) == [value] and _is_at(path, value) for path in list(self._open))

    def state(self) -> dict[str, FileState]:
        """Flush the program's output, and return the files that a resumed run sets back, by path."""
        found = {}
        written = event_files.written_here()
        for path in sorted({*self._appended, *self._open, *self._held, *written}):
            live = self._live(path)
            for file in live:
                with contextlib.suppress(OSError, ValueError):
                    file.flush()
            if (live or path in self._appended or path in self._held or path in written) and os.path.isfile(path):
                found[self.shown(path)] = FileState(os.path.getsize(path), _tell(live[0]) if len(live) == 1 else None)
        return found

    def flush(self) -> None:
        """Flush the program's output to its files."""
        for path in list(self._open):
            for file in self._live(path):
                with contextlib.suppress(OSError, ValueError):
                    file.flush()

    def untouched(self) -> dict[str, FileState]:
        """Return the files to which this process appends, with their lengths before."""
        return {self.shown(path): FileState(size, None) for path, size in sorted(self._appended.items()) if os.path.isfile(path)}

    def folders(self) -> tuple[str, ...]:
        """Return the existing folders that the program has made; one of its threads may make more meanwhile."""
        return tuple(sorted(self.shown(path) for path in list(self._made) if os.path.isdir(path)))

    def resume(self, checkpoint: Path) -> None:
        """Note that a checkpoint's state has been set: files written since it was taken are of a later moment."""
        self._resumed_from = checkpoint.stat().st_mtime

    def restore(self, files: Mapping[str, FileState], kept_in: Path | None, *, has_contents: bool = True) -> None:
        """Set files back to their lengths and positions at a cut.

        On the way to a later cut (`kept_in` is None), only positions are set: the files must not be cut yet. With
        `has_contents`, files that were written as a whole since the newest checkpoint are put back, too.
        """
        for shown, state in files.items():
            path = self.path_of(shown)
            if kept_in is not None:
                self._open_logs(path)
            live = self._live(path)
            for file in live:
                file.flush()
            if kept_in is not None:
                _set_back(path, state.size, kept_in, "at the checkpoint")
                self._held.add(path)
            elif os.path.isfile(path):
                self._then[path] = state.size, os.path.getsize(path)
            if len(live) == 1 and state.position is not None:
                _seek(live[0], path, state)
        del self._kept[:1]
        if self.versions is not None and has_contents:
            self.versions.put_back()
        if kept_in is not None:
            self._is_on_way = False
            self._kept_folders = False
            if self._changes is not None:
                self._changes.return_aside()
                self._changes.arrive()
                for path in self._changes.appended:
                    if self.shown(path) not in files:
                        _undo_appending(path, self._changes, kept_in, "at the checkpoint")
                self._changes.unmake()

    def _open_logs(self, path: str) -> None:
        """Open a log that a handler had open at the cut: its first record would empty it. It is no write of the
        program's."""
        hear, self.hear = self.hear, lambda _path, _mode: None
        try:
            log_handlers.open_again(path)
        except OSError as error:
            messages.warn(f"{path} cannot be opened again: {error.strerror or error}")
        finally:
            self.hear = hear

    def shown(self, path: str) -> str:
        """Return a path as checkpoints have it: relative if it lies below the folder where the program was started.
        Bytes of its name that are no UTF-8 are written as a zero, which no name contains, and two digits.
        """
        return re.sub("[\udc80-\udcff]", lambda byte: f"\0{ord(byte[0]) & 0xFF:02x}", path_below(path, self._base) or path)

    def path_of(self, shown: str) -> str:
        """Return the path for a result of `shown`."""
        name = re.sub("\0([0-9a-f]{2})", lambda byte: chr(0xDC00 + int(byte[1], 16)), shown)
        return os.path.normpath(os.path.join(self._base, name))

    def _live(self, path: str) -> list[Any]:
        live = [file for reference in self._open.get(path, ()) if (file := reference()) is not None and not file.closed]
        if live:
            self._open[path] = [weakref.ref(file) for file in live]
        else:
            self._open.pop(path, None)
        return live


def fail_here(error: DetrainError) -> NoReturn:
    """Raise an error."""
    raise error


def _opener(name: Any, flags: int) -> int:
    return _os_open(name, flags, 0o666)


class _Open:
    """Replaces `open`.

    It is an object and no function: like the built-in, it does not become a method as an attribute of a class.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self._original = io.open
        functools.update_wrapper(self, io.open)

    def __call__(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if isinstance(file, int) or not isinstance(mode, str):
            return self._original(file, mode, *args, **kwargs)
        path = os.path.abspath(os.fsdecode(file))
        if "x" in mode and not self._files.was_there(file, sys._getframe(1)) and _is_there(path):
            mode = mode.replace("x", "w")  # an earlier process has made it
        self._files.hear(path, mode)
        if not _WRITING & set(mode):
            if not self._files.may_read(file):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), file)
            again = self._files.reads_between(path)
            if again is not None:
                return self._original(again, mode, *args, **kwargs)
            self._files.reads(file)
            view = self._files.as_then(path)
            self._files.takes_settings(path, view or file)
            made = self._original(view or file, mode, *args, **kwargs)
            if view is not None:
                view.unlink()
            return made
        size = os.path.getsize(path) if "a" in mode and os.path.isfile(path) else 0
        if not _is_there(path):
            self._files.creates(path)
        if set("wx") & set(mode) and self._files.rewrites(path):
            opener = (args[_PLACE_OF_OPENER] if len(args) > _PLACE_OF_OPENER else kwargs.get("opener")) or _opener
            args = args[:_PLACE_OF_OPENER]
            kwargs["opener"] = lambda name, flags: opener(name, flags & ~(os.O_TRUNC | os.O_EXCL))
        made = self._original(file, mode, *args, **kwargs)
        self._files.opened(path, mode, made, size)
        return made


def _is_at(path: str, file: Any) -> bool:
    """Return whether an open file is still at a path: not if it was deleted, replaced, or never had a name
    (`TemporaryFile`).
    """
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except (OSError, ValueError):
        return False


def _tell(file: Any) -> int | None:
    try:
        return int(file.tell())
    except (OSError, ValueError):
        return None


def _seek(file: Any, path: str, state: FileState) -> None:
    """Set an open file to its position at a cut; to its end where the file has been shortened since, as its next lines
    would come behind a gap of zero bytes.
    """
    is_shorter = os.path.isfile(path) and os.path.getsize(path) < min(state.size, state.position or 0)
    if is_shorter and file.writable():
        file.seek(0, os.SEEK_END)
    else:
        file.seek(state.position)


def _keep_tail(path: str, data: bytes, kept_in: Path) -> Path:
    """Write the tail that is cut off a file beside the checkpoints, under a name that contains the file's name and
    that no other tail has.
    """
    shown = path_below(path, str(kept_in.parent)) or path
    stem = shown.strip(os.sep).replace(os.sep, "-")
    if len(os.fsencode(stem)) > _LONGEST_STEM:
        stem = f"tail-{digest_bytes(os.fsencode(shown))}"
    for number in itertools.count(1):
        kept = kept_in / (f"{stem}.tail" if number == 1 else f"{stem}.{number}.tail")
        try:
            file = io.FileIO(kept, "x")
        except FileExistsError:
            if kept.read_bytes() == data:
                break
            continue
        with file, io.BufferedWriter(file) as whole:
            whole.write(data)
        break
    return kept


def _undo_appending(path: str, changes: Changes, kept_in: Path, when: str) -> None:
    """Set a file back to its length before a later moment first appended to it; remove it if the loop had made it."""
    if path not in changes.created:
        _set_back(path, changes.appended[path], kept_in, when)
    elif _is_there(path):
        _take_away(path, kept_in)


def _take_away(path: str, kept_in: Path) -> None:
    """Remove a file that a later moment has made in the place of a moved one, and keep its content."""
    _set_back(path, 0, kept_in, "before it was made")
    os.unlink(path)


def _set_back(path: str, size: int, kept_in: Path, when: str) -> None:
    """Cut a file to an earlier length, and keep its tail."""
    try:
        now = os.path.getsize(path)
        if now > size:
            with io.FileIO(path) as file:
                file.seek(size)
                kept = _keep_tail(path, file.read(), kept_in)
            os.truncate(path, size)
            messages.say(f"{path}: set back from {now} to {size} bytes, as {when}; the rest is in {kept}")
        elif now < size:
            messages.warn(f"{path} has {now} bytes; it had {size} {when}: it was shortened or made anew since")
    except OSError as error:
        messages.warn(f"{path} cannot be set back to {size} bytes: {error.strerror or error}")
