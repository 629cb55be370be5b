"""The launcher: the process that has started the ranks of this machine. A rank ends when its launcher does: without it
nobody ends the ranks or starts them again, and they might wait forever.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import select
from collections.abc import Callable
from typing import Final

import msgspec

from detrain.base.config import Ranks
from detrain.runtime.ranks.processes import Process, process_of, rests, this_node

_VARIABLE: Final = "DETRAIN_LAUNCHER"
_OF_TORCHRUN: Final = "TORCHELASTIC_RUN_ID"


def be_launcher() -> None:
    """Tell the ranks started from here that this process is their launcher, even if another program replaces it."""
    _name(os.getpid())


def _name(pid: int) -> None:
    with contextlib.suppress(OSError):  # no Linux, or the process is outside of this container
        os.environ[_VARIABLE] = msgspec.json.encode((this_node(), process_of(pid))).decode()


def end_with_launcher() -> None:
    """Have this rank end with its launcher, at once if that is gone already. Only `detrain launch` and torchrun count
    as launchers. The waiting thread is not one of Python's `threading`: the program sees as many as without it.
    """
    if _VARIABLE not in os.environ and _OF_TORCHRUN in os.environ:
        _name(os.getppid())
    if _VARIABLE in os.environ:
        node, launcher = msgspec.json.decode(os.environ[_VARIABLE], type=tuple[str, Process])
        if node == this_node():
            _thread.start_new_thread(_await, (launcher,))


def _await(launcher: Process) -> None:
    with contextlib.suppress(OSError):  # the launcher is gone
        descriptor = os.pidfd_open(launcher.pid)
        if rests(launcher) != "is gone":
            select.select([descriptor], [], [])
    end_by[-1](f"its launcher (process {launcher.pid}) has ended")


def _leave(why: str) -> None:
    from detrain.runtime.ranks.watcher import Ending, leave

    ranks = Ranks.of_environment() or Ranks(0, 1)
    leave(Ending(None, f"rank {ranks.rank}: {why}", speaks=not ranks.local_rank, is_own=False))


end_by: Final[list[Callable[[str], object]]] = [_leave]
"""Functions that end this rank for a given reason, called in a thread: only the last one counts."""
