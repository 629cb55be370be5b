"""The calls for the program's own thread, and the setup of a rank: the seam to a framework's side."""

from __future__ import annotations

import os
import shutil
import socket
import threading
import time
import weakref
from pathlib import Path
from typing import Final, NoReturn

import msgspec

from detrain.base.errors import RanksApart
from detrain.runtime.ranks import launched
from detrain.runtime.ranks import watcher as watching
from detrain.runtime.ranks.gate import Gate, Late
from detrain.runtime.ranks.hang import Pace
from detrain.runtime.ranks.machine import Finish, Machine, Timing, Trouble, neighbours
from detrain.runtime.ranks.mesh import join
from detrain.runtime.ranks.processes import SigtermPipe, this_node, this_process
from detrain.runtime.ranks.program import ProgramThread
from detrain.runtime.ranks.rendezvous import Peer, Store
from detrain.runtime.ranks.slots import HeldSlots, OwnSlots, buddy_of
from detrain.runtime.ranks.vote import StatePoint
from detrain.runtime.ranks.watcher import BigState, Leave, RankFiles, Watcher
from detrain.runtime.ranks.wire import Ready, Small


class Setup(msgspec.Struct, frozen=True):
    """The settings of one rank of a job."""

    rank: int
    world: int
    home: Path
    """Folder for the checkpoints, on a file system of all ranks."""
    local: Path
    """This job's folder on a file system of this node, such as /dev/shm; emptied at the start."""
    job: str
    """The name of program, arguments and environment: checkpoints of other jobs are passed over."""
    host: str = "127.0.0.1"
    """The address at which the other ranks reach this node."""
    node: str = msgspec.field(default_factory=this_node)
    timing: Timing = msgspec.field(default_factory=Timing)
    hang_floor_s: float = 1.0
    hears_sigterm: bool = True
    """Whether SIGTERM makes all ranks save and end; only if the rank is made in the main thread."""
    join_s: float = 300.0
    key: str = "detrain/ranks"
    """The key of the store under which the ranks meet."""


_live: Final[weakref.WeakSet[RankMember]] = weakref.WeakSet()


