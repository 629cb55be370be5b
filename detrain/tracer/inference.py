"""Infer the loops from events: in which loops weights were updated, and when each loop turned.

Knows no frames and no files: events go in, phases come out. Rules:

- An update counts for the innermost loop around it. If each run of a loop updates everything at most once (it goes over
  several optimizers, models or variables, or over retries), the loop is a part of the step, and the loop around it
  counts.
- The batch loop is the outermost loop for which updates count (a loop inside the body that also updates is a part of
  the body).
- The epoch loop is the loop around the batch loop: its turns run the batch loop again.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

LoopKey = tuple[str, int]
"""(file, one-based line of the loop's header)."""

_SMALL_RUNS: Final = 3
"""After so many runs with one update each, a loop is taken for a part of the step."""


@dataclass(slots=True)
class LoopRecord:
    """The record of one loop."""

    updates: int = 0
    """Number of updates inside it, at any depth."""
    runs: int = 0
    """Number of runs that are over and had updates."""
    first_run: int = 0
    """Number of updates in the first of them."""
    most_of_one: int = 0
    """The most updates that one updater made in one run."""
    updaters: set[int] = field(default_factory=set)
    in_run: collections.Counter[int] = field(default_factory=collections.Counter)

    def note(self, what: int, times: int) -> bool:
        """Count updates; return whether they bring news about the kind of the loop."""
        self.updates += times
        count = self.in_run[what] = self.in_run.get(what, 0) + times  # `+=` on a Counter takes three times as long
        is_news = what not in self.updaters
        if is_news:
            self.updaters.add(what)
        if count > self.most_of_one:
            is_news |= self.most_of_one < 2 <= count
            self.most_of_one = count
        return is_news

    def close_run(self) -> bool:
        """End a run, as the loop is entered anew or the loop around it has turned; return whether it had updates."""
        if not self.in_run:
            return False
        self.runs += 1
        self.first_run = self.first_run or self.in_run.total()
        self.in_run.clear()
        return True


@dataclass(frozen=True, slots=True)
class Phase:
    """A batch loop, the loop around it, and the evidence for them."""

    batch: LoopKey
    epoch: LoopKey | None
    nest: tuple[LoopKey, ...]
    """All loops around the update, outermost first."""
    is_sure: bool
    evidence: tuple[str, ...]


_Found = tuple[LoopKey, LoopKey | None, tuple[LoopKey, ...]]
"""Batch loop, epoch loop, and all loops around the update."""


class Inference:
    """Takes events in the order in which they happen."""

    def __init__(self) -> None:
        self.records: dict[LoopKey, LoopRecord] = collections.defaultdict(LoopRecord)
        self._nests: dict[tuple[LoopKey, ...], int] = {}
        self._inside: dict[LoopKey, set[LoopKey]] = collections.defaultdict(set)
        self._found: list[_Found] | None = None
        """The phases as last found; None once a record that decides about them has changed."""
        self.has_news = False
        """Whether an event came that may decide about the loops; the reader sets it back to False."""

    def update(self, nest: tuple[LoopKey, ...], what: int, times: int = 1) -> bool:
        """Note an update of weights inside these loops, outermost first; return whether the loops are new."""
        is_new = nest not in self._nests
        self._nests[nest] = self._nests.get(nest, 0) + times
        is_news = [self.records[key].note(what, times) for key in nest]
        if is_new:
            for index, key in enumerate(nest):
                self._inside[key].update(nest[index + 1 :])
        if is_new or any(is_news):
            self._changed()
        return is_new

    def is_repeating(self, nest: tuple[LoopKey, ...], what: int) -> bool:
        """Return whether another update by the same updater in this run of the loops would only be counted."""
        return all(self.records[key].in_run[what] > 1 for key in nest)

    def count(self, nest: tuple[LoopKey, ...], times: int = 1) -> None:
        """Count updates inside known loops. Their turns are not watched, so this says nothing about which loop runs
        which again.
        """
        self._nests[nest] += times
        for key in nest:
            self.records[key].updates += times

    def turn(self, key: LoopKey) -> bool:
        """Note that the program reached a loop's header.

        Returns whether that can bring news: only if a loop is known inside.
        """
        for inner in self._inside[key]:
            self._end_run(inner)
        return bool(self._inside[key])

    def entered(self, key: LoopKey) -> None:
        """Note that a loop was entered: a new run of it begins, and of the loops inside it."""
        self.turn(key)
        self._end_run(key)

    @property
    def updates(self) -> int:
        """The number of updates seen."""
        return sum(self._nests.values())

    def phases(self) -> list[Phase]:
        """Return the phases that the events show, in the order in which they were first seen."""
        return [
            Phase(batch, epoch, nest, self._is_sure(batch, epoch), self._evidence(batch, epoch))
            for batch, epoch, nest in self._phases()
        ]

    def is_sure(self) -> bool:
        """Return whether more events of the same kind would not change the answer."""
        found = self._phases()
        return bool(found) and all(self._is_sure(batch, epoch) for batch, epoch, _nest in found)

    def knows_batch_loop(self) -> bool:
        """Return whether one loop has been seen to update repeatedly."""
        return any(self.records[batch].most_of_one > 1 for batch, _epoch, _nest in self._phases())

    def epochs(self) -> int:
        """Return how many epochs of one phase are over.

        If turns are no longer watched, compute it from the number of updates in the first epoch.
        """
        records = [self.records[batch] for batch, _epoch, _nest in self._phases()]
        by_updates = [record.updates // record.first_run for record in records if record.first_run]
        return max([record.runs for record in records] + by_updates, default=0)

    def _end_run(self, key: LoopKey) -> None:
        if self.records[key].close_run():
            self._changed()

    def _changed(self) -> None:
        self._found, self.has_news = None, True

    def _phases(self) -> list[_Found]:
        if self._found is None:
            nests = [self._without_steps(nest) for nest in self._nests if nest]
            counted = {nest[-1] for nest in nests}
            found: dict[tuple[LoopKey, LoopKey | None], _Found] = {}
            for nest in nests:
                depth = next(index for index, key in enumerate(nest) if key in counted)
                batch, epoch = nest[depth], nest[depth - 1] if depth else None
                found.setdefault((batch, epoch), (batch, epoch, nest))
            self._found = list(found.values())
        return self._found

    def _without_steps(self, nest: tuple[LoopKey, ...]) -> tuple[LoopKey, ...]:
        while len(nest) > 1 and self._is_step(self.records[nest[-1]]):
            nest = nest[:-1]
        return nest

    def _is_step(self, record: LoopRecord) -> bool:
        is_single = record.most_of_one == 1
        return is_single and ((len(record.updaters) > 1 and record.runs >= 1) or record.runs >= _SMALL_RUNS)

    def _is_sure(self, batch: LoopKey, epoch: LoopKey | None) -> bool:
        record = self.records[batch]
        if epoch is None:
            return record.most_of_one > 1
        return record.most_of_one > 1 and record.runs + bool(record.in_run) > 1

    def _evidence(self, batch: LoopKey, epoch: LoopKey | None) -> tuple[str, ...]:
        record = self.records[batch]
        lines = [f"{record.updates} updates seen, up to {record.most_of_one} by one optimizer or function in one run of the loop"]
        if epoch is None:
            lines.append("no loop of the program is around it")
        elif record.runs:
            lines.append(f"the loop around it ran it again {_times(record.runs)}")
        else:
            lines.append("seen in one run of the loop only")
        return tuple(lines)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def nested(keys: Iterable[LoopKey]) -> tuple[LoopKey, ...]:
    """Return loops without repetitions (recursion, comprehensions), the innermost occurrence of each kept."""
    return tuple(reversed(dict.fromkeys(reversed(list(keys)))))
