"""Processes of this node: whether another one is stopped or gone, how to kill it, and SIGTERM in this process."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec


class Process(msgspec.Struct, frozen=True, array_like=True):
    """A process, identified for good: the system uses numbers again, but not with the same starting time."""

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
    """Return an identifier of this kernel and this namespace of process numbers."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + ":" + os.readlink("/proc/self/ns/pid")


def rests(process: Process) -> str | None:
    """Return the reason why a process of this node does not run: it is stopped, or gone. Return None if it runs."""
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
        descriptor = os.pidfd_open(process.pid)  # so that no other process gets the number between check and kill
        try:
            if _stat(process.pid)[1] == process.started:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        finally:
            os.close(descriptor)


def _stat(pid: int) -> tuple[str, int]:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return fields[0], int(fields[19])


class SigtermPipe:
    """Makes SIGTERM readable at `descriptor`. To be made in the main thread. If the program handles or ignores SIGTERM,
    that stays: the program decides then, and `has_come` does not report the signal.

    Python runs its handlers between bytecodes of the main thread: never while that waits in a collective. But it writes
    the number of a signal to a descriptor at once.
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
        """Read the signals that have come, and return whether one is SIGTERM. An earlier reader, such as asyncio, still
        gets their numbers.
        """
        try:
            numbers = os.read(self.descriptor, 4096)
        except BlockingIOError:
            return False
        if self._other >= 0:
            with suppress(OSError):
                os.write(self._other, numbers)
        return signal.SIGTERM in numbers and (self._is_ours and signal.getsignal(signal.SIGTERM) is _do_nothing)

    def undo(self) -> None:
        """Restore the handling of SIGTERM; also in a forked child, which must not write to its parent's pipe."""
        with suppress(ValueError):  # outside of the main thread
            if signal.set_wakeup_fd(-1) == self._writes:
                signal.set_wakeup_fd(self._other)
            if self._is_ours and signal.getsignal(signal.SIGTERM) is _do_nothing:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for descriptor in (self.descriptor, self._writes):
            with suppress(OSError):
                os.close(descriptor)


def _do_nothing(_signal: int, _frame: FrameType | None) -> None:
    """Do nothing: Python writes to the descriptor only if the signal has a handler."""
