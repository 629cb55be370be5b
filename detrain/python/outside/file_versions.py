"""Files that are written as a whole: their content at a cut is kept, and a resumed run puts it back.

Best weights that a loop goes back to, a table of results that it reads and writes again: such a file is state. Before
it is written for the first time after a cut, the file is kept beside the checkpoints, by a new name and not by a copy
if possible. A run that resumes from the cut puts it back as it starts, and again at each station, because code on the
way may have written it.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final, Literal

from detrain.base import messages
from detrain.python.outside.change_log import NO_FILE, NO_ROOM, Changes, copy_file, move_file

How = Literal["written", "replaced", "moved"]
"""The next change of a file. `written`: Python or PyTorch empties and writes it. `replaced`: another file takes its
name, or it is removed. `moved`: it gets another name, or other code writes it."""
_open, _is_there, _is_file, _may = os.open, os.path.lexists, os.path.isfile, os.access
_is_link, _readlink, _symlink, _scandir = os.path.islink, os.readlink, os.symlink, os.scandir
"""The real functions, taken before calls of the program are followed."""
_SMALL_BYTES: Final = 1 << 26
"""Files up to this size are always kept, larger ones if the disk has room for four of them."""
_OF_OTHERS: Final = ("~/.cache", tempfile.gettempdir())
"""Folders without results of programs, unless the program itself is started there."""


class Versions:
    """The content at the newest cut of files that were written as a whole since. Paths are absolute."""

    def __init__(self, changes: Changes, base: str) -> None:
        """`base` is the folder in which the program was started."""
        self._changes, self._process = changes, os.getpid()
        others = (os.path.realpath(os.path.expanduser(each)) + os.sep for each in _OF_OTHERS)
        self._others = tuple(each for each in others if not f"{os.path.realpath(base)}{os.sep}".startswith(each))
        self._here: dict[str, str] = {}
        """Files that were written since the cut, with the names under which they are kept."""
        self.stale: set[str] = set()
        """Files with content from a later moment: their content at the cut was not kept, or is no longer kept."""

    def keep(self, path: str, how: How, *, is_as_found: bool = False, is_stale: bool = False) -> None:
        """Keep a file before it changes for the first time after a cut. `is_as_found`: code before the loop has read
        it, and reads it again in a resumed run. `is_stale`: its content is not that at the cut."""
        path = os.path.realpath(path) if how == "written" else path
        if path in self._here or os.getpid() != self._process or self.is_of_others(path):
            return
        if _is_link(path):
            name = self._changes.new_name()
        elif _is_file(path):
            size = os.path.getsize(path)
            can_be_kept = not is_stale and (size <= _SMALL_BYTES or self._has_room(4 * size))
            name = self._changes.new_name() if can_be_kept else NO_ROOM
            if is_as_found and can_be_kept:
                self._changes.keep_as_found(path)
        elif _is_there(path):  # a folder, a pipe, a device
            return
        else:
            name = NO_FILE
        self._here[path] = name
        self._changes.note_version(path, name)  # noted first: if nothing is kept by this name, the file is unchanged
        if name not in (NO_FILE, NO_ROOM):
            with contextlib.suppress(OSError):
                _keep(path, self._changes.kept_in / name, how)
                self._changes.prune_later(name)

    def is_of_others(self, path: str) -> bool:
        """Return whether a path lies in a folder without results of programs."""
        return os.path.realpath(path).startswith(self._others)

    def _has_room(self, size: int) -> bool:
        return shutil.disk_usage(self._changes.kept_in.parent).free >= size

    def begin_cut(self) -> None:
        """Begin anew at a checkpoint: the files' content now is that at the newest cut."""
        self._here.clear()

    def put_back(self, versions: dict[str, str] | None = None) -> None:
        """Put files back as they were at the cut: those that this process has written since, or those in `versions`."""
        known = self._here if versions is None else versions
        returned: set[str] = set()
        for path, name in known.items():
            kept = self._changes.kept_in / name
            if name == NO_ROOM or (name != NO_FILE and self._changes.is_gone(name)):
                self.stale.add(path)
            if name == NO_FILE or _is_file(kept) or _is_link(kept):
                with contextlib.suppress(OSError):
                    stays = name != NO_FILE and not _is_link(kept)
                    later = self._take_away(path, stays=stays) if _is_file(path) or _is_link(path) else None
                    if name != NO_FILE:
                        _return(kept, path)
                        returned.add(os.path.dirname(path))
                        if versions is not None:
                            kept_too = "" if later is None else f"; the later one is {later}"
                            messages.say(f"{path}: put back as it was at the checkpoint{kept_too}")
        for folder in returned:
            _set_age(folder)
        if known:
            self._changes.returned()
        self._here = {}

    def _take_away(self, path: str, *, stays: bool) -> Path:
        """Keep the file at a path for a while, and remove it; with `stays`, only copy a file with several names."""
        later = self._changes.kept_in / self._changes.new_name()
        if stays and os.lstat(path).st_nlink > 1:
            copy_file(path, later)
        else:
            move_file(path, later)
        self._changes.prune_later(later.name)
        return later


def _set_age(folder: str) -> None:
    """Make a folder as old as the newest file in it: a program may remove the oldest folder."""
    with contextlib.suppress(OSError, ValueError), _scandir(folder) as entries:
        newest = max(each.stat(follow_symlinks=False).st_mtime_ns for each in entries)
        os.utime(folder, ns=(newest, newest))


def _return(kept: Path, path: str) -> None:
    if _is_file(path) and os.path.samefile(kept, path):  # a link, not written since
        kept.unlink()
    elif _is_file(path):  # written in place: it may have another name, too
        with io.FileIO(kept) as source, io.FileIO(_open(path, os.O_WRONLY | os.O_TRUNC), "w") as target:
            shutil.copyfileobj(source, target)
        shutil.copystat(kept, path)
        kept.unlink()
    else:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        move_file(kept, path)


def _keep(path: str, target: Path, how: How) -> None:
    """Keep a file under a second name, so that its content stays when the file at its own name changes."""
    if _is_link(path):
        _symlink(_readlink(path), target)
        return
    real = os.path.realpath(path)
    now = os.stat(real)
    if how == "replaced":
        try:
            os.link(real, target)
        except OSError:
            copy_file(real, target)
    elif how == "moved" or now.st_nlink > 1 or not _may(real, os.W_OK):  # written by its other name; or not at all
        copy_file(real, target)
    else:
        move_file(real, target)
        made = _open(real, os.O_CREAT | os.O_WRONLY)  # so that the file exists
        os.fchmod(made, now.st_mode & 0o7777)
        os.close(made)
