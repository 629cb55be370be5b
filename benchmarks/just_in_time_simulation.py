"""The protocol of just-in-time checkpoints with up to 1,024 ranks, simulated: the real machines, a network of numbers.

    python benchmarks/just_in_time_simulation.py [--worlds 3,16,128,1024] [--losses 0,0.01] [--seed 0] [--json FILE]

Simulated are: the way of a message (half a millisecond between nodes, a tenth within one, with an exponential tail),
losses (a lost packet comes after TCP's 200 ms, what is behind it on its connection waits), one more way there and back
for the first message between two ranks that were not connected, the 20 µs that a rank needs for each message, one after
the other, the grace, the write and the flush of the manifest. Printed are, for each failure: when the last rank has the
decision, when the job has ended, how many messages (beats not counted) and bytes there were, and how many messages the
busiest rank has sent and received. The wall time of the machines themselves is not in it.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from detrain.runtime.ranks import machine as m
from detrain.runtime.ranks.vote import StatePoint, Vote
from detrain.runtime.ranks.wire import Beat, File, pack

PER_NODE = 8
HANDLING_S = 20e-6
GRACE_S = 0.3
WRITE_S = 0.15
SEAL_S = 0.02
TICK_S = 0.05
EOF_S = 0.01
RESENT_S = 0.2
STEPS = 1000


@dataclass
class Result:
    """What a failure has cost, in simulated seconds from the failure on."""

    agreed_s: float
    over_s: float
    messages: int
    size_bytes: int
    busiest: int
    committed: int
    living: int
    rounds: int


@dataclass
class Simulation:
    """A job of so many ranks, none of which has failed yet."""

    world: int
    loss: float
    seed: int
    now: float = 0.0
    machines: list[m.Machine] = field(init=False)
    alive: list[bool] = field(init=False)
    sent: Counter[str] = field(default_factory=Counter)
    by_rank: Counter[int] = field(default_factory=Counter)
    size_bytes: int = 0
    ended: dict[int, str | None] = field(default_factory=dict)
    agreed: dict[int, float] = field(default_factory=dict)
    manifest: str | None = None
    rounds: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.machines = [m.Machine(rank, self.world, m.neighbours(rank, self.world)) for rank in range(self.world)]
        self.alive = [True] * self.world
        self._random = random.Random(self.seed)
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._busy = [0.0] * self.world
        self._last: dict[tuple[int, int], float] = {}
        self._sizes: dict[int, tuple[Any, int]] = {}
        self._frozen: dict[int, float] = {}
        for rank in range(self.world):
            self.at(self._random.random() * TICK_S, lambda rank=rank: self._tick(rank))

    def at(self, delay_s: float, do: Callable[[], None]) -> None:
        """Have something happen later."""
        self._number += 1
        heapq.heappush(self._queue, (self.now + delay_s, self._number, do))

    def run(self, until: float) -> None:
        """Go on until a time, or until all are done."""
        while self._queue and self._queue[0][0] <= until and not self.is_over():
            self.now, _, do = heapq.heappop(self._queue)
            do()

    def is_over(self) -> bool:
        """Whether every living rank has ended."""
        return len(self.ended) > 0 and all(rank in self.ended for rank in range(self.world) if self.alive[rank])

    def kill(self, ranks: Sequence[int]) -> None:
        """End processes: who is connected to them sees it at once."""
        for rank in ranks:
            self.alive[rank] = False
            others = {a + b - rank for a, b in self._last if rank in (a, b)} | self.machines[rank].near
            for other in others:
                self.at(EOF_S * self._random.random(), lambda rank=rank, other=other: self._step(other, m.RankLost(rank, "EOF")))

    def clear(self) -> None:
        """Count from here."""
        self.sent.clear()
        self.by_rank.clear()
        self.size_bytes = 0

    def _tick(self, rank: int) -> None:
        if self.alive[rank] and rank not in self.ended:
            self._step(rank, m.Tick())
            self.at(TICK_S, lambda: self._tick(rank))

    def _step(self, rank: int, event: m.Event) -> None:
        if not self.alive[rank] or rank in self.ended:
            return
        for action in self.machines[rank].step(event, self.now):
            self._do(rank, action)
        if self.machines[rank].state in {m.Stage.SAVE, m.Stage.SEAL, m.Stage.ENDED}:
            self.agreed.setdefault(rank, self.now)

    def _do(self, rank: int, action: m.Action) -> None:
        match action:
            case m.Send(to, message):
                for other in to:
                    self._send(rank, other, message)
            case m.TakeVote(view):
                self.agreed.pop(rank, None)
                rests = self._frozen.setdefault(rank, self.now + GRACE_S)
                self.rounds.add(view.name)
                self.at(max(0.001, rests - self.now), lambda: self._step(rank, m.Voted(view, self._vote(rank))))
            case m.Write(view, decision):
                own = [owner for _, writers in decision.writers for owner, writer in enumerate(writers) if writer == rank]
                files = tuple(File(f"{view.name}/small-{owner}-c{STEPS}-{STEPS}", 16384, bytes(16)) for owner in own)
                self.at(WRITE_S * (0.5 + self._random.random()), lambda: self._step(rank, m.Saved(view, files)))
            case m.Seal(view, decision, _, _):
                self.at(SEAL_S, lambda: self._seal(rank, view, decision))
            case m.EndProcess(committed):
                self.ended[rank] = committed
            case m.Drop():
                pass

    def _seal(self, rank: int, view: Any, decision: Any) -> None:
        if self.alive[rank]:
            if decision is not None and self.manifest is None:
                self.manifest = view.name
            self._step(rank, m.Sealed(view, self.manifest))

    def _send(self, rank: int, other: int, message: Any) -> None:
        size = self._size(message)
        self.sent[type(message).__name__] += 1
        self.size_bytes += size
        self.by_rank[rank] += 1
        self.by_rank[other] += 1
        if not self.alive[other]:
            self.at(0.001, lambda: self._step(rank, m.RankLost(other, "refused")))
            return
        way = (0.0001 if rank // PER_NODE == other // PER_NODE else 0.0005) * (0.5 + self._random.expovariate(1.0))
        if (rank, other) not in self._last and other not in self.machines[rank].near:
            way *= 3
        if self._random.random() < self.loss:
            way += RESENT_S
        self._busy[rank] = max(self._busy[rank], self.now) + HANDLING_S
        arrives = max(self._busy[rank] + way, self._last.get((rank, other), 0.0))
        self._last[rank, other] = arrives
        self.at(arrives - self.now, lambda: self._arrive(rank, other, message))

    def _arrive(self, rank: int, other: int, message: Any) -> None:
        done = max(self._busy[other], self.now) + HANDLING_S
        self._busy[other] = done
        self.at(done - self.now, lambda: self._step(other, m.Heard(rank, message)))

    def _size(self, message: Any) -> int:
        kept = self._sizes.get(id(message))
        if kept is None or kept[0] is not message:
            kept = self._sizes[id(message)] = message, len(pack(message))
        return kept[1]

    def _vote(self, rank: int) -> Vote:
        """All small states of its node, at the four points that a rank keeps."""
        first = rank - rank % PER_NODE
        points = tuple(sorted(StatePoint(step, step, kind) for step in (STEPS - 1, STEPS) for kind in ("c", "d")))  # type: ignore[arg-type]
        return Vote(STEPS, bytes(16), tuple((owner, points) for owner in range(first, min(first + PER_NODE, self.world))))


def _one(ranks: Sequence[int]) -> Callable[[Simulation], None]:
    return lambda simulation: simulation.kill(ranks)


def _chief_later(after_s: float) -> Callable[[Simulation], None]:
    def fail(simulation: Simulation) -> None:
        simulation.kill([simulation.world // 2])
        simulation.at(after_s, lambda: simulation.kill([0]))

    return fail


def failures(world: int) -> dict[str, Callable[[Simulation], None]]:
    """Return what is tried, by name."""
    tried = {
        "a rank dies": _one([world // 2]),
        "the chief dies": _one([0]),
        "the chief dies while votes come in": _chief_later(GRACE_S + EOF_S + 0.02),
        "the chief dies while parts are written": _chief_later(GRACE_S + EOF_S + 0.1),
        "an error, or SIGTERM": lambda simulation: simulation._step(world // 2, m.Trouble("error")),
    }
    if world > PER_NODE:
        tried["a node of 8 loses 6"] = _one(range(PER_NODE, PER_NODE + 6))
    return tried


def simulate(world: int, fail: Callable[[Simulation], None], loss: float, seed: int) -> Result:
    """Let a job run for a second, and fail."""
    simulation = Simulation(world, loss, seed)
    simulation.run(1.0)
    simulation.clear()
    began = simulation.now
    fail(simulation)
    simulation.run(60.0)
    assert simulation.is_over(), "it does not end"
    living = [rank for rank in range(world) if simulation.alive[rank]]
    assert {simulation.ended[rank] for rank in living} == {simulation.manifest}, "they do not agree"
    return Result(
        max(simulation.agreed[rank] for rank in living) - began,
        simulation.now - began,
        simulation.sent.total() - simulation.sent[Beat.__name__],
        simulation.size_bytes,
        max(simulation.by_rank.values()),
        sum(simulation.ended[rank] is not None for rank in living),
        len(living),
        len(simulation.rounds),
    )


def steady(world: int) -> tuple[float, float]:
    """Return messages and bytes that a rank sends in a second while nothing fails."""
    simulation = Simulation(world, 0.0, 0)
    simulation.run(1.0)
    simulation.clear()
    simulation.run(3.0)
    return simulation.sent.total() / world / 2, simulation.size_bytes / world / 2


def main(arguments: Sequence[str]) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", default="3,16,128,1024")
    parser.add_argument("--losses", default="0,0.01")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    rows = []
    print("| ranks | lost packets | what happens | agreed | over | messages | kB | busiest rank | rounds |")
    print("|---|---|---|---|---|---|---|---|---|")
    for world in map(int, options.worlds.split(",")):
        messages, size = steady(world)
        print(f"| {world} | | nothing: each rank sends, a second | | | {messages:.0f} | {size / 1000:.2f} | | |", flush=True)
        for loss in map(float, options.losses.split(",")):
            for name, fail in failures(world).items():
                result = simulate(world, fail, loss, options.seed)
                rows.append({"world": world, "loss": loss, "failure": name} | vars(result))
                print(
                    f"| {world} | {loss:.0%} | {name} | {result.agreed_s:.2f} s | {result.over_s:.2f} s | {result.messages:,} "
                    f"| {result.size_bytes / 1000:,.1f} | {result.busiest:,} | {result.rounds} |",
                    flush=True,
                )
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
