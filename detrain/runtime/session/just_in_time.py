"""Just-in-time checkpoints of one rank: at some cuts its state is held in memory, its own part so that it outlives it.

A step of `runtime/ranks` is here the stretch from one held cut to the next: the rank publishes its state (`c`), then
all ranks wait for each other (`d`), then the cut counts. So the ranks are never more than one such cut apart, and each
holds the shared state of the last two: tensors of optimizers by copies that are made when they are written. A save
reads no data that the program's thread could be changing. While they wait, the ranks agree on the next cut
(docs/decisions/0054).

States are held so seldom that all the work for it takes a thousandth of the time. To hold a state takes time, and a
failure loses all steps since the last held state. If a hold costs C and a failure comes each M seconds, the least time
is lost by a hold each sqrt(2 C M) seconds (Young 1974): with C = 10 ms each 42 s for a failure a day, each 8 s for one
an hour. Holds may take 0.7 thousandths of the time: that is each 14 s then. The rest goes to the work at each batch and
to the watching thread: 0.06 ms in 200 ms.
"""

from __future__ import annotations

import io
import math
import os
import shutil
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from detrain.base import messages
from detrain.base.byte_digests import digest_bytes
from detrain.base.config import Config, Ranks
from detrain.base.errors import DetrainError, StoreError
from detrain.base.free_memory import free_bytes
from detrain.runtime.ranks.gate import Late
from detrain.runtime.ranks.machine import Timing
from detrain.runtime.ranks.rendezvous import FolderStore, host_towards
from detrain.runtime.ranks.room import RankMember, Setup
from detrain.runtime.state.split_snapshot import Split, split
from detrain.store import Snapshot
from detrain.store.job_home import EVERY, JUST_IN_TIME
from detrain.store.node_folder import NodeFolder, memory

_ECHO_S: Final = 3.0
"""The others learn of a rank's death within this time."""
_APART_S: Final = 300.0
"""Ranks wait this long for each other before a state is held. One that trains on fewer batches never comes."""
_TIMING: Final = Timing(beat_s=2.0, silence_s=60.0)
"""A rank's death ends its connections, and the others see that at once. Mere silence means that a machine is gone, or
that a call of C code lets no other thread run: so wait long rather than be wrong."""
_NEVER: Final = 1 << 60
_FIRST, _LATER = "first batch", "batch"
"""Kinds of stretches: before an epoch's first batch, a rank may have to wait for one that validates."""
_COPIES: Final = 16
"""The memory for a rank's own state, in multiples of its size: its slots, with spare room in each."""
_CHECKED: Final = 4
"""At the first so many holds the rank checks that there is memory for them."""
_NOTHING: Final = Split(b"", {})
"""The state that is published at a cut from which no run could go on."""

SHARE: Final = 0.7e-3
_COPIED_BYTES_S: Final = 2e9
"""Speed at which held tensors are copied when they are written: 12 MB took 5 ms."""
NEEDED: Final = 3
"""Number of batches before the first hold: they show how long a batch takes."""


