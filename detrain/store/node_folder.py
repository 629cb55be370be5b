"""The folder of a job in the memory of its node: it outlives single processes of the job, and is deleted when all have
ended.

Each process holds a shared lock on the folder itself (`flock`), which ends with the process, however that ends. A
process that gets an exclusive lock knows that all of them are dead, in any namespace of processes. The folder's files
are of no use then: a rank that saved has written the states of the dead ones to the job's home.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path
from typing import Final

PREFIX: Final = "detrain-jit-"
_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW


def memory() -> Path:
    """Return a folder in the memory of this node, if it has one."""
    shared = Path("/dev/shm")
    return shared if os.access(shared, os.W_OK) else Path("/tmp")


class NodeFolder:
    """One process's hold on the folder of its job."""

    def __init__(self, base: Path, job: str) -> None:
        """Make the folder, if no process of the job has done so, and lock it. Folders of this user's dead jobs are
        deleted. Raises OSError.
        """
        own = f"{PREFIX}{os.getuid()}-"
        self.path = base / f"{own}{job}"
        self._descriptor = _held(self.path)
        for other in base.glob(f"{own}*"):
            if other != self.path:
                _delete_if_dead(other)

    def delete(self) -> None:
        """Delete the folder: the job has ended well. Other ranks still have their files' contents in memory."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1


def _held(path: Path) -> int:
    while True:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, _FLAGS)
        except FileNotFoundError:
            continue
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        try:
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        except FileNotFoundError:
            pass
        os.close(descriptor)  # another process has found the folder without locks meanwhile, and has deleted it


def _delete_if_dead(path: Path) -> None:
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError:
        return  # gone, or not ours
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return  # its job lives
    else:
        shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(descriptor)
