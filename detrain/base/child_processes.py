"""Processes that end when the process that started them ends, and scratch folders that are removed even if their
process was killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
"""Option of `prctl(2)`; the signal that it sets stays set over `execve`."""
_AS_MODULE: Final = "import runpy, sys; sys.path.append(sys.argv.pop(1)); runpy.run_module(sys.argv.pop(1), None, '__main__', True)"
"""Does what Python's `-m` does, for a module in a folder; folder and module come before the module's arguments."""


def dying_with_this(*, dies_first: bool = False) -> Callable[[], None] | None:
    """Return a function for a child to call before it starts its program, so that the child is killed when this process
    ends; None where that is not possible. With `dies_first`, the kernel also kills the child first if memory runs out.

    Only Linux has such a signal. The kernel sends it when the thread that started the child ends: start the child in
    the main thread.
    """
    if not sys.platform.startswith("linux"):
        return None
    prctl, parent = ctypes.CDLL(None, use_errno=True).prctl, os.getpid()

    def die_with_parent() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if dies_first:
            with contextlib.suppress(OSError):
                Path("/proc/self/oom_score_adj").write_text("1000")
        if os.getppid() != parent:  # the parent has ended already
            os._exit(1)

    return die_with_parent


def start_apart(module: str, *arguments: str, keeping: Sequence[int] = (), in_session: bool = False) -> None:
    """Start a module of detrain as a process that is no child of this one: nobody here waits for its end, and the
    program that this process becomes does not find it among its children. The files numbered in `keeping` stay open in
    it. It does not import modules from the current folder: the program's modules may have any name.

    With `in_session`, the process gets its own group in this session: the kernel may share processor time out by
    session, and a priority then counts only among the processes of one session. The process also prints nothing, so
    that a reader of the run's output does not wait for its end.
    A child starts the process and ends; a shell takes 1 to 4 ms for that, and the program must not wait for longer.
    Raises OSError or subprocess.CalledProcessError.
    """
    command = [*_starter(), sys.executable, "-P", "-c", _AS_MODULE, str(Path(__file__).parents[2]), module, *arguments]
    group, prints = (0, subprocess.DEVNULL) if in_session else (None, None)
    with subprocess.Popen(
        command, pass_fds=keeping, stdout=prints, stderr=prints, process_group=group, start_new_session=not in_session
    ) as starter:
        if starter.wait():
            raise subprocess.CalledProcessError(starter.returncode, starter.args)


def _starter() -> list[str]:
    """Return a command that starts the command after it, and ends. Without a shell that takes 80 ms."""
    if Path("/bin/sh").exists():
        return ["/bin/sh", "-c", '"$@" &', "sh"]
    return [sys.executable, "-P", "-c", "import subprocess, sys\nsubprocess.Popen(sys.argv[1:], close_fds=False)"]


def die_with(parent: int) -> None:
    """Have this process killed when the process `parent` ends, and end it now if that process has ended already.

    If another process (a fork server) is the parent of this one, a later end of `parent` has no effect here. Nothing is
    done if `parent` is 0, or on systems other than Linux.
    `parent` must have started this process in its main thread (see `dying_with_this`).
    """
    if not parent or not sys.platform.startswith("linux"):
        return
    if os.getppid() == parent:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent and has_ended(parent):
        os._exit(1)


def has_ended(process: int) -> bool:
    """Return whether a process is gone, or is a zombie: it has ended, and its parent has not yet been told."""
    try:
        return Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"Z"
    except OSError:
        return True


@contextlib.contextmanager
def scratch_folder(inside: Path, prefix: str) -> Iterator[Path]:
    """Return an empty folder that is removed afterwards. Folders left there by killed processes are removed, too."""
    inside.mkdir(parents=True, exist_ok=True)
    for left in inside.glob(f"{prefix}*"):
        with contextlib.suppress(OSError), _held(left):
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=inside, prefix=prefix, ignore_cleanup_errors=True) as name, _held(Path(name)):
        yield Path(name)


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Lock a folder; the lock ends with this process. Raises OSError if another process has locked it."""
    number = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(number)
