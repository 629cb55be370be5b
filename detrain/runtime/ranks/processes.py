"""Processes of this node: whether another one is stopped or gone, its end, and SIGTERM in this one."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec


class Process(msgspec.Struct, frozen=True, array_like=True):
    """A process, for good: numbers are used again, and starting times are not."""

    pid: int
    started: int
    """In clock ticks since boot."""


def this_process() -> Process:
    """Return the running process."""
    return process_of(os.getpid())


def process_of(pid: int) -> Process:
    """Return a process of this node by its number. Raises OSError."""
    return Process(pid, _stat(pid)[1])


def this_node() -> str:
    """Return what tells this kernel, and this namespace of process numbers, from others."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + ":" + os.readlink("/proc/self/ns/pid")


def rests(process: Process) -> str | None:
    """Return why a process of this node does nothing: it is stopped, or gone. None: it runs."""
    try:
        state, started = _stat(process.pid)
    except OSError:
        return "is gone"
    if started != process.started or state in "ZX":
        return "is gone"
    return "is stopped" if state == "T" else None


def end(process: Process) -> None:
    """Kill a process of this node, if it is still there."""
    with suppress(OSError):
        descriptor = os.pidfd_open(process.pid)  # holds the number: it cannot become another's between look and kill
        try:
            if _stat(process.pid)[1] == process.started:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        finally:
            os.close(descriptor)


def _stat(pid: int) -> tuple[str, int]:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return fields[0], int(fields[19])


class SigtermPipe:
    """SIGTERM becomes readable at `descriptor`. To be made in the main thread. A handler of the program stays, and so
    does its wish that SIGTERM be ignored: what it then means is the program's to say, and it is not told here.

    A handler of Python's runs between bytecodes of the main thread: never, while that waits in a collective. The number
    of a signal is written to a descriptor at once.
    """

    def __init__(self) -> None:
        self.descriptor, self._writes = os.pipe()
        os.set_blocking(self.descriptor, False)
        os.set_blocking(self._writes, False)
        self._before: Any = signal.getsignal(signal.SIGTERM)
        self._is_ours = self._before == signal.SIG_DFL
        if self._is_ours:
            signal.signal(signal.SIGTERM, _do_nothing)
        self._other = signal.set_wakeup_fd(self._writes, warn_on_full_buffer=False)

    def has_come(self) -> bool:
        """Read what has come; who had asked for signals before, as asyncio does, still gets them."""
        try:
            numbers = os.read(self.descriptor, 4096)
        except BlockingIOError:
            return False
        if self._other >= 0:
            with suppress(OSError):
                os.write(self._other, numbers)
        return signal.SIGTERM in numbers and (self._is_ours and signal.getsignal(signal.SIGTERM) is _do_nothing)

    def undo(self) -> None:
        """Have SIGTERM be what it was; also in a forked child, which must not write to its parent's pipe."""
        with suppress(ValueError):  # in a thread
            if signal.set_wakeup_fd(-1) == self._writes:
                signal.set_wakeup_fd(self._other)
            if self._is_ours and signal.getsignal(signal.SIGTERM) is _do_nothing:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for descriptor in (self.descriptor, self._writes):
            with suppress(OSError):
                os.close(descriptor)


def _do_nothing(_signal: int, _frame: FrameType | None) -> None:
    """A handler must be there for the descriptor to be written to."""