class RankMember:
    """One rank of a job, from the meeting with the others to `finish`. All methods are for the program's own thread."""

    def __init__(
        self, setup: Setup, store: Store, source: BigState, *, steps: int = 0, cuts: int = 0, leave: Leave = watching.leave
    ) -> None:
        """Meet the other ranks. `steps`, `cuts`: how many the program has done before. Raises RanksApart, OSError."""
        rank, world, self._setup = setup.rank, setup.world, setup
        family = socket.getaddrinfo(setup.host, None, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((setup.host, 0), family=family, backlog=max(128, world))
        me = Peer(rank, world, setup.host, listener.getsockname()[1], setup.node, this_process())
        self._mesh = mesh = join(me, listener, store, setup.key, setup.join_s)
        nodes = mesh.table.nodes()
        buddies = {each: buddy_of(each, nodes) for each in range(world)}
        self._buddy = buddies[rank]
        owners = [each for each, buddy in buddies.items() if buddy == rank]
        local = _own_folder(setup.local, mesh.table.incarnation.hex())
        self._gate = Gate(local, rank, nodes, lambda to, *what: mesh.send(to, Ready(*what)))
        held = HeldSlots(owners)
        self._gate.hold(held.entered())
        self._slots = OwnSlots(local, rank, mesh.table.incarnation)
        self._program = ProgramThread(steps, cuts)
        self.pace = Pace(setup.hang_floor_s)
        """Times the stretches of this rank's program."""
        near = neighbours(rank, world)
        always = near | self._gate.partners() | {*owners} | ({self._buddy} - {None})
        mesh.connect((each for each in always if each is not None and each != rank), setup.join_s)
        is_main = threading.current_thread() is threading.main_thread()
        self._sigterm = SigtermPipe() if setup.hears_sigterm and is_main else None
        machine = Machine(rank, world, near, setup.timing)
        place = RankFiles(setup.home, local, setup.job)
        self._watcher = Watcher(machine, mesh, self._gate, held, self._program, self.pace, source, place, self._sigterm, leave)
        _live.add(self)
        self._watcher.start()
        launched.end_by.append(lambda why: self._watcher.tell(Trouble(why)))

    @property
    def is_frozen(self) -> bool:
        """Whether the job is ending: a peer's death may cause errors that the program sees from now on."""
        return self._program.is_frozen

    @property
    def is_live(self) -> bool:
        """Whether `finish` has not been called."""
        return self in _live

    @property
    def steps(self) -> int:
        """The number of steps done."""
        return self._program.steps

    def cut(self, small: bytes, kind: str = "batch") -> None:
        """Publish the small state at a cut. Does not return if the job is ending. `kind`: see `mark`."""
        self.pace.mark(kind, time.monotonic())
        self._program.cut(lambda point: self._publish(point, small))

    def gate(self, small: bytes, number: int = 1, limit_s: float | None = None) -> int:
        """Publish the small state at the entry of a step, and wait until all ranks have; return the greatest number
        that a rank has brought. Does not return if the job is ending. Raises Late after `limit_s` seconds.
        """
        return self._program.enter(
            lambda point: self._publish(point, small), lambda step: self._wait_for_all(step, number, limit_s)
        )

    def _wait_for_all(self, step: int, number: int, limit_s: float | None) -> int | None:
        def is_frozen() -> bool:
            self.pace.wait(time.monotonic())
            return self._program.is_frozen

        self.pace.pause(time.monotonic())
        try:
            return self._gate.wait(step, is_frozen, number, limit_s)
        finally:
            self.pace.go_on(time.monotonic())

    def stepped(self) -> None:
        """Say that the step is done. To be called after the last change of the big state."""
        self._program.stepped()

    def mark(self, kind: str) -> None:
        """Say that a stretch of another kind begins, which may take longer than a batch: a validation."""
        self.pace.mark(kind, time.monotonic())

    def give_up(self) -> None:
        """Say that this rank comes to no more cuts. Its published states still count; hangs are no longer noticed."""
        self.pace.stop()

    def failed(self, why: str, *, may_be_echo: bool) -> NoReturn:
        """Report that the program has raised. `may_be_echo`: a peer's death can cause this kind of error; if a peer has
        died, the error is not this rank's own. Never returns: the watcher ends the process when the ranks have saved.
        """
        self.pace.stop()
        self._program.break_off()
        if not (may_be_echo and self._program.await_freeze(self._setup.timing.silence_s + 1.0)):
            self._watcher.tell(Trouble(why))
        self._program.park()

    def finish(self) -> None:
        """Say that all ranks have done all work; to be called behind a barrier. Deaths no longer matter then."""
        self.pace.stop()
        self._program.rest()
        self._watcher.tell(Finish())
        launched.end_by.pop()
        self._watcher.join()  # if a death came first, the watcher ends the process here
        _live.discard(self)
        if self._sigterm is not None:
            self._sigterm.undo()
        self._mesh.close()

    def _publish(self, point: StatePoint, small: bytes) -> None:
        self._slots.publish(point, small)
        if self._buddy is not None:
            self._mesh.send(self._buddy, Small(point, small))

    def _forget(self) -> None:
        self._watcher.forget()
        if self._sigterm is not None:
            self._sigterm.undo()


def _own_folder(local: Path, incarnation: str) -> Path:
    """Make and return the folder of this incarnation; delete those of others."""
    folder = local / incarnation
    folder.mkdir(parents=True, exist_ok=True)
    for other in local.iterdir():
        if other != folder:
            shutil.rmtree(other, ignore_errors=True)
    return folder


def _forget_all() -> None:
    for ranks in list(_live):
        ranks._forget()
    _live.clear()


os.register_at_fork(after_in_child=_forget_all)

__all__ = ["Late", "RankMember", "RanksApart", "Setup"]
