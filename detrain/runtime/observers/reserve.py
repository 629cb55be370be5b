"""A process that waits at the place where trials begin, while a copy of it does them. If the copy ends in a trial, or
takes too long in it, another copy goes on with the next trial.

A copy is a fork that equals its parent to the bit: the hooks do not run by which Python or detrain gives a child of the
program other random numbers, and `os.getpid` returns the parent's number. A process can be copied only if it has one
thread, shares no memory, and has no file open that both would move on.
"""

from __future__ import annotations

import ctypes
import io
import os
import stat
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final, NoReturn

import msgspec

from detrain.base import messages
from detrain.base.child_processes import die_with
from detrain.python.process import children

GO_ON: Final = "go-on"
"""The file that tells the waiting process to leave the copy behind: it names the log of the trial to begin with."""
_POLL_S: Final = 0.005
_OWN_ERRORS: Final = range(64, 100)
"""Exit statuses of detrain's errors, which no trial causes."""


def claim(log: str) -> bool:
    """Claim a trial for this process; return whether it is free: no process has made its log yet."""
    try:
        io.FileIO(log, "x").close()  # not `open`: detrain follows the files that it opens as the program's own
    except FileExistsError:
        return False
    return True


class Reserve:
    """A waiting process and its copies."""

    def __init__(self) -> None:
        self._copies: list[int] = []
        self.number = 0
        """The system's number of this process if it is a copy, else 0."""
        children.exempt(lambda: set(self._copies))

    def can_copy(self, folder: Path) -> bool:
        """Return whether this process can be copied: it is no copy, has one thread, shares only files in `folder`."""
        if self.number or not sys.platform.startswith("linux") or len(os.listdir("/proc/self/task")) > 1:
            return False
        maps = [line.split(maxsplit=5) for line in _read("/proc/self/maps").splitlines()]
        is_sharing = any("w" in mode and "s" in mode for _range, mode, *_ in maps)
        code = {path for _range, mode, _offset, _device, _node, *paths in maps if "x" in mode for path in paths}
        numbers = map(int, os.listdir("/proc/self/fd"))
        return not is_sharing and all(_is_apart(number, folder.resolve(), code) for number in numbers)

    def wait(self, logs: Sequence[str]) -> int:
        """Have a copy do the trials with these logs; the first log exists. Return 0 in the copy. In this process, wait
        until the copy has ended in a trial or has taken too long, and return the place of the trial to go on with. If
        the copy ends in another way, this process ends in the same way.
        """
        messages.flush_output()
        folder, parent = Path(logs[0]).parent, os.getpid()
        copy = ctypes.PyDLL(None).fork()  # not os.fork, whose hooks make a child draw other random numbers
        if copy <= 0:
            if not copy:
                self._become_copy(parent, folder)
            return 0
        self._copies.append(copy)
        while True:
            ended = os.waitid(os.P_PID, copy, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # so that its number stays taken
            place = self._asked(folder / GO_ON, logs) if ended is None else self._behind(copy, ended, logs)
            if place:
                return place
            time.sleep(_POLL_S)

    def _become_copy(self, parent: int, folder: Path) -> None:
        die_with(parent)
        self.number, self._copies = os.getpid(), []
        os.getpid = lambda: parent
        for stream in (1, 2):  # so that the outputs of two processes do not mix
            if stat.S_ISREG(os.fstat(stream).st_mode):
                with io.FileIO(_said(folder, self.number, stream), "w+") as own:
                    os.dup2(own.fileno(), stream)

    @staticmethod
    def _asked(file: Path, logs: Sequence[str]) -> int:
        """Return the place of the trial to go on with if the copy takes too long in the one before, else 0."""
        try:
            log = _read(file)
        except OSError:
            return 0
        file.unlink()
        return logs.index(log) if log in logs and claim(log) else 0

    def _behind(self, copy: int, ended: os.waitid_result, logs: Sequence[str]) -> int:
        """Return the place of the trial after the one in which a copy has ended, or end this process like the copy."""
        status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        place = max(place for place, log in enumerate(logs) if os.path.exists(log))
        if status and status not in _OWN_ERRORS and place + 1 < len(logs):
            with io.FileIO(logs[place], "a") as log:
                log.write(msgspec.json.encode({"ended": status}) + b"\n")
            claim(logs[place + 1])
            return place + 1
        os.write(2, _read(_said(Path(logs[0]).parent, copy, 2)).encode())
        return self.end(status)

    def end(self, status: int) -> NoReturn:
        """Wait until the copies have ended, then end this process with an exit status, or by the signal `-status`."""
        for copy in self._copies:
            os.waitpid(copy, 0)
        if status < 0:
            os.kill(os.getpid(), -status)
        os._exit(status)


def _said(folder: Path, process: int, stream: int) -> Path:
    return folder / f"said-{process}-{stream}"


def _is_apart(number: int, folder: Path, code: Collection[str]) -> bool:
    """Return whether a descriptor belongs to a device, to a standard stream, to a file in a folder, or to a library
    whose code the process runs (libffi keeps its own open).
    """
    try:
        is_device, file = stat.S_ISCHR(os.fstat(number).st_mode), os.readlink(f"/proc/self/fd/{number}")
        return is_device or number in (1, 2) or file in code or Path(file).is_relative_to(folder)
    except OSError:  # the descriptor of the folder's list itself, which is closed by now
        return True


def _read(path: Path | str) -> str:
    with io.FileIO(path) as file:
        return file.readall().decode(errors="replace")
