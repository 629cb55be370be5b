"""Where runs that are compared work: each in a copy of the current folder of its own, all under one path."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from detrain.verify.runs import copy_folder, written


@dataclass(frozen=True)
class WorkFolder:
    """Where the runs work: in copies of the current folder, all under one path, or in the folder itself."""

    source: Path
    folder: Path
    """Temporary, for everything that the runs leave."""
    is_copied: bool

    @classmethod
    def around(cls, source: Path, folder: Path) -> WorkFolder:
        """Return the place for a current folder. What lies beside that is found beside its copies, too."""
        made = cls(source, folder, copy_folder(source, folder / "first"))
        if made.is_copied:
            (folder / "beside").mkdir()
            for entry in source.parent.iterdir() if source.parent != source else ():
                if entry != source:
                    (folder / "beside" / entry.name).symlink_to(entry)
        return made

    @property
    def work(self) -> Path:
        """The folder in which runs work."""
        return self.folder / "beside" / self.source.name if self.is_copied else self.source

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
        shutil.copytree(self.folder / "first", self.work, symlinks=True)
        return written(self.work, {})
