"""A process that waits where trials begin, while a copy of it does them. Where the copy ends in a trial, or is to be
left there, another copy goes on with the next one.

A copy is a fork, and to the bit the process that it stands for: no hook runs by which Python or detrain gives a child
of the program other random numbers, and it finds that process's number. There is one only where that holds: of a
process with one thread, which shares no memory, and has no file open that both would move on.
"""

from __future__ import annotations

import ctypes
import io
import os
import stat
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

import msgspec

from detrain.base import messages
from detrain.base.child_processes import die_with
from detrain.python.process import children

GO_ON: Final = "go-on"
"""The file that tells the waiting process to go on: the log of the trial to begin with."""
_POLL_S: Final = 0.005
_OWN_ERRORS: Final = range(64, 100)
"""Exit statuses of detrain's errors, which are no trial's doing."""


def claim(log: str) -> bool:
    """Return whether a trial is this process's to do: nobody has its log yet."""
    try:
        io.FileIO(log, "x").close()  # not `open`, by which the program's own files are followed
    except FileExistsError:
        return False
    return True


class Reserve:
    """A process and its copies."""

    def __init__(self) -> None:
        self._copies: list[int] = []
        self.number = 0
        """The number by which the system knows this process, if it is a copy."""
        children.exempt(lambda: set(self._copies))

    def can_copy(self, folder: Path) -> bool:
        """Return whether this process can have a copy: it is none, and shares nothing but what lies in a folder."""
        if self.number or not sys.platform.startswith("linux") or len(os.listdir("/proc/self/task")) > 1:
            return False
        modes = [line.split()[1] for line in _read("/proc/self/maps").splitlines()]
        is_sharing = any("w" in mode and "s" in mode for mode in modes)
        return not is_sharing and all(_is_apart(number, folder.resolve()) for number in map(int, os.listdir("/proc/self/fd")))

    def wait(self, logs: Sequence[str]) -> int:
        """Have a copy do the trials of these logs, the first of which is there. Returns 0 in the copy; here, once the
        copy has ended in a trial or is to be left there, the place of the trial to go on with. Where the copy ends
        otherwise, this process ends as it did.
        """
        messages.flush_output()
        folder, parent = Path(logs[0]).parent, os.getpid()
        copy = ctypes.PyDLL(None).fork()  # not os.fork, which has random numbers drawn anew
        if copy <= 0:
            if not copy:
                self._become_copy(parent, folder)
            return 0
        self._copies.append(copy)
        while True:
            ended = os.waitid(os.P_PID, copy, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # its number stays taken
            place = self._asked(folder / GO_ON, logs) if ended is None else self._behind(copy, ended, logs)
            if place:
                return place
            time.sleep(_POLL_S)

    def _become_copy(self, parent: int, folder: Path) -> None:
        die_with(parent)
        self.number, self._copies = os.getpid(), []
        os.getpid = lambda: parent
        for stream in (1, 2):  # what two of them say is not to be mixed
            if stat.S_ISREG(os.fstat(stream).st_mode):
                with io.FileIO(_said(folder, self.number, stream), "w+") as own:
                    os.dup2(own.fileno(), stream)

    @staticmethod
    def _asked(file: Path, logs: Sequence[str]) -> int:
        """Return the place of the trial to go on with, if the copy is to be left in the one before."""
        try:
            log = _read(file)
        except OSError:
            return 0
        file.unlink()
        return logs.index(log) if log in logs and claim(log) else 0

    def _behind(self, copy: int, ended: os.waitid_result, logs: Sequence[str]) -> int:
        """Return the place of the trial behind the one in which a copy has ended."""
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
        """End this process, behind its copies."""
        for copy in self._copies:
            os.waitpid(copy, 0)
        if status < 0:
            os.kill(os.getpid(), -status)
        os._exit(status)


def _said(folder: Path, process: int, stream: int) -> Path:
    return folder / f"said-{process}-{stream}"


def _is_apart(number: int, folder: Path) -> bool:
    """Return whether a descriptor is one of a device, of a standard stream, or of a file in a folder."""
    try:
        is_device = stat.S_ISCHR(os.fstat(number).st_mode)
        return is_device or number in (1, 2) or Path(os.readlink(f"/proc/self/fd/{number}")).is_relative_to(folder)
    except OSError:  # that of the list itself, which is closed by now
        return True


def _read(path: Path | str) -> str:
    with io.FileIO(path) as file:
        return file.readall().decode(errors="replace")
