"""The messages between a run and the process that sends its home to a mirror, through a socket."""

from __future__ import annotations

import os
import select
import socket
import time
from typing import Final

import msgspec

from detrain.base import messages
from detrain.base.child_processes import start_apart
from detrain.base.errors import DetrainError, HomeInUse, MirrorFailed, UsageError

VARIABLE: Final = "DETRAIN_MIRROR"
"""Environment variable: the run's process id, the socket's descriptor, and the longest wait at the end, in seconds."""
READY: Final = b"+"
REFUSED: Final = b"-"
"""Comes before an error as JSON: its kind, its text, and what to do."""
FINISH: Final = b"f"
"""The run's message at its end."""
DONE: Final = b"d"
"""The answer to it, when all has been sent."""
_SAID_AFTER_S: Final = 2.0
_ERRORS: Final = {cls.__name__: cls for cls in (HomeInUse, MirrorFailed, UsageError)}


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """The task of a sending process: a home, files of the program, and the mirror for them."""

    url: str
    home: str
    program: str
    patterns: tuple[str, ...]
    run_pid: int
    is_fresh: bool
    rank: int = 0
    world: int = 1
    """The number of ranks of the job; 1 for a single process."""
    may_come_later: bool
    """True if the run may begin although the mirror does not answer."""
    bandwidth: int | None = None
    """The most bytes to send a second; None: no limit."""

    @property
    def place(self) -> str:
        """The folder in the mirror."""
        return f"{self.program}/rank-{self.rank}" if self.world > 1 else self.program


def error_of(answer: bytes) -> DetrainError:
    """Return the error in a refusing answer to the launcher."""
    kind, what, todo = msgspec.json.decode(answer.removeprefix(REFUSED), type=tuple[str, str, str])
    return _ERRORS.get(kind, MirrorFailed)(what, todo)


def begin(order: Order, wait_s: float) -> None:
    """Start the sending process, and wait until the home is as new as its mirror.

    The sender is no child of this process, which will become the program. If the program has started this process again
    in its own place, the sender from before goes on. Raises the error that the sender answers: HomeInUse, MirrorFailed
    or UsageError.
    """
    if os.environ.get(VARIABLE, "").partition(":")[0] == str(os.getpid()):
        return
    if not hasattr(os, "pidfd_open"):
        raise UsageError("--mirror needs Linux: the process that sends watches the run by a pidfd", "copy the home by other means")
    mine, its = socket.socketpair()
    number = its.fileno()
    start_apart("detrain.store.mirror.sender", msgspec.json.encode(order).decode(), str(number), keeping=[number])
    its.close()
    answer = _answer(mine)
    if answer != READY:
        raise error_of(answer) if answer else MirrorFailed(f"the process that sends to {order.url!r} has ended", "see above")
    mine.set_inheritable(True)
    os.environ[VARIABLE] = f"{os.getpid()}:{mine.detach()}:{wait_s}"


def _answer(link: socket.socket) -> bytes:
    found = b""
    while True:
        link.settimeout(None if not found else 0.2)
        try:
            more = link.recv(1 << 16)
        except TimeoutError:
            return found
        if not more or found + more == READY:
            return found + more
        found += more


def finish() -> None:
    """Wait, at the end of the run, until its last checkpoint is in the mirror, at most for the time set in `begin`."""
    pid, _, rest = os.environ.get(VARIABLE, "").partition(":")
    if pid != str(os.getpid()):
        return
    del os.environ[VARIABLE]
    number, _, wait_s = rest.partition(":")
    with socket.socket(fileno=int(number)) as link:
        started, is_said = time.monotonic(), False
        try:
            link.sendall(FINISH, socket.MSG_NOSIGNAL)
            while (left := float(wait_s) - (time.monotonic() - started)) > 0:
                if select.select([link], [], [], min(left, _SAID_AFTER_S))[0]:
                    if link.recv(len(DONE)) == DONE:
                        return
                    break
                if not is_said:
                    messages.say(f"the last checkpoint is on its way to the mirror; waiting for {float(wait_s):g} s at most")
                    is_said = True
        except OSError:
            pass
    messages.warn("the last checkpoint is not in the mirror yet, as far as is known: see `detrain status`")
