"""Child processes, threads and tasks that are alive: their state (random streams, an environment they simulate) cannot
be seen.

Linux lists child processes; elsewhere they are not seen. A thread holds state if it is inside a function of the
program; a thread of a pool that waits for work holds none. The task of asyncio that trains is seen, like any function
that runs; the state of other tasks is not.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final, NoReturn

from detrain.base import messages
from detrain.base.libraries import libraries
from detrain.python.inspect.frames import frames_of_others, is_notebook, is_user_file, user_frames
from detrain.python.process.environment import options_of_python

_HELPERS: Final = (b"resource_tracker", b"semaphore_tracker")
"""Processes of Python's and joblib's own, which hold no state of the program."""
_FORKING: Final = b"multiprocessing.forkserver"
_NUMBER: Final = re.compile(r"(?<=^Thread)-\d+(?= \()")
"""The number in the name of a thread that was given none; another thread of the same function has another number."""

_exempt: list[Callable[[], set[int]]] = []


def exempt(numbers: Callable[[], set[int]]) -> None:
    """Leave out the processes that a framework brings back itself: `numbers` returns their numbers."""
    _exempt.append(numbers)


def end() -> None:
    """End the processes that a framework brings back itself: this process is about to become another program, and they
    would stay its children.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # no handler shall complain
    for number in {number for each in _exempt for number in each()}:
        with contextlib.suppress(OSError):
            os.kill(number, signal.SIGKILL)
            os.waitpid(number, 0)


def start_again(command: Sequence[str]) -> NoReturn:
    """Become a `detrain` command anew: nothing that was printed is lost, and no child stays."""
    messages.flush_output()
    end()
    os.execv(sys.executable, [sys.executable, *options_of_python(), "-m", "detrain", *command])


def living(again: Container[threading.Thread] = (), before: Mapping[int, int] = MappingProxyType({})) -> list[str]:
    """Return, in words, the state of child processes, threads and tasks that are alive; empty if there are none.

    `again`: threads that a resumed run brings to the same place; `before`: how long processes had run when the loop was
    entered. A process that has not run since (an idle pool) is the same in a resumed run.
    """
    return [*_threads(again), *_tasks(), *_processes(before)]


def run_times() -> dict[int, int]:
    """Return how long each child process has run, in nanoseconds, as far as the system tells it."""
    return {child: ran for child, _name in _names() if (ran := _run_time(child))} if _has_children() else {}


def _run_time(process: int) -> int:
    of_threads = [_read(path).split() for path in Path("/proc", str(process), "task").glob("*/schedstat")]
    return sum(int(fields[0]) for fields in of_threads if fields)


def _threads(again: Container[threading.Thread]) -> list[str]:
    frames = frames_of_others()
    names = set()
    for thread in threading.enumerate():
        frame = frames.get(thread.ident or 0)
        is_foreign = isinstance(thread, threading._DummyThread)  # a thread of C++ that runs Python for a moment
        if frame is None or is_foreign:
            continue
        if thread not in again and user_frames(frame):
            names.add(f"what the thread {_NUMBER.sub('', thread.name)} holds")
    return sorted(names)


def _tasks() -> list[str]:
    asyncio = sys.modules.get("asyncio")
    try:
        others = asyncio.all_tasks() - {asyncio.current_task()} if asyncio is not None else set()
    except RuntimeError:  # no event loop is running
        return []
    coroutines = [task.get_coro() for task in others]
    if is_notebook():  # the kernel lives in such tasks
        coroutines = [each for each in coroutines if is_user_file(getattr(getattr(each, "cr_code", None), "co_filename", ""))]
    return sorted({f"what the task {getattr(each, '__qualname__', each)} of asyncio holds" for each in coroutines})


def _processes(before: Mapping[int, int]) -> list[str]:
    found = {name for child, name in _names() if before.get(child) != _run_time(child)} if _has_children() else set()
    known = {name for each in libraries().values() for name in each.processes}
    return [f"what the child process {name} holds" for name in sorted(found - known)]


def _has_children() -> bool:
    try:
        if hasattr(os, "waitid"):  # one call only, if there are none
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _names() -> Iterator[tuple[int, str]]:
    """Yield the numbers and commands of the children that have not ended, as Linux tells them."""
    known = {number for each in _exempt for number in each()}
    for child, command in _children("self"):
        # The server that forks others holds no state; the processes that it has forked do.
        for number, what in _children(str(child)) if _FORKING in command else ((child, command),):
            if number not in known:
                yield number, os.path.basename(what.partition(b"\0")[0]).decode(errors="replace")


def _children(process: str) -> Iterator[tuple[int, bytes]]:
    """Yield the children of a process that have not ended, with their command lines; helpers are left out."""
    for listing in Path("/proc", process, "task").glob("*/children"):
        for child in _read(listing).split():
            command = _read(Path("/proc", child.decode(), "cmdline"))  # empty once it has ended
            if command and not any(helper in command for helper in _HELPERS):
                yield int(child), command


def _read(path: Path) -> bytes:
    """Return the content of a file; empty if the thread or process that it describes has ended meanwhile."""
    try:
        return path.read_bytes()
    except OSError:
        return b""
