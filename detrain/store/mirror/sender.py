"""The process that sends a checkpoint home to its mirror, at the lowest priority while the program trains.

It starts before the program: it takes the lease, brings the newest state back if the home is empty or behind, and
answers that it is ready. Then it looks for commits, and sends the home as it is after each, or, if the mirror is slow,
after the newest. If the mirror does not answer, the sender tries again, and training goes on. When the run is over,
however it ended, it sends the states that are not in the mirror yet.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from detrain.base import messages
from detrain.base.errors import DetrainError, HomeInUse, MirrorFailed
from detrain.store.mirror.lease import BEAT_S, Lease
from detrain.store.mirror.link import DONE, READY, REFUSED, Order
from detrain.store.mirror.remote import Remote, within
from detrain.store.mirror.restore import Sent, bring_back, is_as_new, read_sent, write_sent
from detrain.store.mirror.states import (
    PART_BYTES,
    Gatherer,
    NotWhole,
    common_checkpoint,
    get_state,
    newest_state,
    part_names,
    put_state,
    size_of,
    state_names,
)

_LOOK_S: Final = 0.3
_LONGEST_DELAY_S: Final = 60.0
_LONGEST_LEFT_S: Final = 600.0
"""How long, after the end of a run, a silent mirror is tried again; a last try may end five minutes later."""
_LEAST_PART_BYTES: Final = 64 << 10
"""The smallest size of parts under a limit of bandwidth; otherwise a part has as many bytes as may go in a second."""
_SAID_S: Final = 5.0
_KEPT: Final = 2
"""The number of newest states that stay in the mirror."""


def main(order: Order, link: socket.socket) -> None:
    """Send a home to its mirror until the run is over."""
    if order.world > 1:
        messages.be_rank(order.rank)
    try:
        sender = _Sender(order, link, Path.cwd())
    except (ProcessLookupError, FileNotFoundError):  # the run has been killed, and its folder removed
        return
    try:
        sender.begin()
        answer = READY
    except DetrainError as error:
        answer = REFUSED + msgspec.json.encode((type(error).__name__, error.what, error.todo))
    with contextlib.suppress(OSError):  # the run has been killed meanwhile
        link.sendall(answer)
    if answer == READY:
        with contextlib.suppress(OSError):
            os.nice(19)  # from now on nobody waits for it
        sender.run()


def _tell(say: Callable[[str], None], text: str) -> None:
    """Print a text if it can still be printed: the terminal of the run may be gone."""
    with contextlib.suppress(OSError, ValueError):
        within(_SAID_S, lambda: say(text))


class _Sender:
    def __init__(self, order: Order, link: socket.socket, folder: Path) -> None:
        """Open the order's home and mirror. `folder`: the one in which the program runs."""
        self._order, self._link, self._folder = order, link, folder
        self._home = Path(order.home)
        self._remote = Remote(order.url, order.place)
        part_bytes = min(PART_BYTES, max(order.bandwidth or PART_BYTES, _LEAST_PART_BYTES))
        self._gatherer = Gatherer(self._home, order.program, order.patterns, folder, part_bytes)
        self._free_at = 0.0
        """The time from which the bandwidth allows the next part."""
        self._lease: Lease | None = None
        self._there: set[str] = set()
        """The names of the parts that are known to be in the mirror."""
        self._sent = Sent(url=order.url, pid=os.getpid())
        self._lost = threading.Event()
        """Set when another process has taken the mirror over."""
        self._over, self._over_since = threading.Event(), 0.0
        """Set when the run is over: it has said so, or its process has ended."""
        self._process = os.pidfd_open(order.run_pid)

    def begin(self) -> None:
        """Take the mirror's lease, and bring a newer state back. Raises MirrorFailed, HomeInUse, UsageError."""
        try:
            self._take()
        except MirrorFailed as error:
            if not self._order.may_come_later:
                raise MirrorFailed(
                    error.what, error.todo or "see to its address, keys and network; --mirror-later trains without it until then"
                ) from error
            _tell(messages.warn, f"{error.what}; training goes on, and it is tried again")
            self._note(error=error.what)

    def _take(self) -> None:
        self._lease = Lease(self._remote, self._order.run_pid)
        try:
            if not self._order.is_fresh:
                self._bring_back()
        except BaseException:
            with contextlib.suppress(MirrorFailed):
                self._lease.give_back()
            self._lease = None
            raise
        threading.Thread(target=self._beat, daemon=True).start()

    def _bring_back(self) -> None:
        if self._is_begun:
            self._require_ahead()
            return
        order, common = self._order, None
        if order.world > 1:
            common = common_checkpoint(order.url, order.program, order.world)
            if not common and state_names(self._remote):
                _tell(
                    messages.warn, f"the mirror {order.url!r} has no checkpoint of all {order.world} ranks yet: nothing comes back"
                )
        state = bring_back(self._remote, self._home, order.program, self._folder, common, is_holder=True)
        if state is not None:
            made = f"of {state.made}, by {state.host}"
            _tell(messages.say, f"{state.checkpoint} is back from the mirror ({state.size / 1e6:.1f} MB, {made})")
        known = read_sent(self._home, self._order.program)
        if known is not None and known.url == self._order.url:
            self._sent = msgspec.structs.replace(known, waiting="", error="", pid=os.getpid())

    def _require_ahead(self) -> None:
        """Check a mirror that first answers after the program began. Raises HomeInUse if it has a state from which this
        run did not go on: that state would be lost.
        """
        newest = newest_state(self._remote)
        if newest is not None and not is_as_new(self._home, newest, self._order.url):
            raise HomeInUse(
                f"the mirror {self._order.url!r} has {newest.checkpoint}, from which this run has not gone on: nothing is sent to "
                "it; start again to go on from there, or with --fresh to leave it"
            )

    _is_begun = False
    """True once the program may have begun: from then on the sender restores no files in its home."""

    def _beat(self) -> None:
        """Update the lease again and again, until another process has taken it."""
        while not self._lost.wait(BEAT_S):
            with contextlib.suppress(MirrorFailed):
                if self._lease is not None and not self._lease.renew():
                    self._lost.set()

    def run(self) -> None:
        """Send committed checkpoints, until the run is over and all are sent."""
        self._is_begun = True
        threading.Thread(target=self._await_end, daemon=True).start()
        last: tuple[int, str] | None = None
        is_whole = True
        while is_whole:
            is_last = self._is_over(_LOOK_S)
            now = self._gatherer.committed()
            if (now is not None and now != last) or (is_last and now is not None):
                is_whole, last = self._until_done(self._send_state), now
            if is_last and (self._gatherer.committed() == now or self._has_waited_long()):
                break
        if self._lease is not None:
            with contextlib.suppress(MirrorFailed):
                self._lease.give_back()
        if is_whole:
            with contextlib.suppress(OSError):
                self._link.sendall(DONE)

    def _until_done(self, act: Callable[[], None]) -> bool:
        """Repeat an action until the mirror accepts it; return True if it did."""
        delay = 1.0
        while True:
            try:
                if self._lease is None:
                    self._take()
                if self._lost.is_set():
                    raise HomeInUse(f"another run has taken the mirror {self._order.url!r} over; nothing is sent to it any more")
                act()
            except MirrorFailed as error:
                if self._sent.error == "":
                    _tell(messages.warn, f"{error.what}; it is tried again, and training goes on")
                self._note(error=error.what)
            except HomeInUse as error:
                _tell(messages.warn, error.what)
                self._note(error=error.what)
                return False
            else:
                return True
            if self._has_waited_long():
                _tell(messages.warn, f"the mirror is behind: {self._sent.waiting or 'the last checkpoint'} is not there")
                return False
            self._is_over(delay)
            delay = min(2 * delay, _LONGEST_DELAY_S)

    def _await_end(self) -> None:
        select.select([self._link.fileno(), self._process], [], [])
        self._over_since = time.monotonic()
        self._over.set()

    def _has_waited_long(self) -> bool:
        return self._over.is_set() and time.monotonic() - self._over_since > _LONGEST_LEFT_S

    def _is_over(self, wait_s: float) -> bool:
        """Wait a moment, and return whether the run is over."""
        if self._over.is_set():
            time.sleep(min(wait_s, 1.0))
            return True
        return self._over.wait(wait_s)

    def _send_state(self) -> None:
        assert self._lease is not None
        if (newest := self._gatherer.committed()) is not None:
            self._note(waiting=newest[1])
        if self._sent.error:  # the mirror may be full of parts that were sent in vain
            self._clear()
        number = self._sent.number + 1 if self._sent.term == self._lease.term else 0
        # The parts are listed anew now and after the last one: a store may lose parts, or a user may delete them.
        self._there = self._parts_there()
        state = self._gatherer.state(self._lease.term, number, self._there, self._send)
        if state is None:
            return
        if lost := len(state.parts - self._parts_there()):
            raise MirrorFailed(f"the mirror {self._order.url!r} has lost {lost} parts of what was sent")
        put_state(self._remote, state)
        self._sent = Sent(url=self._order.url, term=state.term, number=number, checkpoint=state.checkpoint)
        self._note(pid=os.getpid())
        self._clear()

    def _parts_there(self) -> set[str]:
        return {part for part, size in part_names(self._remote).items() if size == size_of(part)}

    def _send(self, part: str, content: bytes) -> None:
        if part in self._there:
            return
        time.sleep(max(0.0, self._free_at - time.monotonic()))
        if self._order.bandwidth is not None:
            self._free_at = time.monotonic() + len(content) / self._order.bandwidth
        self._remote.put(part, content)
        self._there.add(part)

    def _clear(self) -> None:
        """Remove older states, and parts that no state needs."""
        names = state_names(self._remote)
        kept = names[-_KEPT:]
        if len(kept) == len(names) and not self._sent.error:
            return
        if self._lease is None or not self._lease.renew():  # else parts that another has begun to send would be removed
            self._lost.set()
            return
        if self._order.world > 1 and (common := common_checkpoint(self._order.url, self._order.program, self._order.world)):
            with_it = [name for name in names if common in self._checkpoints(name)]
            kept = sorted({*kept, *with_it[-1:]})
        needed: set[str] = set()
        for name in kept:
            with contextlib.suppress(NotWhole):
                needed |= get_state(self._remote, name).parts
        for name in set(names) - set(kept):
            self._remote.remove(name)
        for part in part_names(self._remote).keys() - needed:
            self._remote.remove(part)

    def _checkpoints(self, name: str) -> set[str]:
        try:
            return get_state(self._remote, name).checkpoints
        except NotWhole:
            return set()

    def _note(self, **changes: object) -> None:
        self._sent = msgspec.structs.replace(self._sent, **changes)
        with contextlib.suppress(OSError):
            write_sent(self._home, self._order.program, self._sent)


if __name__ == "__main__":
    logging.disable()  # a store's library logs before it raises: the lines would stand in the program's output
    main(msgspec.json.decode(sys.argv[1], type=Order), socket.socket(fileno=int(sys.argv[2])))
    os._exit(0)  # also if threads still wait for an answer
