"""The thread that does the I/O of a rank's machine: sockets, signals, other processes, files, and the end.

What may take long (a vote's digest of the big state, a save) is done in other threads: this one never stops to say that
the rank lives.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

import msgspec

from detrain.base import messages
from detrain.runtime.ranks import processes
from detrain.runtime.ranks.gate import Gate
from detrain.runtime.ranks.hang import Pace
from detrain.runtime.ranks.machine import (
    Drop,
    EndProcess,
    Event,
    Finish,
    Heard,
    Machine,
    NotSaved,
    RankLost,
    Saved,
    Seal,
    Sealed,
    Send,
    State,
    TakeVote,
    Tick,
    Trouble,
    Voted,
    Write,
)
from detrain.runtime.ranks.manifest import FORMAT, CommitManifest, folder_of, seal, write_part
from detrain.runtime.ranks.mesh import ConnectionEnded, Mesh
from detrain.runtime.ranks.processes import SigtermPipe
from detrain.runtime.ranks.program import ProgramThread
from detrain.runtime.ranks.slots import HeldSlots, read_slots
from detrain.runtime.ranks.vote import Decision, Point, Vote
from detrain.runtime.ranks.wire import Ready, Small, View

EXIT_CODE: Final = 138
_GRACE_S: Final = 0.3
"""So long a program that is not in a step may take to its next cut, for a newer point; blocked, it takes it whole."""
_STEP_S: Final = 5.0
"""So long it may take to the end of a step."""
_REST_S: Final = 0.01
"""So often it is looked whether the program rests."""
_LOOK_BEATS: Final = 1.5
"""After a silence of so many beats, the process is looked at."""
_LAST_S: Final = 5.0
"""So long the last words may take: a program that hangs as it prints holds the stream."""


class Source(Protocol):
    """The big state, of the framework's side. Called in a thread of ours, the program's own thread at rest or blocked
    outside of a step.
    """

    def fingerprint(self) -> bytes | None:
        """Return a digest that is equal on all ranks of equal steps, or empty if none is taken; None if the state is
        not that of the end of a step.
        """

    def save(self, folder: Path) -> None:
        """Write the big state into the folder, at least one file."""

    def extra(self) -> bytes:
        """Return what a restore needs to know first, as the order of the buckets; goes into the manifest."""


class Ending(msgspec.Struct, frozen=True):
    """How a job ends that is to be started again."""

    manifest: Path | None
    """The checkpoint's, if there is one."""
    text: str
    speaks: bool
    """Whether this rank is the one that says so."""
    is_own: bool
    """Whether it was this rank's own program that failed."""


def _say_last(ending: Ending) -> None:
    messages.flush_output()
    if ending.speaks:
        saved = "nothing was saved" if ending.manifest is None else f"saved, see {messages.shown(ending.manifest)}"
        messages.put(f"detrain: {ending.text}: {saved}")


Leave = Callable[[Ending], None]


def leave(ending: Ending) -> None:
    """End the process: 138, or 1 where this rank's own error was in vain."""
    last_words = threading.Thread(target=_say_last, args=(ending,), name="detrain-ranks-end", daemon=True)
    last_words.start()
    last_words.join(_LAST_S)
    os._exit(1 if ending.is_own and ending.manifest is None else EXIT_CODE)


class RankFiles(msgspec.Struct, frozen=True):
    """Where a rank's files are, and of which job."""

    home: Path
    """All ranks' file system."""
    local: Path
    """This node's, of this incarnation."""
    job: str


