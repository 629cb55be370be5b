"""Processes that end with the one that started them, and folders that are gone when theirs is,
even if that was killed.
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
"""`prctl(2)`; what it sets stays over `execve`."""
_AS_MODULE: Final = "import runpy, sys; sys.path.append(sys.argv.pop(1)); runpy.run_module(sys.argv.pop(1), None, '__main__', True)"
"""Python's `-m` for a module in a folder, both named ahead of its arguments."""


def dying_with_this(*, dies_first: bool = False) -> Callable[[], None] | None:
    """Return what a child is to do before it starts its program, so that it is killed when this process ends; None:
    nothing can be. With `dies_first` it is also what the kernel kills before all others where memory runs out.

    Only Linux knows such a signal. It comes when the thread ends that has started the child: start it in the main
    thread.
    """
    if not sys.platform.startswith("linux"):
        return None
    prctl, parent = ctypes.CDLL(None, use_errno=True).prctl, os.getpid()

    def die_with_parent() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if dies_first:
            with contextlib.suppress(OSError):
                Path("/proc/self/oom_score_adj").write_text("1000")
        if os.getppid() != parent:  # it has ended already
            os._exit(1)

    return die_with_parent


def start_apart(module: str, *arguments: str, keeping: Sequence[int] = (), in_session: bool = False) -> None:
    """Start a module of detrain's as a process that is no child of this one: nobody here waits for its end, or finds it
    among the children of the program that this process becomes. Files of the numbers in `keeping` stay open in it. It
    does not look for modules in the current folder: the program's may have any name.

    `in_session`: in a group of its own of this session, as the kernel may share processor time out by sessions, so that
    a priority counts among the processes of one alone; and silent, so that whoever reads what the run prints does not
    wait for its end.
    A child starts it and ends, which a shell has done in 1 to 4 ms: the program has no time to wait for that child.
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
    """Return a command that starts the one behind it, and ends. Without a shell it takes 80 ms."""
    if Path("/bin/sh").exists():
        return ["/bin/sh", "-c", '"$@" &', "sh"]
    return [sys.executable, "-P", "-c", "import subprocess, sys\nsubprocess.Popen(sys.argv[1:], close_fds=False)"]


def die_with(parent: int) -> None:
    """Have this process killed when its parent ends, and end it if that has ended already. Nothing is done where the
    parent has another number (a fork server), or elsewhere than on Linux; the parent must have started it in its main
    thread (see `dying_with_this`). 0: nothing is done.
    """
    if not parent or not sys.platform.startswith("linux"):
        return
    if os.getppid() == parent:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent and has_ended(parent):
        os._exit(1)


def has_ended(process: int) -> bool:
    """Return whether a process is gone, or waits only for its parent to hear of its end."""
    try:
        return Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"Z"
    except OSError:
        return True


@contextlib.contextmanager
def scratch_folder(inside: Path, prefix: str) -> Iterator[Path]:
    """Return an empty folder that is gone afterwards. Those that killed processes have left there are cleared away."""
    inside.mkdir(parents=True, exist_ok=True)
    for left in inside.glob(f"{prefix}*"):
        with contextlib.suppress(OSError), _held(left):
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=inside, prefix=prefix, ignore_cleanup_errors=True) as name, _held(Path(name)):
        yield Path(name)


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Hold a folder as long as this process lives. Raises OSError if another does."""
    number = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(number)
