"""Files in which the loop keeps state: a checkpoint names those that a resumed run cannot restore.

A log that is appended to is set back (`open_files`), an SQLite database, too (`databases`), and a file that is written
as a whole is put back (`file_versions`: a table of results, best weights to which the loop goes back). A file that the
loop changes in place (a memory map opened anew in each batch) would have content from a later moment. A file that an
epoch reads before its batches, and that its bodies write, is read again by a run that resumes inside of the epoch.
detrain follows Python's `open` and `os.open`, h5py, and files that frameworks report. An audit hook would report more,
but each `id()` and `sys._getframe()` of the program is an event, too: they took fifteen times as long.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from detrain.base.cursor import Address, Cursor
from detrain.base.digest import Array
from detrain.base.errors import Diverged
from detrain.base.in_place import in_place_of
from detrain.base.losses import LOADS_READ
from detrain.python.inspect.frames import is_user_file
from detrain.python.outside import log_handlers
from detrain.python.outside.change_log import Changes
from detrain.python.outside.databases import Databases
from detrain.python.outside.file_versions import How
from detrain.python.outside.open_files import Files

_LOG: Final = "the loop makes a handler of `logging` that empties it"
_PIECEMEAL: Final = "the loop writes on in it, by what cannot open it again at its end"
_IN_PLACE: Final = "the loop changes it in place"
_is_there: Final = os.path.lexists
_scandir, _is_folder, _is_link, _readlink, _lstat = os.scandir, os.path.isdir, os.path.islink, os.readlink, os.lstat
_unlink: Final = os.unlink
"""The real functions, taken before the program's questions are followed."""
_DEVICES: Final = "/dev/"


