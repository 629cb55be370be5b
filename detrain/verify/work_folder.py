"""The folder in which compared runs work: copies of the current folder, one after another under one path. No run finds
files of another, and the user's own files stay as they are. Files that a program writes elsewhere, by an absolute path,
are not compared.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from detrain.base.byte_digests import digest_bytes
from detrain.base.errors import UsageError
from detrain.store.catalogue import parse_name
from detrain.verify.event_points import is_event_file, points_by_folder

_LINKED: Final = frozenset({".git", ".hg", ".svn", "node_modules", ".venv", "venv"})
"""Folders that no training program writes to."""
_BYTECODE: Final = "__pycache__"
"""A folder that Python makes again, and writes to."""
_MOST_FILES: Final = 20_000
_COPIED_BYTES: Final = 16 << 20
"""Larger files, mostly data sets, are linked if that is safe."""


def copy_folder(source: Path, target: Path, *, without: Collection[Path] = (), unchanged_since: float = -math.inf) -> bool:
    """Copy a folder for a run to work in, so that the run does not write to the user's own files. Returns False, and
    copies nothing, if the folder holds too many files. Raises UsageError if there is no room for large ones.

    A large file is linked if it has not changed since `unchanged_since` (seconds since 1970): a run that began then has
    not written it, as no program can set back the time of change that the system keeps. The user's links that lead into
    the folder lead into the copy.
    """
    found = list(_walk(source, {path.resolve() for path in without}))
    if len(found) > _MOST_FILES:
        return False
    apart = {path for path, is_apart in found if is_apart and not path.is_symlink()}
    linked = {path for path in apart if path.is_dir() or _is_as_it_was(path, unchanged_since)}
    needed = sum(path.stat().st_size for path in apart - linked)
    if needed > (free := shutil.disk_usage(target.parent).free):
        raise UsageError(
            f"{needed:,} bytes of large files in {str(source)!r}, which the program may write, are to be copied into "
            f"{str(target.parent)!r}, which has {free:,} left",
            "set TMPDIR to a folder that has room, or move files that are only read elsewhere",
        )
    target.mkdir()
    for path, _is_apart in found:
        copy = target / path.relative_to(source)
        if path.is_symlink():
            inside = os.path.relpath(os.path.realpath(path), source.resolve())
            is_outside = inside.split(os.sep)[0] == os.pardir
            copy.symlink_to(os.path.realpath(path) if is_outside else os.path.relpath(target / inside, copy.parent))
        elif path in linked:
            copy.symlink_to(path.resolve())
        elif path.is_dir():
            copy.mkdir()
        else:
            shutil.copy2(path, copy)
    return True


def is_large(path: Path) -> bool:
    """Return True if a file is so large that it should be linked, not copied."""
    return path.stat().st_size > _COPIED_BYTES


def _is_as_it_was(path: Path, since: float) -> bool:
    """Return True if a file has not changed since a time; checkpoints never change."""
    return parse_name(path) is not None or path.stat().st_ctime < since


def _walk(folder: Path, without: Collection[Path]) -> Iterator[tuple[Path, bool]]:
    """Yield each path below a folder, folders before their contents, and True if it is treated apart: a link, a large
    file, or a folder that is not entered.
    """
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        path = Path(entry.path)
        if Path(os.path.realpath(path)) in without or entry.name == _BYTECODE:
            continue
        if entry.is_dir(follow_symlinks=False):
            is_apart = entry.name in _LINKED or (path / "pyvenv.cfg").is_file()
            yield path, is_apart
            if not is_apart:
                yield from _walk(path, without)
        elif entry.is_file(follow_symlinks=False):
            yield path, is_large(path)
        elif entry.is_symlink():
            yield path, True


def written(folder: Path, before: Mapping[str, str]) -> dict[str, str]:
    """Return the digests of files in a folder, by their relative paths, without those unchanged since `before`.

    TensorBoard's event files in one folder count as one file, compared by its points.
    """
    paths = {path.relative_to(folder).as_posix(): path for path, is_apart in _walk(folder, ()) if not is_apart and path.is_file()}
    now = {name: digest_bytes(path.read_bytes()) for name, path in paths.items()}
    found = {name: digest for name, digest in now.items() if before.get(name) != digest}
    events = {name: paths[name].read_bytes() for name in found if is_event_file(name)}
    return {**{name: digest for name, digest in found.items() if name not in events}, **points_by_folder(events)}


class WorkFolder(msgspec.Struct, frozen=True):
    """The place where the runs work: copies of the current folder, all under one path, or the folder itself."""

    source: Path
    folder: Path
    """A temporary folder, for all files of the runs."""
    is_copied: bool
    _large: dict[Path, tuple[int, ...]] = {}
    """Files of the first copy to which runs get links, with their states; those that a run has written are dropped."""

    @classmethod
    def around(cls, source: Path, folder: Path, *, unchanged_since: float = -math.inf) -> WorkFolder:
        """Return the place for runs of a current folder, as `copy_folder` copies it. Relative paths that lead out of
        the folder lead out of its copies to the same files.
        """
        made = cls(source, folder, copy_folder(source, folder / "first", unchanged_since=unchanged_since))
        if made.is_copied:
            place_like(source, folder / "beside")
            files = (path for path in (folder / "first").rglob("*") if path.is_file() and not path.is_symlink())
            made._large.update((path, _state(path)) for path in files if is_large(path))
        return made

    @property
    def work(self) -> Path:
        """The folder in which runs work."""
        return _in(self.folder / "beside", self.source) if self.is_copied else self.source

    def program(self, path: str) -> str:
        """Return the path by which the runs find the program."""
        whole = Path(path).resolve()
        is_inside = self.source.resolve() in whole.parents
        return os.path.relpath(whole, self.source.resolve()) if is_inside else str(whole)

    def begin(self) -> dict[str, str]:
        """Make the folder for a run; return the digests of its files."""
        if not self.is_copied:
            return {}
        shutil.rmtree(self.work, ignore_errors=True)
        first = self.folder / "first"
        for path in [path for path, state in self._large.items() if _state(path) != state]:
            del self._large[path]
            shutil.copy2(self.source / path.relative_to(first), path)
        shutil.copytree(first, self.work, symlinks=True, copy_function=self._copy)
        return written(self.work, {})

    def _copy(self, path: str, copy: str) -> None:
        """Copy a file for one run, or link it if it is large and no run has written it."""
        if Path(path) in self._large:
            os.symlink(path, copy)
        else:
            shutil.copy2(path, copy)


def place_like(source: Path, root: Path) -> Path:
    """Make folders in `root` like those above a folder, with links to all files beside them: relative paths that lead
    out of the folder then lead out of its copy to the same files. Return the path at which to make the copy.
    """
    for above in reversed(source.resolve().parents):
        here = _in(root, above)
        here.mkdir(parents=True)
        following = source.resolve().relative_to(above).parts[0]
        with contextlib.suppress(OSError):  # a folder that this user may not read
            for entry in os.scandir(above):
                if entry.name != following:
                    (here / entry.name).symlink_to(entry.path)
    return _in(root, source)


def _in(root: Path, folder: Path) -> Path:
    """Return the path in `root` that stands for a folder."""
    whole = folder.resolve()
    return root / whole.relative_to(whole.anchor)


def _state(path: Path) -> tuple[int, ...]:
    """Return the status fields of a file that change when a program writes to it."""
    found = path.stat()
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino
