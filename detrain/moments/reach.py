"""How far the steps of a run that is over are from its checkpoints, and what it costs to go there."""

from __future__ import annotations

import itertools
from bisect import bisect_left

import msgspec

from detrain.base.cursor import written
from detrain.moments.past_run import PastRun, address_of
from detrain.store import Catalogue
from detrain.store.chronicle import Event, Saved, Started


class Reach(msgspec.Struct, kw_only=True):
    """Epochs, one behind the other, that are gone to from one checkpoint before them, or each from some of its own."""

    first: str
    """The first of them, as cursors have it: `3`, or `1/3` where there is more than one loop."""
    last: str
    since: str | None
    """The checkpoint before them; empty: the run's start; None: there are checkpoints in each."""
    steps: int
    """How many are run to stand at the farthest."""


class Costs(msgspec.Struct, kw_only=True, frozen=True):
    """What a run's processes took, by its chronicle; None: it does not say so."""

    start_s: float | None
    """Until the first step."""
    step_s: float | None


def reach(run: PastRun) -> list[Reach]:
    """Return how far the steps of a run are from checkpoints, in its order."""
    batches, found = list(run.batches), list[Reach]()
    where = None
    for number, at in enumerate(batches):
        before = run.before(at)
        start = address_of(before[-1]) if before else None
        is_own = start is not None and start[:2] == at[:2]
        since = None if is_own else "" if start is None else written(start)
        steps = number - (0 if start is None else bisect_left(batches, start))
        epoch = written(at).rpartition(":")[0]
        if where is None or (where, found[-1].since) != (at[0], since):
            found.append(Reach(first=epoch, last=epoch, since=since, steps=steps))
        found[-1].last, found[-1].steps = epoch, max(found[-1].steps, steps)
        where = at[0]
    return found


def _median(values: list[float]) -> float:
    in_order, count = sorted(values), len(values)
    return (in_order[(count - 1) // 2] + in_order[count // 2]) / 2


def costs(run: PastRun) -> Costs:
    """Return what starting the program and a step have taken: of steps the median between two checkpoints."""
    events = Catalogue(run.home).chronicle(run.program.name, run.number).events()
    told = [event for event in events if isinstance(event, Started | Saved)]
    steps = [each for pair in itertools.pairwise(told) if (each := _step_s(*pair)) is not None]
    step_s = _median(steps) if steps else None
    starts = [
        saved.at - start.at - saved.batches_done * (step_s or 0)
        for start, saved in itertools.pairwise(told)
        if isinstance(start, Started) and isinstance(saved, Saved) and not start.since
    ]
    return Costs(start_s=max(starts[0], 0.0) if starts and step_s is not None else None, step_s=step_s)


def _step_s(one: Event, other: Event) -> float | None:
    """Return what a step took between two checkpoints of one process."""
    if not (isinstance(one, Saved) and isinstance(other, Saved)) or other.batches_done <= one.batches_done:
        return None
    return (other.at - one.at) / (other.batches_done - one.batches_done)