class Contents:
    """The files with contents that are state. Paths are absolute."""

    def __init__(self, files: Files, changes: Changes, place: Callable[[], Cursor | None]) -> None:
        """`place` returns the program's place in its loops; None outside of them."""
        self._files, self._place = files, place
        self._thread = threading.get_ident()
        self._written: dict[str, Cursor] = {}
        """Files that the loop has written as a whole, with the place of the last such body."""
        self._all: dict[str, Address | None] = {}
        """All files that have been opened for writing, with the batch that last did so; None outside of loops."""
        self._read_ahead: dict[str, Address] = {}
        """Files that an epoch has read before its first batch, with the newest such epoch."""
        self._kept_here: dict[str, Address] = {}
        """Such files that a body of the same epoch has written, with that epoch."""
        self._kept: dict[str, str] = {}
        self._piecemeal: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        """Open writers of libraries, which only write anew, with their files; the loop has written to them."""
        self.may_have_hdf5 = False
        """Whether the program has opened an HDF5 file to write to it."""
        self._once: dict[str, tuple[Address, Address | None, bool | None]] = {}
        """Files and folders that the loop has made or removed in a way that fails a second time: the batch, the batch
        that had made or written it before, and whether it is there since; None for a log."""
        self._databases = Databases(changes, self._is_its)
        self.written_last = ""
        """The file that the loop has last written or removed. A caller empties it to learn of writes from then on."""

    def watch(self) -> None:
        """Follow all files that are opened from now on."""
        self._files.hear = self._opened
        self._files.is_between = lambda: self._place() is None and threading.get_ident() == self._thread
        self._watch_os()
        self._databases.watch()
        _watch_h5py(self)

    def not_captured(self) -> list[str]:
        """Name the files seen so far in which the loop keeps state that a checkpoint lacks."""
        kept = self._kept | self._databases.not_captured()
        at = self._place()
        here = [path for path, epoch in self._kept_here.items() if at is not None and _epoch_of(at) == epoch]
        read = [f"{self._files.shown(path)} ({LOADS_READ})" for path in here]
        kept |= dict.fromkeys(filter(self._is_its, _open_hdf5() if self.may_have_hdf5 else ()), _PIECEMEAL)
        kept |= dict.fromkeys(self._logs_made_in_loop(at), _LOG) | dict.fromkeys(self._piecemeal.values(), _PIECEMEAL)
        return [*read, *(f"{self._files.shown(path)} (file: {why})" for path, why in kept.items())]

    def _logs_made_in_loop(self, at: Cursor | None) -> list[str]:
        """Return the files of handlers of `logging` that the loop has made before this epoch, or in its bodies: a
        resumed run lacks the handler, or makes it anew and empties the file."""
        new = [each for each in log_handlers.emptying() if each not in self._files.handlers and log_handlers.is_in_use(each)]
        made = {each.baseFilename: self._written.get(each.baseFilename) for each in new}
        return [path for path, of in made.items() if at and of and (_epoch_of(of) != _epoch_of(at) or of.batch > 0)]

    def databases(self) -> dict[str, Array]:
        """Return the contents of the databases that the run has written, by their names in checkpoints."""
        return {self._files.shown(path): data for path, data in self._databases.state().items()}

    def restore_databases(self, contents: Mapping[str, Array]) -> None:
        """Restore the content of each database at a cut.

        Raises Diverged if a checkpoint names a database outside of the program's folder that the run has not opened: a
        checkpoint is data, and must not decide where to write.
        """
        for shown in contents:
            is_elsewhere = os.path.isabs(shown) or os.pardir in shown.split(os.sep)
            if is_elsewhere and self._files.path_of(shown) not in self._databases.known:
                raise Diverged(f"the checkpoint holds {shown}, which this run has not opened")
        self._databases.restore({self._files.path_of(shown): data for shown, data in contents.items()})

    def written_since(self, address: Address) -> list[str]:
        """Name the files that the loop has written as a whole in or after this batch, which was not loaded yet."""
        since = [path for path, at in self._written.items() if at.address > address]
        return sorted(map(self._files.shown, since))

    def not_again(self, address: Address) -> list[str]:
        """Name the files and folders that steps have made or removed in or after this batch, which was not loaded yet,
        in a way that fails if these steps run again here.
        """
        since = [
            path
            for path, (at, before, is_there) in self._once.items()
            if at > address and (before is None or before <= address) and is_there in (None, _is_there(path))
        ]
        return sorted(map(self._files.shown, since))

    def _does_once(self, path: str, *, makes: bool) -> None:
        """Note that the program is about to make or remove a file or folder in a way that fails a second time."""
        at, versions = self._at(path), self._files.versions
        if at is None or _is_there(path) == makes or (versions is not None and versions.is_of_others(path)):
            return
        known = self._once.get(path)
        before = [each for each in (self._all.get(path), known[0] if known is not None and known[2] else None) if each is not None]
        is_log = not makes and self._files.is_followed(path)
        self._once[path] = at.address, max(before, default=None), None if is_log else makes

    @property
    def changed_databases(self) -> dict[str, bytes]:
        """The databases that have changed since this process first opened them, each with a fingerprint."""
        return self._databases.changed()

    def all_written(self) -> dict[str, Address | None]:
        """Return all files of the user that the process has opened for writing, with the batch that last did so
        (None outside of loops).

        The program's output to them is flushed first.
        """
        self._files.flush()
        return {path: at for path, at in list(self._all.items()) if self._is_its(path)}

    def writes(self, path: str, how: How = "moved") -> None:
        """Note that the program writes a file as a whole."""
        self._files.leaves(path)
        self._files.keep(path, how)
        self._files.has_whole(path)
        self._notes_whole(path)

    def _notes_whole(self, path: str) -> None:
        self._files.touches(path)
        at = self.also_writes(path)
        if at is None:
            return
        self._written[path], self.written_last = at, path
        if self._read_ahead.get(path) == _epoch_of(at) and at.batch > 0:
            self._kept_here[path] = _epoch_of(at)

    def also_writes(self, path: str) -> Cursor | None:
        """Note that the program writes a file in some way; return the place of the body that does, or None."""
        at = self._at(path)
        self._all[path] = at.address if at is not None else None
        return at

    def writes_on(self, writer: Any, path: str) -> None:
        """Note that the program writes a part of a file by a library's writer, which stays open."""
        if self._at(path) is not None:
            self._piecemeal[writer] = path

    def closes(self, writer: Any) -> None:
        """Note that such a writer is closed."""
        self._piecemeal.pop(writer, None)

    def removes(self, path: str) -> None:
        """Note that the program removes a file."""
        self._does_once(path, makes=False)
        if self._at(path) is not None:
            self.written_last = path

    def takes(self, path: str) -> None:
        """Note that a file is about to be removed."""
        self._files.leaves(path, is_removed=True)
        self.removes(path)
        self._files.removes(path)

    def takes_folder(self, path: str, remove: Callable[[], object]) -> None:
        """Have a folder removed with its content by `remove`; with logs in it that a checkpoint needs, only the rest of
        its files.
        """
        self._does_once(path, makes=False)
        files = list(_files_below(path))
        logs = set(filter(self.counts_on, files))
        for file in files:
            if file not in logs:
                self.takes(file)
                if logs:
                    _unlink(file)
        if not logs:
            remove()

    def moves(self, src: Any, dst: Any, move: Callable[[], object]) -> None:
        """Have a file or folder renamed by `move`."""
        path, to = os.path.abspath(os.fsdecode(src)), os.path.abspath(os.fsdecode(dst))
        if self.counts_on(path):  # a log that is full too early, on the way to a cut
            return
        if self.counts_on(to) and not _is_folder(path):  # an earlier process has put it there, and appended to it
            _unlink(path)
            return
        self._does_once(path, makes=False)
        if _is_folder(path):
            self._does_once(to, makes=True)
        for leaving in (path, to):
            self._files.leaves(leaving)
        self._notes_whole(to)
        self._files.moves(path, to)
        for file in _files_below(path):
            self._files.moves(file, os.path.join(to, os.path.relpath(file, path)))
        move()
        self._files.has_whole(to, path)

    def changes(self, path: str) -> None:
        """Note that the program opens a file to change a part of it, or to make it if it does not exist."""
        at = self.also_writes(path)
        if at is None:
            return
        self.written_last = path
        if not _is_there(path):
            self._files.keep(path, "written")
        if self._written.get(path) == at:
            return
        if os.path.isfile(path) and os.path.getsize(path) > 0:
            self._kept.setdefault(path, _IN_PLACE)
        else:
            self._written[path] = at

    def opens_to_write(self, path: str, mode: str, open_file: Callable[[str], Any]) -> Any:
        """Return the result of `open_file`, which opens a file without Python's `open`, in a mode (`w` or `a`) that
        loses no content.
        """
        wanted = "a" if mode == "w" and self.counts_on(path) else mode
        (self.writes if mode == "w" else self.also_writes)(path)
        size = os.path.getsize(path) if mode == "a" and os.path.isfile(path) else 0
        if not _is_there(path):
            self._files.creates(path)
        made = open_file(wanted)
        self._files.opened(path, mode, made, size)
        return made

    def counts_on(self, path: Any) -> bool:
        """Return whether the checkpoint to which the run is on its way needs a file."""
        return self._files.counts_on(path)

    def reads(self, path: str) -> None:
        """Note that the program reads a file without Python's `open`."""
        self._files.reads(path)
        self._reads(path)

    def _reads(self, path: str) -> None:
        at = self._at(path)
        if at is not None and at.batch == 0:
            self._read_ahead[path] = _epoch_of(at)

    def _at(self, path: str) -> Cursor | None:
        """Return the place of the program in its loops; None outside of them, or if the file is not the program's."""
        at = self._place() if threading.get_ident() == self._thread else None
        return at if at is not None and self._is_its(path) else None

    def _is_its(self, path: str) -> bool:
        return not self._files.is_own(path) and not path.startswith(_DEVICES) and is_user_file(path)

    def _opened(self, path: str, mode: str) -> None:
        if "w" in mode or ("x" in mode and not _is_there(path)):
            if "x" in mode:
                self._does_once(path, makes=True)
            self.writes(path, "written")
        elif "+" in mode and "a" not in mode:
            self.changes(path)
        elif "a" in mode:
            self.also_writes(path)
        else:
            self._reads(path)

    def _watch_os(self) -> None:
        real_open = os.open

        @in_place_of(os, "open")
        def open_file(path: Any, flags: int, *arguments: Any, **keywords: Any) -> int:
            if isinstance(path, str | bytes | os.PathLike) and "dir_fd" not in keywords:
                known = os.path.abspath(os.fsdecode(path))
                if flags & os.O_EXCL and not self._files.was_there(path, sys._getframe(1)) and _is_there(known):
                    flags &= ~os.O_EXCL  # an earlier process has made it
                if flags & os.O_ACCMODE == os.O_RDONLY:
                    self._reads(known)
                elif flags & (os.O_TRUNC | os.O_EXCL):
                    if not (flags & os.O_EXCL and _is_there(known)):
                        if flags & os.O_EXCL:
                            self._does_once(known, makes=True)
                        self.writes(known, "written")
                else:
                    self.changes(known)
            return real_open(path, flags, *arguments, **keywords)

        def telling(real: Callable[..., None]) -> Callable[..., None]:
            @functools.wraps(real)
            def moved(src: Any, dst: Any, **keywords: Any) -> None:
                self.moves(src, dst, lambda: real(src, dst, **keywords))

            return moved

        def taking(real: Callable[..., None]) -> Callable[..., None]:
            @functools.wraps(real)
            def removed(path: Any, **keywords: Any) -> None:
                known = os.path.abspath(os.fsdecode(path))
                if keywords.get("dir_fd") is not None:
                    real(path, **keywords)  # `rmtree`
                elif not self.counts_on(known):
                    self.takes(known)
                    real(path, **keywords)

            return removed

        def linking(real: Callable[..., None]) -> Callable[..., None]:
            @functools.wraps(real)
            def linked(src: Any, dst: Any, *arguments: Any, **keywords: Any) -> None:
                is_again = self._files.is_again and self._place() is None and not any("dir_fd" in name for name in keywords)
                if is_again and _leads_to(dst, src):
                    return  # the process before has made it; the program was told that it is not there
                known = os.path.abspath(os.fsdecode(dst))
                self._does_once(known, makes=True)
                self._files.removes(known)
                real(src, dst, *arguments, **keywords)

            return linked

        def of_folder(real: Callable[..., None], *, makes: bool) -> Callable[..., None]:
            @functools.wraps(real)
            def done(path: Any, *arguments: Any, **keywords: Any) -> None:
                if keywords.get("dir_fd") is None:
                    self._does_once(os.path.abspath(os.fsdecode(path)), makes=makes)
                real(path, *arguments, **keywords)

            return done

        real_rmtree = shutil.rmtree

        @in_place_of(shutil, "rmtree")
        def remove_tree(path: Any, *arguments: Any, **keywords: Any) -> None:
            remove = functools.partial(real_rmtree, path, *arguments, **keywords)
            if keywords.get("dir_fd") is None:
                self.takes_folder(os.path.abspath(os.fsdecode(path)), remove)
            else:
                remove()

        os.rename, os.replace = telling(os.rename), telling(os.replace)
        os.link, os.symlink = linking(os.link), linking(os.symlink)
        os.remove, os.unlink = taking(os.remove), taking(os.unlink)
        os.mkdir, os.rmdir = of_folder(os.mkdir, makes=True), of_folder(os.rmdir, makes=False)


