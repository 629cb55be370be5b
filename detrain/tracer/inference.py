"""Infer the loops from what was seen: in which loops weights were updated, and when each loop turned.

Knows no frames and no files: events go in, phases come out. Rules:

- An update counts for the innermost loop around it. A loop each of whose runs updates everything once at most (over
  several optimizers, models or variables; over retries) is a part of the step, and the loop around it counts.
- The batch loop is the outermost loop for which updates count (a loop inside the body that also updates is a part of
  the body).
- The epoch loop is the loop around the batch loop whose turns run it again.
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
    """What was seen of one loop."""

    updates: int = 0
    """Updates inside it, at any depth."""
    runs: int = 0
    """Runs that are over and had updates."""
    first_run: int = 0
    """Updates in the first of them."""
    most_of_one: int = 0
    """The most updates that one updater made in one run."""
    updaters: set[int] = field(default_factory=set)
    in_run: collections.Counter[int] = field(default_factory=collections.Counter)

    def note(self, what: int, times: int) -> bool:
        """Count updates. Returns whether that tells something new of what kind of loop it is."""
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
        """The loop is entered anew, or the loop around it has turned. Returns whether that ends a run with updates."""
        if not self.in_run:
            return False
        self.runs += 1
        self.first_run = self.first_run or self.in_run.total()
        self.in_run.clear()
        return True


@dataclass(frozen=True, slots=True)
class Phase:
    """A batch loop, the loop around it, and what speaks for them."""

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
        """The phases as last found, until something that decides about them has changed."""
        self.has_news = False
        """Whether something was seen that may decide about the loops; whoever looks at it sets it back."""

    def update(self, nest: tuple[LoopKey, ...], what: int, times: int = 1) -> bool:
        """Weights were updated inside these loops, outermost first. Returns whether the loops were not known."""
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
        """Return whether another update by the same in this run of the loops would only be counted."""
        return all(self.records[key].in_run[what] > 1 for key in nest)

    def count(self, nest: tuple[LoopKey, ...], times: int = 1) -> None:
        """Weights were updated inside known loops, whose turns are not watched: this says
        nothing about what runs what.
        """
        self._nests[nest] += times
        for key in nest:
            self.records[key].updates += times

    def turn(self, key: LoopKey) -> bool:
        """The header of a loop was reached.

        Returns whether that can say anything: not where no loop is known inside.
        """
        for inner in self._inside[key]:
            self._end_run(inner)
        return bool(self._inside[key])

    def entered(self, key: LoopKey) -> None:
        """A loop was entered: it is run anew, and so are the loops inside it."""
        self.turn(key)
        self._end_run(key)

    @property
    def updates(self) -> int:
        """How many updates were seen."""
        return sum(self._nests.values())

    def phases(self) -> list[Phase]:
        """Return what the events say, in the order in which the phases were first seen."""
        return [
            Phase(batch, epoch, nest, self._is_sure(batch, epoch), self._evidence(batch, epoch))
            for batch, epoch, nest in self._phases()
        ]

    def is_sure(self) -> bool:
        """Return whether more of the same would not change the answer."""
        found = self._phases()
        return bool(found) and all(self._is_sure(batch, epoch) for batch, epoch, _nest in found)

    def knows_batch_loop(self) -> bool:
        """Return whether one loop has been seen to update repeatedly."""
        return any(self.records[batch].most_of_one > 1 for batch, _epoch, _nest in self._phases())

    def epochs(self) -> int:
        """Return how many epochs of one phase are over.

        Where turns are no longer watched, by the updates of the first epoch.
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
