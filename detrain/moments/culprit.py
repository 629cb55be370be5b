"""The search for the added statement that changes the training, by runs with some of the additions and with none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from detrain.base.cursor import Address, Cursor, written
from detrain.moments.additions_since import Added
from detrain.moments.past_run import PastRun
from detrain.moments.replays import Replay, Replays, Stretch, before, key_of, starts_at
from detrain.store import read
from detrain.verify.state_diff import Difference, compare

_MOST_STATES: Final = 32
"""The number of checkpoints that a run with the additions, and one without, take in each round of the search."""


@dataclass(frozen=True)
class Culprit:
    """A change of the training, and the added statement that causes it."""

    where: str
    """The place of the change in words: `at 1:3`."""
    what: str
    """The first value that differs."""
    statement: str
    """The statement with its file and line; empty if it is not known."""
    is_without: bool = False
    """True if the training differs from the run even without any addition."""


def find_culprit(run: PastRun, added: Added, replays: Replays, stretch: Stretch) -> Culprit:
    """Find the first batch after which a run of a stretch with the additions has another state than one without, and
    the first added statement that makes them differ.

    Raises the errors of `Replays.run`.
    """
    search = _Search(run, replays, stretch, [at for at in run.batches if starts_at(stretch) <= at and before(stretch, at)])
    search.narrow()
    if search.is_without or not search.what:
        return Culprit(search.where(), search.what, "", search.is_without)
    return Culprit(search.where(), search.what, search.statement(added))


class _Search:
    """A bisection: the additions change the state before batch number `high`, and not the state before `low`."""

    def __init__(self, run: PastRun, replays: Replays, stretch: Stretch, batches: list[Address]) -> None:
        self._run, self._replays, self._stretch, self._batches = run, replays, stretch, batches
        self.low, self.high = 0, len(batches)
        self.what, self.is_without = "", False

    def narrow(self) -> None:
        """Bring `low` and `high` as close together as checkpoints allow."""
        step = self.high
        while step > 1:
            step = -(-(self.high - self.low) // _MOST_STATES)
            places = [*range(self.low + step, self.high, step), self.high]
            without, whole = self._replays.run([self._part(places, 0), self._part(places, None)])
            if not self.what and (found := self._unlike_run(without)):
                self.what, self.is_without = found, True
                return
            for place in places:
                found, is_known = self._unlike(without, whole, place)
                if found:
                    self.what, self.high = found, place
                    break
                self.low = place if is_known else self.low
            else:
                return

    def where(self) -> str:
        """Return in words the place where the states begin to differ."""
        if not self._batches:
            return "behind the last batch"
        first, last = self._batches[self.low], self._batches[self.high - 1]
        is_at_start = self.low == 0 and self._stretch.since is None
        before_it = ", or before it" if is_at_start else ""
        return f"at {written(last)}{before_it}" if first == last else f"between {written(first)} and {written(last)}{before_it}"

    def statement(self, added: Added) -> str:
        """Return the first addition that, with all before it, changes the state; empty if it is not known."""
        statements, low = added.statements, 0
        high = len(statements)
        without = self._replays.run([self._part([self.high], 0)]) if high > 1 else []
        while high - low > 1:
            middle = (low + high) // 2
            (some,) = self._replays.run([self._part([self.high], middle)])
            found, is_known = self._unlike(without[0], some, self.high)
            if not found and not is_known:
                return ""
            low, high = (low, middle) if found else (middle, high)
        file, statement = statements[high - 1]
        return f"{file.name}:{statement.line}: {statement.text}"

    def _part(self, places: list[int], kept: int | None) -> Stretch:
        cuts = [self._cut(place) for place in places]
        starts = [Cursor(*at) for at in self._batches if at[1] > 0 and at[2] == 0]  # a cut inside an epoch needs the epoch's start
        return Stretch(self._stretch.since, cuts[-1], (*starts, *cuts), kept, self._batches[places[-1] - 1])

    def _cut(self, place: int) -> Cursor:
        """Return the cut at which the state before a batch can be taken; after the last batch, the stretch's end."""
        if place == len(self._batches):
            phase, epoch, _batch = self._batches[-1]
            return self._stretch.end or Cursor(phase, epoch + 1, 0, "end")
        phase, epoch, batch = self._batches[place]
        if batch or not epoch:
            return Cursor(phase, epoch, batch, "load")
        return Cursor(phase, epoch, 0)

    def _unlike(self, one: Replay, other: Replay, place: int) -> tuple[str, bool]:
        """Return how the states before a batch differ in two replays (empty: not at all), and True if that is known."""
        for at in self._batches[self.low : place]:
            if one.batches.get(at) != other.batches.get(at):
                return f"batch {written(at)} is {'another one' if at in other.batches else 'not loaded any more'}", True
        key = key_of(self._cut(place))
        if key not in one.states or key not in other.states:
            return "", False
        found = of_training(compare(read(one.states[key]), read(other.states[key])))
        return (f"{found[0].what} {found[0]}" if found else ""), True

    def _unlike_run(self, replay: Replay) -> str:
        for at in self._batches:
            if replay.batches.get(at) != self._run.batches[at]:
                return f"batch {written(at)}"
        for entry in self._run.entries:
            key = key_of(entry.cursor)
            if entry.cursor.key() > self._cut(self.low).key() and key in replay.states:
                found = of_training(compare(read(entry.path), read(replay.states[key])))
                if found:
                    return f"{found[0].what} {found[0]}"
        return ""


def of_training(found: Sequence[Difference]) -> list[Difference]:
    """Return the differences that concern the training. Those of Python values do not: additions may change these."""
    return [each for each in found if each.what != "value" and not each.is_unused and not each.why.startswith("only in")]