def _files_below(folder: str) -> Iterator[str]:
    """Yield the files in a folder and in its folders; none if it is no folder."""
    if _is_folder(folder) and not _is_link(folder):
        with contextlib.suppress(OSError):
            for entry in list(_scandir(folder)):
                yield from _files_below(entry.path) if entry.is_dir(follow_symlinks=False) else (entry.path,)


def _leads_to(link: Any, target: Any) -> bool:
    """Return whether a link has this target, or is a second name of this file."""
    with contextlib.suppress(OSError, ValueError):
        if _is_link(link):
            return os.fsdecode(_readlink(link)) == os.fsdecode(target)
        return os.path.samestat(_lstat(link), _lstat(target))
    return False


def _epoch_of(at: Cursor) -> Address:
    return at.phase, at.epoch, 0


def _open_hdf5() -> list[str]:
    """Return the HDF5 files that are open for writing, also where only one of their data sets is held."""
    from h5py import h5f, h5i

    held = h5f.get_obj_ids(h5f.OBJ_ALL, h5f.OBJ_FILE | h5f.OBJ_GROUP | h5f.OBJ_DATASET)
    files = [h5i.get_file_id(each) for each in held]
    return sorted({os.path.abspath(os.fsdecode(each.name)) for each in files if each.get_intent() & h5f.ACC_RDWR})


