"""The protocol of one rank: events in, actions out. No I/O, no clock, no threads, no chance.

The same code runs in the watcher's thread, in the model check and in the simulation. A rank is in one of these states:

    RUN --a death, an error, SIGTERM, a hang, a call--> FREEZE --the program rests; vote--> VOTE
    VOTE --the chief has all votes on one view--> SAVE --all parts written--> SEAL --manifest--> ENDED
    any of FREEZE, VOTE, SAVE: a new death, or a disk that fails --> FREEZE, for a new round
    VOTE --no point--> SEAL (is there a manifest already?) --> ENDED

The *chief* is the lowest living rank that can write. It is a function of the view, so nobody elects it. It gathers the
votes and announces the decision. Views only grow and are joined: after the last death all ranks that can reach each
other have the same view, and the round of that view ends.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Final

import msgspec

from detrain.runtime.ranks.vote import Decision, NoPoint, Vote, decide
from detrain.runtime.ranks.wire import Agreeing, Ballot, Beat, Bye, Call, Decided, File, Over, View, Written

EVERYBODY: Final = 16
"""Up to so many ranks, each watches all others. Beyond, each watches its neighbours on a ring, so that the number of
messages without a failure grows with the number of ranks, and not with its square."""
_RING: Final = 2


class Stage(enum.Enum):
    """The place of a rank in the protocol."""

    RUN = "run"
    FREEZE = "freeze"
    VOTE = "vote"
    SAVE = "save"
    SEAL = "seal"
    ENDED = "ended"


class Timing(msgspec.Struct, frozen=True):
    """The protocol's times, all in seconds."""

    beat_s: float = 0.1
    silence_s: float = 2.0
    """A rank that has sent no message for so long counts as dead."""
    vote_s: float = 30.0
    """If the digest of a big state takes longer, the state cannot be saved."""
    save_s: float = 600.0
    """A rank that has not written its part after so long counts as unable to."""


# Events.


class Tick(msgspec.Struct, frozen=True):
    """Time has passed."""


class Heard(msgspec.Struct, frozen=True):
    """A message has come."""

    rank: int
    message: Agreeing


class RankLost(msgspec.Struct, frozen=True):
    """The connection to a rank has ended, or its process has been seen stopped."""

    rank: int
    why: str
    is_stopped: bool = False


class Trouble(msgspec.Struct, frozen=True):
    """This rank itself cannot go on: an exception, SIGTERM, a hang."""

    why: str


class Voted(msgspec.Struct, frozen=True):
    """The answer to `TakeVote`."""

    view: View
    vote: Vote


class Saved(msgspec.Struct, frozen=True):
    """The answer to `Write`: this rank's files."""

    view: View
    files: tuple[File, ...]


class NotSaved(msgspec.Struct, frozen=True):
    """The answer to `Write` or `Seal` if the disk has failed."""

    reason: str


class Sealed(msgspec.Struct, frozen=True):
    """The answer to `Seal`: the round of the manifest that is there now, perhaps another one; None without manifest."""

    view: View
    committed: str | None


class Finish(msgspec.Struct, frozen=True):
    """The program has done all its work, on all ranks."""


Event = Tick | Heard | RankLost | Trouble | Voted | Saved | NotSaved | Sealed | Finish

# Actions.


class Send(msgspec.Struct, frozen=True):
    """Send a message; if there is no connection to a rank yet, make one."""

    to: tuple[int, ...]
    message: Agreeing


class Drop(msgspec.Struct, frozen=True):
    """Ignore a rank from now on. `is_fenced`: it may still live, but must not go on, so end it if it is in reach."""

    rank: int
    is_fenced: bool


class TakeVote(msgspec.Struct, frozen=True):
    """Have the program come to rest, and report its states; answered by `Voted`."""

    view: View


class Write(msgspec.Struct, frozen=True):
    """Write this rank's part; answered by `Saved` or `NotSaved`."""

    view: View
    decision: Decision


class Seal(msgspec.Struct, frozen=True):
    """Write the manifest, unless this incarnation has one. Without a decision, only look whether it has one."""

    view: View
    decision: Decision | None
    files: tuple[File, ...]
    why: str


class EndProcess(msgspec.Struct, frozen=True):
    """End the process. `speaks`: this rank prints the reason for the whole job."""

    committed: str | None
    text: str
    speaks: bool


Action = Send | Drop | TakeVote | Write | Seal | EndProcess


