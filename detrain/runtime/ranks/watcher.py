"""The thread that does the I/O of a rank's machine: sockets, signals, other processes, files, and the end.

Work that may take long (a vote's digest of the big state, a save) is done in other threads, so that this one never
stops telling the others that the rank lives.
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
    Stage,
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
from detrain.runtime.ranks.vote import Decision, StatePoint, Vote
from detrain.runtime.ranks.wire import Ready, Small, View

EXIT_CODE: Final = 138
_GRACE_S: Final = 0.3
"""A vote waits this long for a program outside of a step to come to its next cut, for a newer point; if the program is
blocked, it waits all this time."""
_STEP_S: Final = 5.0
"""A vote waits this long for the end of a step."""
_REST_S: Final = 0.01
"""Time between two checks whether the program rests."""
_LOOK_BEATS: Final = 1.5
"""After so many beats without a message, the watcher checks the rank's process."""
_LAST_S: Final = 5.0
"""The last message may take this long: a program that hangs as it prints holds the stream."""


class BigState(Protocol):
    """The big state, on the framework's side. It is called in a thread of detrain, while the program's own thread rests
    or is blocked outside of a step.
    """

    def fingerprint(self) -> bytes | None:
        """Return a digest that is equal on all ranks after equally many steps, or empty if none is taken; None if the
        state is not that of a step's end.
        """

    def save(self, folder: Path) -> None:
        """Write the big state into the folder, at least one file."""

    def extra(self) -> bytes:
        """Return bytes for the manifest that a restore needs first, such as the order of the buckets."""


class Ending(msgspec.Struct, frozen=True):
    """The end of a job that is to be started again."""

    manifest: Path | None
    """The checkpoint's manifest, if there is one."""
    text: str
    speaks: bool
    """Whether this rank prints the text for the whole job."""
    is_own: bool
    """Whether this rank's own program failed."""


def _say_last(ending: Ending) -> None:
    messages.flush_output()
    if ending.speaks:
        saved = "nothing was saved" if ending.manifest is None else f"saved, see {messages.shown(ending.manifest)}"
        messages.put(f"detrain: {ending.text}: {saved}")


Leave = Callable[[Ending], None]


def leave(ending: Ending) -> None:
    """End the process with status 138, or with 1 if this rank's own program failed and nothing was saved."""
    last_words = threading.Thread(target=_say_last, args=(ending,), name="detrain-ranks-end", daemon=True)
    last_words.start()
    last_words.join(_LAST_S)
    os._exit(1 if ending.is_own and ending.manifest is None else EXIT_CODE)


class RankFiles(msgspec.Struct, frozen=True):
    """The folders of a rank's files, and the name of its job."""

    home: Path
    """On a file system of all ranks."""
    local: Path
    """On this node, for this incarnation."""
    job: str


class Watcher(threading.Thread):
    """The watcher thread of one rank. It starts with the job, and ends with it or ends it."""

    def __init__(
        self,
        machine: Machine,
        mesh: Mesh,
        gate: Gate,
        held: HeldSlots,
        program: ProgramThread,
        pace: Pace,
        source: BigState,
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
        """Hand an event to the machine, from another thread."""
        self._inbox.append(event)
        os.eventfd_write(self._wake, 1)

    def forget(self) -> None:
        """In a forked child, close the descriptors of the parent."""
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
            self._is_own |= isinstance(event, Trouble) and self._machine.state is Stage.RUN
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
        if isinstance(event, Finish) and self._machine.state is Stage.ENDED:
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
            # Not if it is gone: the end of its connection shows that, after its last messages, as it may have finished.
            if rank in self._here and processes.rests(self._mesh.table.peers[rank].process) == "is stopped":
                self._step(RankLost(rank, "the process is stopped", is_stopped=True))
        if self._machine.state is Stage.RUN and (late := self._pace.late(time.monotonic())):
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
        """Vote without a big state if its digest takes too long, as on a lost device; the small states still count."""
        if self._vote_begun is not None and time.monotonic() - self._vote_begun[1] > self._machine.timing.vote_s:
            (view, _), self._vote_begun = self._vote_begun, None
            if self._machine.state is Stage.FREEZE:
                self._work(lambda: Voted(view, self._vote(None)))

    def _end(self, end: EndProcess) -> None:
        self._mesh.flush(1.0)
        time.sleep(0.02)  # with received bytes still unread, the kernel would drop the bytes that were sent
        manifest = None if end.committed is None else self._folder / "manifest.json"
        self._is_over = True
        self._leave(Ending(manifest, end.text, end.speaks, self._is_own))

    # These run in threads of their own, so that a vote does not wait for a save that hangs.

    def _work(self, job: Callable[[], Event]) -> None:
        def work() -> None:
            try:
                event = job()
            except Exception as error:  # such as a full disk or a lost device: another rank saves
                event = NotSaved(f"{type(error).__name__}: {error}")
            self.tell(event)

        threading.Thread(target=work, name="detrain-ranks-save", daemon=True).start()

    def _write(self, view: View, decision: Decision) -> Saved:
        with self._saving:  # a new round may begin during the last round's write
            return Saved(view, write_part(self._folder, view, decision, self._machine.rank, self._small, self._source.save))

    def _fingerprint(self) -> bytes | None:
        _, is_clean = self._program.close()
        try:
            return self._source.fingerprint() if is_clean else None
        except Exception as error:  # the device is lost: this rank cannot save the big state
            messages.warn(f"rank {self._machine.rank} cannot read its state: {type(error).__name__}: {error}")
            return None

    def _vote(self, state: bytes | None) -> Vote:
        steps, _ = self._program.close()
        holds = {rank: set(read_slots(self._place.local, rank, self._incarnation)) for rank in self._here}
        for rank, states in self._held.states().items():
            holds.setdefault(rank, set()).update(states)
        return Vote(steps, state, tuple((rank, tuple(sorted(points))) for rank, points in sorted(holds.items()) if points))

    def _small(self, rank: int, point: StatePoint) -> bytes:
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
