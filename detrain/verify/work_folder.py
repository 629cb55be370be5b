"""Where runs that are compared work: each in a copy of the current folder of its own, all under one path."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from detrain.verify.runs import copy_folder, is_large, written


@dataclass(frozen=True)
class WorkFolder:
    """Where the runs work: in copies of the current folder, all under one path, or in the folder itself."""

    source: Path
    folder: Path
    """Temporary, for everything that the runs leave."""
    is_copied: bool
    _large: dict[Path, tuple[int, ...]] = field(default_factory=dict)
    """Files of the first copy that runs are given links to, and in which state; gone if one has written them."""

    @classmethod
    def around(cls, source: Path, folder: Path, *, unchanged_since: float = -math.inf) -> WorkFolder:
        """Return the place for a current folder, as `copy_folder` copies it. What lies beside that and above it
        is found there from its copies, too.
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
        """Make the folder for a run; return the digests of what is in it."""
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
        """Copy a file for one run; large ones are linked, as long as no run has written one."""
        if Path(path) in self._large:
            os.symlink(path, copy)
        else:
            shutil.copy2(path, copy)


def place_like(source: Path, root: Path) -> Path:
    """Make folders in `root` like those above a folder, with links to what lies beside the way there: paths that lead
    out of the folder lead out of its copy to the same files. Return where the copy is to be made.
    """
    for above in reversed(source.resolve().parents):
        here = _in(root, above)
        here.mkdir(parents=True)
        following = source.resolve().relative_to(above).parts[0]
        with contextlib.suppress(OSError):  # one that may not be looked into
            for entry in os.scandir(above):
                if entry.name != following:
                    (here / entry.name).symlink_to(entry.path)
    return _in(root, source)


def _in(root: Path, folder: Path) -> Path:
    """Return where in `root` a folder has its place."""
    whole = folder.resolve()
    return root / whole.relative_to(whole.anchor)


def _state(path: Path) -> tuple[int, ...]:
    """Return what changes of a file when something is written to it."""
    found = path.stat()
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino
