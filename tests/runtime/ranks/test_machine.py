"""The protocol, model-checked: the machines of up to four ranks in a world where all may happen in any order."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from detrain.runtime.ranks import machine as m
from detrain.runtime.ranks.vote import StatePoint, Vote
from detrain.runtime.ranks.wire import Bye, Call, File, View

RANKS = st.integers(0, 3)


@dataclass
class Program:
    """What a rank's own thread does: cut, entry of the step, gate, step, again."""

    done: int = 0
    phase: str = "cut"
    published: dict[StatePoint, bool] = field(default_factory=dict)

    def publish(self, kind: Any) -> None:
        """Keep what a real rank keeps: the points of its last two steps."""
        self.published[StatePoint(self.done, self.done, kind)] = True
        self.published = {point: True for point in self.published if point.steps >= self.done - 1}


@dataclass
class Rank:
    """One process: its program, its machine, and what the machine has asked for and not been answered."""

    machine: m.Machine
    program: Program = field(default_factory=Program)
    alive: bool = True
    stopped: bool = False
    has_voted: bool = False
    asked: deque[Any] = field(default_factory=deque)
    dropped: set[int] = field(default_factory=set)
    ending: m.EndProcess | None = None


class World(RuleBasedStateMachine):
    """Ranks, the queues between them, one disk."""

    @initialize(
        world=st.sampled_from([4, 3, 2, 1]), has_nodes=st.booleans(), rounds=st.integers(0, 12), ragged=st.lists(RANKS, max_size=12)
    )
    def begin(self, world: int, has_nodes: bool, rounds: int, ragged: list[int]) -> None:
        """Ranks somewhere in their first steps, not all at the same place."""
        self.world, self.has_nodes = world, has_nodes
        self.ranks = [Rank(m.Machine(rank, world, m.neighbours(rank, world))) for rank in range(world)]
        self.queues: dict[tuple[int, int], deque[Any]] = {(a, b): deque() for a in range(world) for b in range(world) if a != b}
        self.manifest: tuple[str, Any] | None = None
        self.saved_states: dict[str, tuple[int, bool]] = {}
        self.now, self.false_alarms, self.has_trouble = 0.0, 0, False
        self.train(rounds)
        for rank in ragged:
            self.advance(rank)

    # The program's own threads.

    @rule(rank=RANKS)
    def advance(self, rank: int) -> None:
        r = self._running(rank)
        if r is None:
            return
        program, frozen = r.program, r.machine.state is not m.Stage.RUN
        match program.phase:
            case "cut" if not r.has_voted:
                program.publish("c")
                program.phase = "body"
            case "body" if not frozen:
                program.publish("d")
                program.phase = "gate"
            case "gate" if not frozen and all(
                StatePoint(program.done, program.done, "d") in self._of(each) for each in range(self.world)
            ):
                program.phase = "step"
            case "step":
                program.done += 1
                program.phase = "cut"

    def train(self, times: int) -> None:
        for _ in range(times):
            for rank in range(self.world):
                self.advance(rank)

    def _of(self, rank: int) -> dict[StatePoint, bool]:
        return self.ranks[rank].program.published

    # Failures.

    @rule(rank=RANKS)
    def kill(self, rank: int) -> None:
        if rank >= self.world or not self.ranks[rank].alive:
            return
        self.ranks[rank].alive, self.has_trouble = False, True
        for other in range(self.world):
            if other != rank:
                self.queues[rank, other].append(m.RankLost(rank, "EOF"))

    @rule(rank=RANKS)
    def stop_or_wake(self, rank: int) -> None:
        if rank < self.world and self.ranks[rank].alive:
            self.ranks[rank].stopped = not self.ranks[rank].stopped

    @rule(rank=RANKS, other=RANKS)
    def notice_silence(self, rank: int, other: int) -> None:
        r = self._running(rank)
        if r is None or other >= self.world or other == rank:
            return
        if not self.ranks[other].stopped:
            if self.false_alarms >= 2:
                return
            self.false_alarms += 1
        self._step(rank, m.RankLost(other, "silence", is_stopped=True))

    @rule(rank=RANKS)
    def trouble(self, rank: int) -> None:
        if self._running(rank):
            self.has_trouble = True
            self._step(rank, m.Trouble("error"))

    # Answers and messages.

    @rule(a=RANKS, b=RANKS)
    def deliver(self, a: int, b: int) -> None:
        queue = self.queues.get((a, b))
        if not queue or self._running(b, ended=True) is None:
            return
        item = queue.popleft()
        if a not in self.ranks[b].dropped:
            self._step(b, item if isinstance(item, m.RankLost) else m.Heard(a, item))

    @rule(pairs=st.lists(st.tuples(RANKS, RANKS), max_size=12))
    def bustle(self, pairs: list[tuple[int, int]]) -> None:
        for a, b in pairs:
            if a == b:
                self.answer(a, fails=False)
            else:
                self.deliver(a, b)

    @rule(rank=RANKS, fails=st.booleans())
    def answer(self, rank: int, fails: bool) -> None:
        r = self._running(rank)
        if r is None or not r.asked:
            return
        match r.asked.popleft():
            case m.TakeVote(view):
                r.has_voted = True
                state = None if r.program.phase == "step" else b""
                self._step(rank, m.Voted(view, Vote(r.program.done, state, self._holds(rank))))
            case m.Write(view, decision):
                files = self._write(rank, view, decision)
                self._step(rank, m.NotSaved("disk full") if fails or files is None else m.Saved(view, files))
            case m.Seal(view, decision, files, _):
                if fails:
                    self._step(rank, m.NotSaved("disk full"))
                    return
                if self.manifest is None and decision is not None:
                    self._check(view, decision, files)
                    self.manifest = view.name, decision
                self._step(rank, m.Sealed(view, self.manifest and self.manifest[0]))

    def _holds(self, rank: int) -> Any:
        """Own points; the slot files of the node; without it, what the rank before has sent here."""
        owners = [rank, (rank - 1) % self.world] if self.has_nodes else range(self.world)
        return tuple((owner, tuple(sorted(self._of(owner)))) for owner in sorted({*owners}))

    def _write(self, rank: int, view: View, decision: Any) -> tuple[File, ...] | None:
        holds, names = dict(self._holds(rank)), []
        for point, writers in decision.writers:
            for owner, writer in enumerate(writers):
                if writer == rank:
                    if point not in holds.get(owner, ()):
                        return None
                    names.append(f"{owner}-{point.name}")
        if decision.saver == rank:
            program = self.ranks[rank].program
            self.saved_states[view.name] = program.done, program.phase == "step"
            names.append("big")
        return tuple(File(name, 0, b"") for name in names)

    def _check(self, view: View, decision: Any, files: tuple[File, ...]) -> None:
        """Validity: what is committed is a whole and exact state."""
        assert self.saved_states[view.name] == (decision.point.done, False), "another state than that of the point"
        needed = {f"{owner}-{point.name}" for point in (decision.point, decision.base) for owner in range(self.world)} | {"big"}
        assert {file.path for file in files} == needed

    # The machinery.

    def _running(self, rank: int, *, ended: bool = False) -> Rank | None:
        if rank >= self.world:
            return None
        r = self.ranks[rank]
        return r if r.alive and not r.stopped and (ended or r.ending is None) else None

    def _step(self, rank: int, event: m.Event) -> None:
        r = self.ranks[rank]
        self.now += 0.001
        for action in r.machine.step(event, self.now):
            match action:
                case m.Send(to, message):
                    for other in to:
                        self.queues[rank, other].append(message)
                case m.Drop(other, is_fenced):
                    r.dropped.add(other)
                    self.queues[rank, other].append(m.RankLost(rank, "EOF"))
                    if is_fenced and not self.has_nodes:
                        self.kill(other)
                case m.EndProcess():
                    r.ending = action
                    for other in range(self.world):
                        if other != rank:
                            self.queues[rank, other].append(m.RankLost(rank, "EOF"))
                case _:
                    r.asked.append(action)

    @invariant()
    def all_agree(self) -> None:
        """Whoever has ended with a checkpoint has ended with the one that is there."""
        for r in getattr(self, "ranks", ()):
            if r.ending is not None and r.ending.committed is not None:
                assert self.manifest is not None
                assert r.ending.committed == self.manifest[0]

    def teardown(self) -> None:
        """When deaths stop, all living ranks come to an end."""
        if not hasattr(self, "ranks"):
            return
        for _ in range(200):
            before = self._snapshot()
            for (a, b), queue in self.queues.items():
                while queue and self._running(b, ended=True):
                    self.deliver(a, b)
            for rank in range(self.world):
                while self._running(rank) and self.ranks[rank].asked:
                    self.answer(rank, fails=False)
                for other in range(self.world):
                    r = self._running(rank)
                    if r and self.ranks[other].alive and self.ranks[other].stopped and other != rank:
                        self._step(rank, m.RankLost(other, "silence", is_stopped=True))
            if before == self._snapshot():
                break
        states = {r.machine.state for r in self.ranks if r.alive and not r.stopped}
        assert states <= {m.Stage.ENDED} or states == {m.Stage.RUN}, [
            (r.alive, r.stopped, r.machine.state, r.machine.view) for r in self.ranks
        ]
        self.all_agree()

    def _snapshot(self) -> Any:
        return [(r.alive, r.machine.state, r.machine.view, len(r.asked)) for r in self.ranks], [
            len(q) for q in self.queues.values()
        ]


World.TestCase.settings = settings(max_examples=150, stateful_step_count=40, suppress_health_check=list(HealthCheck))
TestAllOrders = World.TestCase


class _Longer(World):
    """The same, searched for longer."""


_Longer.TestCase.settings = settings(max_examples=1500, stateful_step_count=60, suppress_health_check=list(HealthCheck))


@pytest.mark.slow
class TestAllOrdersForLonger(_Longer.TestCase):  # type: ignore[name-defined, misc]
    """1,500 worlds of 60 steps."""


def test_a_disk_that_fails_the_last_rank_twice_ends_it() -> None:
    """Found by the model check: the chief that cannot write looks for a manifest, and cannot look either."""
    alone = m.Machine(0, 1, m.neighbours(0, 1))
    (take,) = alone.step(m.Trouble("error"), 0.0)
    assert isinstance(take, m.TakeVote)
    (write,) = alone.step(m.Voted(take.view, Vote(0, b"", ((0, (StatePoint(0, 0, "c"),)),))), 0.0)
    assert isinstance(write, m.Write)
    (again,) = alone.step(m.NotSaved("disk full"), 0.0)
    assert isinstance(again, m.TakeVote)
    (look,) = alone.step(m.Voted(again.view, Vote(0, b"", ())), 0.0)
    assert isinstance(look, m.Seal)
    assert look.decision is None

    (end,) = alone.step(m.NotSaved("stale handle"), 0.0)

    assert isinstance(end, m.EndProcess)
    assert end.committed is None
    assert "no rank that is left can write" in end.text
    assert "stale handle" in end.text