class JustInTime:
    """A rank's just-in-time checkpoints. It is made when the first training loop is entered."""

    def __init__(self, config: Config, replicas: Callable[[], Mapping[int, str]]) -> None:
        """Meet the other ranks. Raises RanksApart."""
        assert config.ranks is not None
        self._replicas, self._on_this_machine = replicas, config.ranks.local_world or config.ranks.world
        self._every, self._is_asked_for = config.jit_every or 0, config.jit
        self._cuts, self._next, self._is_over = 0, -1, False
        self._rate = Rate()
        self._held: dict[int, Split] = {}
        job = Path(config.home).parent
        # One folder for each home: the next job clears away the files that a killed one has left there.
        self._rank, self._local = config.ranks.rank, NodeFolder(memory(), digest_bytes(str(job.resolve()).encode())[:16])
        self._folder, self._told = job / JUST_IN_TIME, 0
        self._folder.mkdir(exist_ok=True)
        setup = Setup(
            config.ranks.rank,
            config.ranks.world,
            self._folder,
            self._local.path,
            f"{config.program} run {config.run}",
            host=_host(config.ranks),
            timing=_TIMING,
            hang_floor_s=config.jit_hang,
            hears_sigterm=config.on_sigterm == "checkpoint",
            key=f"ranks-{config.ranks.job}",
        )
        self._ranks = RankMember(setup, FolderStore(self._folder), self)

    def at_cut(self, done: int, take: Callable[[], Snapshot | None], *, is_first: bool) -> None:
        """Hold the state if it is due, as a batch is about to be loaded; return when all ranks are here then, unless
        the job is ending.

        `done`: number of batches done. `is_first`: the batch is its epoch's first. `take` returns None if no run could
        go on from this cut.
        """
        if self._is_over:
            return
        began = time.monotonic()
        self._rate.end_batch(began)
        kind = _FIRST if is_first else _LATER
        if self._next < 0:
            self._next = done + NEEDED
        if done % self._every == 0 if self._every else done >= self._next:
            self._hold(done, take, kind, began)
        else:
            self._ranks.mark(kind)
        self._rate.begin_batch(time.monotonic())

    def passes(self, done: int) -> bool:
        """Return whether no state is due before a batch, which is not its loop's first: then there is no more to do.
        Return False if `at_cut` must be called.
        """
        if self._is_over:
            return True
        if done % self._every == 0 if self._every else done >= self._next:
            return False
        now = time.monotonic()
        self._rate.turn(now)
        self._ranks.pace.mark(_LATER, now)
        return True

    def _hold(self, done: int, take: Callable[[], Snapshot | None], kind: str, began: float) -> None:
        try:
            snapshot = take()
            state = _NOTHING if snapshot is None else split(snapshot, self._replicas())
            why = self._why_not(state)
            self._held = {number: each for number, each in self._held.items() if number == self._cuts - 1} | {self._cuts: state}
            self._publish(state, kind)
        except DetrainError as error:
            if self._is_asked_for:
                raise
            why = error.what
        self._cuts += 1
        if state_is_held := not why and snapshot is not None:
            self._rate.held(time.monotonic() - began, sum(each.nbytes for each in state.shared.values()))
        wish = self._rate.wish if state_is_held else 1
        try:
            # The ranks agree when the next hold is due, or that there is none: the greatest number counts.
            agreed = self._ranks.gate(b"", _NEVER if why else wish, _APART_S)
        except Late:
            self.give_up()
            messages.warn(
                f"the other ranks have not come to this batch within {_APART_S:.0f} s: from here on no state is held just in time"
            )
            return
        self._ranks.stepped()
        self._tell_status(agreed)
        self._next = done + agreed
        if agreed >= _NEVER:
            self.finish()
            self._held.clear()
            shutil.rmtree(self._folder, ignore_errors=True)
            if why:
                messages.say(f"no just-in-time checkpoints: {why}; --jit takes them")

    def _tell_status(self, agreed: int) -> None:
        """Write the number of batches between holds to a file, for `detrain status`."""
        every = self._every or agreed
        if self._rank == 0 and every != self._told:
            self._told = every
            with suppress(OSError), io.FileIO(self._folder / EVERY, "w") as file:  # `open` is for the program's own
                file.write(str(every).encode())

    def _why_not(self, state: Split) -> str:
        """Return the reason why no state is held if the user did not ask for it; empty if one is held."""
        if self._is_asked_for or state is _NOTHING:
            return ""
        if not self._replicas():
            return "no weights are found that DistributedDataParallel keeps alike on all ranks, on CPUs"
        size = 2 * sum(each.nbytes for each in state.shared.values()) + _COPIES * len(state.own)
        needed, free = size * self._on_this_machine, free_bytes()
        if self._cuts < _CHECKED and needed > free / 2:
            return f"the ranks of this machine would need {needed / 1e9:.1f} GB for them, and {free / 1e9:.1f} GB are free"
        return ""

    def _publish(self, state: Split, kind: str) -> None:
        try:
            self._ranks.cut(state.own, kind)
        except OSError as error:
            raise StoreError(
                f"the state of rank {self._rank} ({len(state.own)} bytes, several times) does not fit into "
                f"{str(self._local.path)!r}: {error.strerror or error}",
                "make that larger (of a container: --shm-size), or run the job with --no-jit",
            ) from error

    def give_up(self) -> bool:
        """Hold no further state; the last that all ranks have held still counts. Return False if that was so before."""
        if self._is_over:
            return False
        self._is_over = True
        self._ranks.give_up()
        return True

    @property
    def is_ending(self) -> bool:
        """Whether a rank has died, and the others save."""
        return self._ranks.is_frozen

    def mark(self, kind: str) -> None:
        """Note that a stretch of this kind begins: it may take longer than a batch."""
        if not self._is_over:
            self._ranks.mark(kind)

    def fails(self, error: BaseException, show: Callable[[], None]) -> None:
        """Have the ranks save, and end the process, as the program has raised. `show` prints its own error, no echo."""
        if self._is_over and not self._ranks.is_live:
            return
        self.rest_if_echo(error)
        show()
        self._ranks.failed(f"{type(error).__name__}: {error}"[:200], may_be_echo=False)

    def rest_if_echo(self, error: BaseException) -> None:
        """Do not return if another rank's death has caused an error."""
        if not (isinstance(error, RuntimeError) and any(word in str(error) for word in _OF_PEERS) and self._ranks.is_live):
            return
        until = time.monotonic() + _ECHO_S
        while time.monotonic() < until:
            if self._ranks.is_frozen:
                self._ranks.failed(str(error)[:200], may_be_echo=True)
            time.sleep(0.005)

    def finish(self) -> None:
        """End this rank's part, as the program has ended or no state is held any more."""
        self._is_over = True
        if not self._ranks.is_live:
            return
        self._ranks.finish()
        self._local.delete()

    # For the watcher: see `detrain.runtime.ranks.watcher.BigState`.

    def fingerprint(self) -> bytes:
        """Return a digest of the shared arrays at the last cut that all ranks have passed."""
        held = self._held.get(self._ranks.steps - 1, _NOTHING)
        return held.fingerprint() if held.own else b""

    def save(self, folder: Path) -> None:
        """Write the shared arrays of the last two cuts: the ranks decide for one of them."""
        (folder / "cuts").write_text(" ".join(map(str, self._held)))
        for number, state in list(self._held.items()):
            state.write(folder / f"cut-{number}")

    def extra(self) -> bytes:
        """Return no bytes: the order of the buckets is in each rank's own part."""
        return b""


_OF_PEERS: Final = ("gloo", "Connection closed by peer", "Connection reset by peer", "NCCL", "Socket", "Timed out")
"""Words in the errors that a collective raises when a peer is gone."""


def _host(ranks: Ranks) -> str:
    """Return the address at which the other ranks reach this node."""
    if ranks.is_on_one_machine:
        return "127.0.0.1"
    return host_towards(os.environ["MASTER_ADDR"], int(os.environ.get("MASTER_PORT", "29500")))


class Rate:
    """Measures batches and holds, and computes after how many batches the next hold is due.

    All times are in seconds of one clock. The time of a batch includes no hold.
    """

    def __init__(self) -> None:
        self._batches: deque[float] = deque(maxlen=32)
        self._holds: deque[float] = deque(maxlen=3)
        self._began: float | None = None

    def turn(self, now: float) -> None:
        """Note that a batch has ended and the next one begins."""
        if self._began is not None:
            self._batches.append(now - self._began)
        self._began = now

    def begin_batch(self, now: float) -> None:
        """Note that a batch begins."""
        self._began = now

    def end_batch(self, now: float) -> None:
        """Note that the batch has ended, if one had begun."""
        if self._began is not None:
            self._batches.append(now - self._began)
        self._began = None

    def held(self, took_s: float, size_bytes: int) -> None:
        """Note that a hold took `took_s` seconds, and that tensors of `size_bytes` are copied when they are written."""
        self._holds.append(took_s + size_bytes / _COPIED_BYTES_S)

    @property
    def wish(self) -> int:
        """The number of batches until the next hold. The quickest of the last holds counts, as the others had to wait
        for the processor.
        """
        if not self._batches or not self._holds:
            return 1
        return max(1, math.ceil(min(self._holds) / (SHARE * max(statistics.median(self._batches), 1e-6))))