class Machine(msgspec.Struct):
    """One rank's state in the protocol. `step` changes it in place: a copy of 1,024 entries at each message would cost
    more than all else. The state still depends only on the events.
    """

    rank: int
    world: int
    near: frozenset[int]
    """The ranks that this rank watches all the time."""
    timing: Timing = msgspec.field(default_factory=Timing)
    state: Stage = Stage.RUN
    view: View = msgspec.field(default_factory=View)
    why: str = ""
    heard: dict[int, float] = {}
    """The time of each watched rank's last message; if it has sent none, the time since which it is watched."""
    finished: set[int] = set()
    _now: float = 0.0
    _ticked: float | None = None
    _beaten: float = float("-inf")
    _beaten_far: float = float("-inf")
    _votes: dict[int, Vote] = {}
    """The votes on the present view, by rank."""
    _decision: Decision | None = None
    _written: list[File] = []
    _awaited: set[int] = set()
    """On the chief: the ranks that still have to vote, and later those that still have to write."""
    _saving_since: float = 0.0
    _out: list[Action] = []

    def step(self, event: Event, now: float) -> list[Action]:
        """Take in an event at a time (monotonic, in seconds), and return the actions to do, in this order."""
        if self.state is Stage.ENDED:
            return []
        self._out, self._now = [], max(now, self._now)
        match event:
            case Tick():
                self._tick()
            case Heard(rank, message):
                self._hear(rank, message)
            case RankLost(rank, why, is_stopped):
                self._lose([rank], why, is_fenced=is_stopped)
            case Trouble(why):
                self._trouble(why)
            case Voted(view, vote):
                self._voted(view, vote)
            case Saved(view, files):
                self._saved(self.rank, view, files)
            case NotSaved(reason):
                self._not_saved(reason)
            case Sealed(view, committed):
                self._sealed(view, committed)
            case Finish():
                self._finish()
        return self._out

    @property
    def chief(self) -> int:
        """The lowest living rank that can write; if none can, the lowest living one."""
        for rank in range(self.world):
            if rank not in self.view.dead and rank not in self.view.unable:
                return rank
        return min(self._living())

    def quiet(self, for_s: float) -> list[int]:
        """Return the watched ranks that have sent no message for so long: perhaps they are stopped."""
        return [rank for rank in self._watched() if self._now - self.heard.get(rank, self._now) > for_s]

    # Time.

    def _tick(self) -> None:
        now, timing = self._now, self.timing
        if self._ticked is None or now - self._ticked > 5 * timing.beat_s:  # this thread itself has slept
            self.heard = {}
        self._ticked = now
        if now - self._beaten >= timing.beat_s:
            self._beaten = now
            self._send(self.near, Beat())
        if self.state is not Stage.RUN and now - self._beaten_far >= timing.silence_s / 4:
            self._beaten_far = now
            self._send(self._watched() - self.near, Beat())
        watched = self._watched()
        for rank in watched:
            self.heard.setdefault(rank, now)
        silent = sorted(rank for rank in watched if now - self.heard[rank] > timing.silence_s)
        self._lose(silent, f"nothing heard for {timing.silence_s:g} s", is_fenced=True)
        if self.state is Stage.SAVE and self._is_chief() and now - self._saving_since > timing.save_s:
            late = min(self._awaited)
            self._renew(self.view.failing(late), f"rank {late} has not written its part in {timing.save_s:g} s")

    def _watched(self) -> frozenset[int]:
        """Return the ranks that this rank watches now: it would notice their silence."""
        watched = set(self.near)
        if self.state is not Stage.RUN:
            watched |= self._living() if self._is_chief() else {self.chief}
        return frozenset(watched - {self.rank} - self.finished - set(self.view.dead))

    # Messages of others.

    def _hear(self, rank: int, message: Agreeing) -> None:
        if isinstance(message, Over) and message.committed is not None:
            self._end(message.committed, message.text, speaks=False)  # a manifest is there, even if its writer is gone
            return
        if rank in self.view.dead:
            return  # cut off, or late: ignore it, or two views would count each other as dead
        self.heard[rank] = self._now
        match message:
            case Call(view, why):
                self._meet(rank, view, why)
            case Ballot(view, why, vote):
                self._meet(rank, view, why)
                if self.state is not Stage.ENDED and rank not in self.view.dead:
                    self._cast(rank, view, vote)
            case Decided(view, decision):
                if view == self.view and self.state is Stage.VOTE:
                    self._obey(decision)
            case Written(view, files):
                self._saved(rank, view, files)
            case Over(_, text):
                self._end(None, text, speaks=False)
            case Bye():
                self.finished.add(rank)
                if self.state is not Stage.RUN:
                    self._end(None, f"{self.why}; rank {rank} had finished its work, so nothing was saved", speaks=self._is_chief())
            case Beat():
                pass

    def _meet(self, rank: int, view: View, why: str) -> None:
        """Take in the view of another rank."""
        if self.rank in view.dead:
            self._end(None, f"rank {rank} counts this rank as dead ({why})", speaks=True)
            return
        joined = self.view.joined(view)
        if joined != self.view or self.state is Stage.RUN:
            self._renew(joined, why, learned=view if joined == view else None)
        elif view != joined:
            self._send([rank], Call(self.view, self.why))  # the other rank's view is behind

    # This rank's own findings.

    def _lose(self, ranks: Iterable[int], why: str, *, is_fenced: bool) -> None:
        lost = sorted(set(ranks) - set(self.view.dead) - self.finished - {self.rank})
        if not lost:
            return
        if self.finished and self.state is Stage.RUN:
            self.finished.update(lost)  # they ended after the work was done: there is nothing to save
            return
        for rank in lost:
            self._out.append(Drop(rank, is_fenced=is_fenced))
        named = ", ".join(map(str, lost))
        self._renew(self.view.without(*lost), f"rank{'s' if len(lost) > 1 else ''} {named}: {why}")

    def _trouble(self, why: str) -> None:
        if self.state is not Stage.RUN:
            return
        if self.finished:
            self._end(None, f"rank {self.rank}: {why}; another rank had finished its work, so nothing was saved", speaks=True)
            return
        self._renew(self.view, f"rank {self.rank}: {why}")

    def _finish(self) -> None:
        if self.state is Stage.RUN:
            self._send(self.near, Bye())
            self.state = Stage.ENDED

    # Rounds.

    def _renew(self, view: View, why: str, *, learned: View | None = None) -> None:
        """Begin the round of a view. `learned`: the view, if another rank has sent it and sends it to others itself."""
        if self.state is Stage.ENDED or (view == self.view and self.state is not Stage.RUN):
            return
        for rank in view.dead:
            if rank not in self.view.dead and not any(isinstance(each, Drop) and each.rank == rank for each in self._out):
                self._out.append(Drop(rank, is_fenced=True))
        self.why = self.why or why
        self.view, self.state = view, Stage.FREEZE
        self._decision, self._votes, self._written = None, {}, []
        self._awaited = set(self._living())
        self._out.append(TakeVote(view))
        if self._is_chief():
            self._send(self._living(), Call(view, self.why))
        elif learned != view:
            self._send(self.near | {self.chief}, Call(view, self.why))

    def _voted(self, view: View, vote: Vote) -> None:
        if view != self.view or self.state is not Stage.FREEZE:
            return
        self.state = Stage.VOTE
        if not self._is_chief():
            self._send([self.chief], Ballot(view, self.why, vote))
        self._cast(self.rank, view, vote)

    def _cast(self, rank: int, view: View, vote: Vote) -> None:
        if view != self.view:
            return  # that rank's view is behind, and it has been told so
        self._votes[rank] = vote
        self._awaited.discard(rank)
        if self._awaited or self.state is not Stage.VOTE or not self._is_chief():
            return
        living = self._living()
        found = decide(self._votes, self.world, self.view.unable)
        if isinstance(found, NoPoint):
            self.why = f"{self.why}; {found.reason}"
            self.state = Stage.SEAL
            self._out.append(Seal(self.view, None, (), self.why))
        else:
            self._send(living, Decided(self.view, found))
            self._obey(found)

    def _obey(self, decision: Decision) -> None:
        self.state, self._decision, self._saving_since = Stage.SAVE, decision, self._now
        self._awaited = set(decision.all_writers())
        if self.rank in self._awaited:
            self._out.append(Write(self.view, decision))

    def _saved(self, rank: int, view: View, files: tuple[File, ...]) -> None:
        if view != self.view or self.state is not Stage.SAVE:
            return
        if not self._is_chief():
            self._send([self.chief], Written(view, files))
            return
        self._awaited.discard(rank)
        self._written.extend(files)
        if not self._awaited:
            self.state = Stage.SEAL
            every = tuple(sorted(self._written, key=lambda file: file.path))
            self._out.append(Seal(view, self._decision, every, self.why))

    def _not_saved(self, reason: str) -> None:
        if self.state is Stage.SEAL and self.rank in self.view.unable:  # no rank is left that can write
            self.why = f"{self.why}; no checkpoint can be looked for ({reason})"
            self._sealed(self.view, None)
        else:
            self._renew(self.view.failing(self.rank), f"rank {self.rank} cannot write ({reason})")

    def _sealed(self, view: View, committed: str | None) -> None:
        if committed is None and (view != self.view or self.state is not Stage.SEAL):
            return  # a new round has begun meanwhile
        self._send(self._living(), Over(committed, self.why))
        self._end(committed, self.why, speaks=True)

    # Helpers.

    def _living(self) -> frozenset[int]:
        return frozenset(range(self.world)).difference(self.view.dead)

    def _is_chief(self) -> bool:
        return self.chief == self.rank

    def _send(self, to: Iterable[int], message: Agreeing) -> None:
        ranks = tuple(sorted(set(to) - {self.rank} - set(self.view.dead) - self.finished))
        if ranks:
            self._out.append(Send(ranks, message))

    def _end(self, committed: str | None, text: str, *, speaks: bool) -> None:
        self.state = Stage.ENDED
        self._out.append(EndProcess(committed, text, speaks))


def neighbours(rank: int, world: int) -> frozenset[int]:
    """Return the ranks that a rank watches: all others, or in a large world its neighbours on a ring."""
    if world <= EVERYBODY:
        return frozenset(range(world)) - {rank}
    return frozenset((rank + step) % world for step in range(-_RING, _RING + 1)) - {rank}