def _watch_h5py(contents: Contents) -> None:
    with contextlib.suppress(ImportError, AttributeError):
        from h5py import h5f, h5fd, h5p  # slow to import, but imported anyway if there are checkpoints

        real_open, real_create = h5f.open, h5f.create

        def is_in_memory(*given: Any) -> bool:
            """Return whether a file lies in a Python object, like detrain's own checkpoints while they are written."""
            access = [each for each in given if isinstance(each, h5p.PropFAID)]
            return any(each.get_driver() == h5fd.fileobj_driver for each in access)

        @in_place_of(h5f, "open")
        def open_file(name: bytes, flags: int = h5f.ACC_RDWR, *arguments: Any, **keywords: Any) -> Any:
            if not is_in_memory(*arguments, *keywords.values()):
                path = os.path.abspath(os.fsdecode(name))
                contents.may_have_hdf5 |= bool(flags & h5f.ACC_RDWR)
                (contents.reads if flags & h5f.ACC_RDWR == 0 else contents.changes)(path)
            return real_open(name, flags, *arguments, **keywords)

        @in_place_of(h5f, "create")
        def create_file(name: bytes, *arguments: Any, **keywords: Any) -> Any:
            if not is_in_memory(*arguments, *keywords.values()):
                contents.may_have_hdf5 = True
                contents.writes(os.path.abspath(os.fsdecode(name)))
            return real_create(name, *arguments, **keywords)
