"""What a run and the process that sends its home to a mirror say to each other, through a socket."""

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
"""Process, number of the socket, and how many seconds the end of the run waits."""
READY: Final = b"+"
REFUSED: Final = b"-"
"""In front of the kind of an error, what it says, and what to do, as JSON."""
FINISH: Final = b"f"
"""What the run says at its end."""
DONE: Final = b"d"
"""The answer, when all has been sent."""
_SAID_AFTER_S: Final = 2.0
_ERRORS: Final = {cls.__name__: cls for cls in (HomeInUse, MirrorFailed, UsageError)}


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What is sent where."""

    url: str
    home: str
    program: str
    patterns: tuple[str, ...]
    run_pid: int
    is_fresh: bool
    rank: int = 0
    world: int = 1
    """Of a job, how many ranks it has."""
    may_come_later: bool
    """Begin although the mirror does not answer."""
    bandwidth: int | None = None
    """In bytes a second; None: as fast as it goes."""

    @property
    def place(self) -> str:
        """The folder in the mirror."""
        return f"{self.program}/rank-{self.rank}" if self.world > 1 else self.program


def error_of(answer: bytes) -> DetrainError:
    """Return the error that an answer to the launcher says."""
    kind, what, todo = msgspec.json.decode(answer.removeprefix(REFUSED), type=tuple[str, str, str])
    return _ERRORS.get(kind, MirrorFailed)(what, todo)


def begin(order: Order, wait_s: float) -> None:
    """Start the process that sends, and wait until the home is as new as its mirror.

    It is no child of this process, which the program will be. One that is there already, as this process was the
    program's before (it starts itself again), goes on. Raises what the sender says: HomeInUse, MirrorFailed,
    UsageError.
    """
    if os.environ.get(VARIABLE, "").partition(":")[0] == str(os.getpid()):
        return
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
    """The run is over: wait until its last checkpoint is in the mirror, but not longer than is asked for."""
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