def test_a_rank_that_hears_that_it_is_dead_ends_without_a_word_to_the_disk() -> None:
    rank = m.Machine(2, 3, m.neighbours(2, 3))

    (end,) = rank.step(m.Heard(0, Call(View((2,)), "silence")), 0.0)

    assert end == m.EndProcess(None, "rank 0 counts this rank as dead (silence)", speaks=True)


def test_a_thread_that_slept_does_not_take_others_for_dead() -> None:
    rank = m.Machine(0, 2, m.neighbours(0, 2))
    rank.step(m.Tick(), 0.0)

    assert not any(isinstance(action, m.Drop) for action in rank.step(m.Tick(), 60.0))
    ticks = [rank.step(m.Tick(), 60.0 + 0.1 * step) for step in range(1, 25)]
    assert any(isinstance(action, m.Drop) for actions in ticks for action in actions), "silence is noticed all the same"


def test_after_the_work_is_done_a_death_is_none() -> None:
    rank = m.Machine(0, 3, m.neighbours(0, 3))
    rank.step(m.Heard(1, Bye()), 0.0)

    assert rank.step(m.RankLost(2, "EOF"), 0.0) == []
    assert rank.state is m.Stage.RUN


def test_in_a_large_world_a_rank_watches_four_others() -> None:
    assert m.neighbours(0, 16) == frozenset(range(1, 16))
    assert m.neighbours(0, 1024) == {1, 2, 1022, 1023}
    assert all(other in m.neighbours(rank, 40) for rank in range(40) for other in range(40) if rank in m.neighbours(other, 40))