class Watcher(threading.Thread):
    """One rank's. Starts with the job, and ends with it or ends it."""

    def __init__(
        self,
        machine: Machine,
        mesh: Mesh,
        gate: Gate,
        held: HeldSlots,
        program: ProgramThread,
        pace: Pace,
        source: Source,
        place: RankFiles,
        sigterm: SigtermPipe | None,
        leave: Leave,
    ) -> None:
        super().__init__(name="detrain-ranks", daemon=True)
        self._machine, self._mesh, self._gate, self._held, self._program = machine, mesh, gate, held, program
        self._pace, self._source, self._place, self._sigterm, self._leave = pace, source, place, sigterm, leave
        self._incarnation = mesh.table.incarnation
        self._folder = folder_of(place.home, self._incarnation.hex())
        self._here = next(ranks for ranks in mesh.table.nodes() if machine.rank in ranks)
        self._inbox: deque[Event] = deque()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._saving = threading.Lock()
        self._vote_due: View | None = None
        self._vote_begun: tuple[View, float] | None = None
        self._frozen_at: float | None = None
        self._is_own = False
        self._is_over = False
        mesh.watch(self._wake)
        if sigterm is not None:
            mesh.watch(sigterm.descriptor)

    def tell(self, event: Event) -> None:
        """From another thread: an event for the machine."""
        self._inbox.append(event)
        os.eventfd_write(self._wake, 1)

    def forget(self) -> None:
        """In a forked child: close what is the parent's."""
        self._mesh.forget()
        with suppress(OSError):
            os.close(self._wake)

    def run(self) -> None:
        """Serve until the job is over."""
        try:
            while not self._is_over:
                self._turn()
        except BaseException:
            messages.flush_output()
            messages.put(traceback.format_exc())
            messages.say("the watcher of this rank has failed, which is a defect of detrain; the other ranks save")
            os._exit(70)

    def _turn(self) -> None:
        beat_s = self._machine.timing.beat_s
        for rank, item in self._mesh.poll(beat_s if self._vote_due is None else min(beat_s / 20, _REST_S)):
            match item:
                case Small(point, state):
                    self._held.put(rank, point, state)
                    self._gate.hold(self._held.entered())
                case Ready(step, round_, number):
                    self._gate.hear(step, round_, number)
                case ConnectionEnded(why):
                    self._step(RankLost(rank, why))
                case _:
                    self._step(Heard(rank, item))
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        while self._inbox:
            event = self._inbox.popleft()
            self._is_own |= isinstance(event, Trouble) and self._machine.state is State.RUN
            self._step(event)
        if self._sigterm is not None and self._sigterm.has_come():
            self._step(Trouble("SIGTERM"))
        self._step(Tick())
        self._look_around()
        self._vote_if_at_rest()
        self._vote_without_state_if_late()

    def _step(self, event: Event) -> None:
        for action in self._machine.step(event, time.monotonic()):
            self._do(action)
        if isinstance(event, Finish) and self._machine.state is State.ENDED:
            self._mesh.flush(1.0)
            self._is_over = True

    def _do(self, action: Send | Drop | TakeVote | Write | Seal | EndProcess) -> None:
        match action:
            case Send(to, message):
                for rank in to:
                    self._mesh.send(rank, message)
            case Drop(rank, is_fenced):
                self._mesh.drop(rank)
                if is_fenced and rank in self._here:
                    processes.end(self._mesh.table.peers[rank].process)
            case TakeVote(view):
                self._program.freeze()
                self._vote_due, self._frozen_at = view, self._frozen_at or time.monotonic()
            case Write(view, decision):
                self._work(lambda: self._write(view, decision))
            case Seal():
                self._work(lambda: Sealed(action.view, seal(self._folder, self._manifest(action))))
            case EndProcess():
                self._end(action)

    def _look_around(self) -> None:
        for rank in self._machine.quiet(_LOOK_BEATS * self._machine.timing.beat_s):
            # One that is gone is told by the end of its connection, behind its last words: it may have finished.
            if rank in self._here and processes.rests(self._mesh.table.peers[rank].process) == "is stopped":
                self._step(RankLost(rank, "the process is stopped", is_stopped=True))
        if self._machine.state is State.RUN and (late := self._pace.late(time.monotonic())):
            self._step(Trouble(late))

    def _vote_if_at_rest(self) -> None:
        if self._vote_due is None or self._frozen_at is None:
            return
        waited = time.monotonic() - self._frozen_at
        if self._program.is_parked or waited > (_STEP_S if self._program.in_step else _GRACE_S):
            view, self._vote_due = self._vote_due, None
            self._vote_begun = view, time.monotonic()
            self._work(lambda: Voted(view, self._vote(self._fingerprint())))

    def _vote_without_state_if_late(self) -> None:
        """A device that is gone may not answer: this rank still says what small states there are."""
        if self._vote_begun is not None and time.monotonic() - self._vote_begun[1] > self._machine.timing.vote_s:
            (view, _), self._vote_begun = self._vote_begun, None
            if self._machine.state is State.FREEZE:
                self._work(lambda: Voted(view, self._vote(None)))

    def _end(self, end: EndProcess) -> None:
        self._mesh.flush(1.0)
        time.sleep(0.02)  # what has come and is not read would have the kernel take back what was sent
        manifest = None if end.committed is None else self._folder / "manifest.json"
        self._is_over = True
        self._leave(Ending(manifest, end.text, end.speaks, self._is_own))

    # In threads of their own: a vote must not wait for a save that hangs.

    def _work(self, job: Callable[[], Event]) -> None:
        def work() -> None:
            try:
                event = job()
            except Exception as error:  # a disk that is full, a device that is gone: another rank saves
                event = NotSaved(f"{type(error).__name__}: {error}")
            self.tell(event)

        threading.Thread(target=work, name="detrain-ranks-save", daemon=True).start()

    def _write(self, view: View, decision: Decision) -> Saved:
        with self._saving:  # a new round may begin while the last one's part is being written
            return Saved(view, write_part(self._folder, view, decision, self._machine.rank, self._small, self._source.save))

    def _fingerprint(self) -> bytes | None:
        _, is_clean = self._program.close()
        try:
            return self._source.fingerprint() if is_clean else None
        except Exception as error:  # the device is gone: this rank is no source
            messages.warn(f"rank {self._machine.rank} cannot read its state: {type(error).__name__}: {error}")
            return None

    def _vote(self, state: bytes | None) -> Vote:
        steps, _ = self._program.close()
        holds = {rank: set(read_slots(self._place.local, rank, self._incarnation)) for rank in self._here}
        for rank, states in self._held.states().items():
            holds.setdefault(rank, set()).update(states)
        return Vote(steps, state, tuple((rank, tuple(sorted(points))) for rank, points in sorted(holds.items()) if points))

    def _small(self, rank: int, point: Point) -> bytes:
        states = read_slots(self._place.local, rank, self._incarnation) if rank in self._here else {}
        states = {**self._held.states().get(rank, {}), **states}
        if point not in states:
            raise OSError(f"the small state of rank {rank} at {point.name} is gone")
        return states[point]

    def _manifest(self, action: Seal) -> CommitManifest | None:
        if action.decision is None:
            return None
        point, base = action.decision.point, action.decision.base
        world, extra = self._machine.world, self._source.extra()
        return CommitManifest(
            FORMAT,
            self._place.job,
            self._incarnation.hex(),
            action.view.name,
            world,
            point,
            base,
            action.view.dead,
            action.why,
            extra,
            action.files,
        )
