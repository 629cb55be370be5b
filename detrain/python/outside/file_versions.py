"""Files that are written as a whole: what they held at a cut is kept, and is there again when a run resumes.

Best weights that a loop goes back to, a table of results that it reads and writes again: such a file is state. Before
it is written for the first time behind a cut, what it is goes beside the checkpoints, by a new name and not by a copy,
wherever that will do. A run that resumes from the cut puts it back: as it starts, and again at each station, because
code on the way may have written it.
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
from detrain.python.outside.change_log import NO_FILE, NO_ROOM, Changes, move_file

How = Literal["written", "replaced", "moved"]
"""What is about to happen to a file: Python or PyTorch empties and writes it, another one takes its name or none does,
it gets another name or is written by others."""
_open, _is_there, _is_file = os.open, os.path.lexists, os.path.isfile  # before the program's are followed
_SMALL_BYTES: Final = 1 << 26
"""Files up to this size are always kept, larger ones where the disk has room for four of them."""
_OF_OTHERS: Final = ("~/.cache", tempfile.gettempdir())
"""Folders whose files are nobody's results, unless the program itself is started there."""


class Versions:
    """What files held at the newest cut, since when they have been written as a whole. Paths are absolute."""

    def __init__(self, changes: Changes, base: str) -> None:
        """`base` is the folder that the program was started in."""
        self._changes, self._process = changes, os.getpid()
        others = (os.path.realpath(os.path.expanduser(each)) + os.sep for each in _OF_OTHERS)
        self._others = tuple(each for each in others if not f"{os.path.realpath(base)}{os.sep}".startswith(each))
        self._here: dict[str, str] = {}
        """Files that were written since the cut, and by which name they are kept."""
        self.stale: set[str] = set()
        """Files that hold what a later moment has put there: what they were at the cut was not kept, or not so long."""

    def keep(self, path: str, how: How, *, is_as_found: bool = False) -> None:
        """Keep what a file is, before something happens to it for the first time behind a cut; `is_as_found`: code
        before the loop has read it, and reads it again in a run that resumes."""
        path = os.path.realpath(path) if how == "written" else path
        if path in self._here or os.getpid() != self._process or self.is_of_others(path):
            return
        if _is_file(path) and not os.path.islink(path):
            size = os.path.getsize(path)
            has_room = size <= _SMALL_BYTES or self._has_room(4 * size)
            name = self._changes.new_name() if has_room else NO_ROOM
            if is_as_found and has_room:
                self._changes.keep_as_found(path)
        elif _is_there(path):  # a pipe, a device, a link whose file stays what it is
            return
        else:
            name = NO_FILE
        self._here[path] = name
        self._changes.note_version(path, name)  # first: where nothing is kept by this name, the file is what it was
        if name not in (NO_FILE, NO_ROOM):
            with contextlib.suppress(OSError):
                _keep(path, self._changes.kept_in / name, how)
                self._changes.prune_later(name)

    def is_of_others(self, path: str) -> bool:
        """Return whether a path is in a folder whose files are nobody's results."""
        return os.path.realpath(path).startswith(self._others)

    def _has_room(self, size: int) -> bool:
        return shutil.disk_usage(self._changes.kept_in.parent).free >= size

    def begin_cut(self) -> None:
        """A checkpoint is taken: what files are now is what they were there."""
        self._here.clear()

    def put_back(self, versions: dict[str, str] | None = None) -> None:
        """Have files as they were at the cut: those that this process has written since it started, or `versions`."""
        known = self._here if versions is None else versions
        for path, name in known.items():
            kept = self._changes.kept_in / name
            if name == NO_ROOM or (name != NO_FILE and self._changes.is_gone(name)):
                self.stale.add(path)
            if name == NO_FILE or _is_file(kept):
                with contextlib.suppress(OSError):
                    later = self._take_away(path, stays=name != NO_FILE) if _is_file(path) else None
                    if name != NO_FILE:
                        _return(kept, path)
                        if versions is not None:
                            messages.say(f"{path}: put back as it was at the checkpoint; the later one is {later}")
        if known:
            self._changes.returned()
        self._here = {}

    def _take_away(self, path: str, *, stays: bool) -> Path:
        """Keep what is at a path for a while, and have nothing there; where it `stays`, unless it has another name."""
        later = self._changes.kept_in / self._changes.new_name()
        if stays and os.stat(path).st_nlink > 1:
            shutil.copy2(path, later)
        else:
            move_file(path, later)
        self._changes.prune_later(later.name)
        return later


def _return(kept: Path, path: str) -> None:
    if _is_file(path) and os.path.samefile(kept, path):  # a link, and never written since
        kept.unlink()
    elif _is_file(path):  # by another name, too: it stays one file
        with io.FileIO(kept) as source, io.FileIO(_open(path, os.O_WRONLY | os.O_TRUNC), "w") as target:
            shutil.copyfileobj(source, target)
        kept.unlink()
    else:
        move_file(kept, path)


def _keep(path: str, target: Path, how: How) -> None:
    """Have a file by a second name, so that it stays what it is whatever happens at its own."""
    real = os.path.realpath(path)
    now = os.stat(real)
    if how == "replaced":
        try:
            os.link(real, target)
        except OSError:
            shutil.copy2(real, target)
    elif how == "moved" or now.st_nlink > 1:  # by its other name it may be written
        shutil.copy2(real, target)
    else:
        move_file(real, target)
        made = _open(real, os.O_CREAT | os.O_WRONLY)  # which is there, for who asks
        os.fchmod(made, now.st_mode & 0o7777)
        os.close(made)
