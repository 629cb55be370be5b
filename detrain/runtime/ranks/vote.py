"""The decision, from the votes of the living ranks, which state is saved and who writes it. Pure: no I/O, no clock, no
order of arrival.

The *big* state (weights, the optimizer's tensors) is equal on all ranks that have done equally many steps, and changes
only inside a step. The *small* state (random streams, loader, Python) is each rank's own. A rank publishes its small
state at two kinds of points: `c`, a cut, and `d`, the entry of a step. No rank enters a step before all have published
their `d` of it: so the numbers of steps done differ by at most one, and if they do, the `d` of all ranks exist.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec


class StatePoint(msgspec.Struct, frozen=True, array_like=True, order=True):
    """A point at which a rank has published its small state. `steps`: number of steps done before it. `cut`: the number
    of its cut (for `d`, of the last cut before it).
    """

    steps: int
    cut: int
    kind: Literal["c", "d"]

    @property
    def done(self) -> int:
        """The number of steps done in the big state that belongs to it: at `d`, this counts the step that begins."""
        return self.steps + (self.kind == "d")

    @property
    def name(self) -> str:
        """The point's name in messages and file names: `c7-9`."""
        return f"{self.kind}{self.steps}-{self.cut}"


class Vote(msgspec.Struct, frozen=True, array_like=True):
    """The states that one rank has, while its own program rests."""

    done: int
    """Number of steps done."""
    state: bytes | None
    """Digest of the big state, or empty if none is taken; None if the big state is not that of a step's end."""
    holds: tuple[tuple[int, tuple[StatePoint, ...]], ...]
    """The points of the small states that this rank can read, by owner: its own and others'."""


class Decision(msgspec.Struct, frozen=True, array_like=True):
    """The decision to save the big state of `saver`, and the small states that `writers` write."""

    point: StatePoint
    base: StatePoint
    """The cut from which the program runs up to `point`; the point itself if that is a cut."""
    saver: int
    writers: tuple[tuple[StatePoint, tuple[int, ...]], ...]
    """By point, for each rank, the rank that writes its small state."""

    def all_writers(self) -> frozenset[int]:
        """Return all ranks that write a part."""
        return frozenset({self.saver}.union(*(ranks for _, ranks in self.writers)))


class NoPoint(msgspec.Struct, frozen=True, array_like=True):
    """The result that no exact state can be saved, and the reason."""

    reason: str


def decide(votes: Mapping[int, Vote], world: int, unable: Iterable[int] = ()) -> Decision | NoPoint:
    """Return the newest point that exists whole among the voters. `unable`: the ranks with a failed disk.

    For one big state, the cut after it is preferred to the entry of the step that made it.
    """
    able = frozenset(votes) - frozenset(unable)
    clean = {rank: vote for rank, vote in votes.items() if vote.state is not None}
    if not able:
        return NoPoint("no rank that is left can write")
    if not clean:
        return NoPoint("no rank that is left has a state that is the end of a step")
    holders = _holders(votes, able)
    reasons = []
    for done in sorted({vote.done for vote in clean.values()}, reverse=True):
        saver = _saver({rank: vote for rank, vote in clean.items() if vote.done == done}, able)
        if isinstance(saver, str):
            reasons.append(f"{saver} after {done} steps")
            continue
        found = _point(holders, done, world)
        if isinstance(found, str):
            reasons.append(found)
            continue
        point, base = found
        return Decision(point, base, saver, tuple((each, _writers(holders[each], world)) for each in sorted({base, point})))
    return NoPoint("; ".join(reasons))


_StateHolders = dict[StatePoint, dict[int, set[int]]]
"""By point and owner, the ranks that can write the small state."""


def _holders(votes: Mapping[int, Vote], able: frozenset[int]) -> _StateHolders:
    holders: _StateHolders = {}
    for rank in sorted(able):
        for owner, points in votes[rank].holds:
            for point in points:
                holders.setdefault(point, {}).setdefault(owner, set()).add(rank)
    return holders


def _saver(clean: Mapping[int, Vote], able: frozenset[int]) -> int | str:
    """Return the lowest rank with the big state that most ranks have, or the reason why there is none."""
    states = Counter(vote.state for vote in clean.values()).most_common(2)
    if len(states) == 2 and states[0][1] == states[1][1]:
        return "replicas differ, and none has the majority,"
    candidates = [rank for rank, vote in clean.items() if vote.state == states[0][0] and rank in able]
    return min(candidates) if candidates else "no rank can write the state"


def _point(holders: _StateHolders, done: int, world: int) -> tuple[StatePoint, StatePoint] | str:
    """Return the newest point of a big state, and its base, or the reason why there is none."""
    fitting = sorted((point for point in holders if point.done == done), key=lambda point: (point.kind == "c", point), reverse=True)
    for point in fitting:
        base = point if point.kind == "c" else _base(holders, point)
        if base is not None and len(holders[point]) == len(holders[base]) == world:
            return point, base
    if not fitting:
        return f"no small state of any rank after {done} steps" + (": the first cut has not been reached" if done == 0 else "")
    missing = sorted(set(range(world)) - set(holders[fitting[0]]))
    return f"after {done} steps, the small states of {_some_ranks(missing)} are lost"


def _base(holders: _StateHolders, entry: StatePoint) -> StatePoint | None:
    return next((point for point in holders if point.kind == "c" and point.cut == entry.cut), None)


def _writers(owners: Mapping[int, set[int]], world: int) -> tuple[int, ...]:
    return tuple(owner if owner in owners[owner] else min(owners[owner]) for owner in range(world))


def _some_ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"
