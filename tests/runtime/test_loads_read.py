"""What of a loader bodies change: found by when it changes, whoever leads to it."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from detrain.python.loaders.loads_read import LoadsRead

level = [0]


class Tracker:
    def __init__(self) -> None:
        self.losses, self.drawn, self.big = np.ones(8), 0, np.ones(1 << 20)


class Hard:
    def __init__(self, tracker: Tracker) -> None:
        self.tracker = tracker

    def __iter__(self) -> Iterator[int]:
        for _ in range(9):
            self.tracker.drawn += 1
            yield int(self.tracker.losses.argmax())


class Levelled:
    def __iter__(self) -> Iterator[int]:
        yield from (level[0] for _ in range(9))


class Ring:
    def __init__(self) -> None:
        self.items = collections.deque([1, 2, 3], maxlen=3)

    def take(self, at: int) -> int:
        return int(self.items[at % 3])


class OfLibrary:
    """Stands for a class of a library."""

    def __init__(self) -> None:
        self.shape = (2, 4)

    @functools.cached_property
    def size(self) -> int:
        return self.shape[0] * self.shape[1]


OfLibrary.__module__ = "json"


def drawing(tracker: Tracker) -> Iterator[int]:
    for _ in range(9):
        yield int(tracker.losses.argmax())


def closing_over(tracker: Tracker) -> Callable[[int], float]:
    def of(at: int) -> float:
        return float(tracker.losses[at % 8])

    return of


def nothing(_made: Any) -> None:
    """A body that changes nothing of what is read."""


def note_loss(made: Any) -> None:
    made.losses[3] += 1


def note_in_place(made: Any) -> None:
    made.big[70_000:] += 1


def harder(_made: Any) -> None:
    level[0] += 1


def push(made: Any) -> None:
    made.items.append(made.items[-1] + 1)


def loads_of(source: Any, made: Any, body: Callable[[Any], None]) -> list[str]:
    """Return what is found in an epoch of six batches."""
    reads, iterator = LoadsRead(), iter(source)
    reads.begin_epoch()
    for _batch in range(6):
        reads.at_head(source)
        next(iterator)
        reads.behind_load()
        body(made)
    return [each.partition(" (")[0] for each in reads.lost(source)]


def loaded(reads: LoadsRead, source: Any, count: int, first_body: int = 0) -> Iterator[int]:
    """Load batches, and yield the number of each where its body runs; before `first_body` they are loaded again."""
    iterator = iter(source)
    for batch in range(count):
        if batch >= first_body:
            reads.at_head(source)
        next(iterator)
        reads.behind_load()
        yield batch


@pytest.mark.parametrize(
    ("body", "found"), [(nothing, []), (note_loss, ["Tracker.losses"]), (note_in_place, ["Tracker.big"]), (harder, [])]
)
def test_what_bodies_change_of_what_a_sampler_leads_to(body: Callable[[Any], None], found: list[str]) -> None:
    """Its own count of draws moves, too, and loading the same again moves it alike."""
    tracker = Tracker()

    assert loads_of(Hard(tracker), tracker, body) == found


def test_what_stands_beside_an_object_in_a_list() -> None:
    drawn = Ring()
    drawn.items = [Tracker(), 1, 2, 3]  # type: ignore[assignment]

    def body(made: Any) -> None:
        made.items[1] += 1

    assert loads_of(map(drawn.take, [1] * 9), drawn, body) == ["Ring.items"]


def test_a_global_that_a_method_reads() -> None:
    assert loads_of(Levelled(), None, harder) == ["level"]


def test_what_functions_and_generators_lead_to() -> None:
    ring, tracker = Ring(), Tracker()

    assert loads_of(map(functools.partial(Ring.take, ring), range(9)), ring, push) == ["Ring.items"]
    assert loads_of(map(ring.take, range(9)), ring, push) == ["Ring.items"]
    assert loads_of(map(closing_over(tracker), range(9)), tracker, note_loss) == ["Tracker.losses"]
    assert loads_of(drawing(tracker), tracker, note_loss) == ["Tracker.losses"]


def test_what_an_object_of_a_library_computes_once_of_itself_is_no_change() -> None:
    tracker = Tracker()
    tracker.mesh = OfLibrary()  # type: ignore[attr-defined]

    def body(made: Any) -> None:
        assert made.mesh.size == 8

    assert loads_of(Hard(tracker), tracker, body) == []


def test_how_far_an_iterator_of_a_framework_is_its_position_says() -> None:
    """Its workers move by themselves: a warning advised `--every 1` where that was refused, too."""
    data = pytest.importorskip("torch.utils.data")
    tracker = Tracker()
    tracker.iterator = iter(data.DataLoader(range(9)))  # type: ignore[attr-defined]

    def body(made: Any) -> None:
        made.iterator._num_yielded += 1

    assert loads_of(Hard(tracker), tracker, body) == []


def test_another_source_of_the_same_class_is_no_change() -> None:
    """A loop in a function, run for training and for validation, had its data set named as changed by bodies."""
    reads, sources = LoadsRead(), (Hard(Tracker()), Hard(Tracker()))
    reads.begin_epoch()
    for source, loss in zip(sources, (0.0, 1.0), strict=True):
        source.tracker.losses += loss
        list(loaded(reads, source, 2))

    assert reads.lost(sources[1]) == []


def test_a_change_between_epochs_is_none_within_one() -> None:
    tracker, reads = Tracker(), LoadsRead()
    source = Hard(tracker)
    for _ in range(3):
        reads.begin_epoch()
        list(loaded(reads, source, 2))
        assert reads.lost(source) == []
        tracker.losses += 1


def test_a_change_in_a_late_body_is_seen_at_the_next_cut() -> None:
    tracker, reads = Tracker(), LoadsRead()
    source = Hard(tracker)
    reads.begin_epoch()
    for batch in loaded(reads, source, 8):
        tracker.losses[2] += batch == 6

    assert reads.lost(source) == ["Tracker.losses (loads read it, and bodies change it)"]


def test_who_changes_what_is_looked_at_from_the_first_body_that_runs() -> None:
    """A resumed run, whose first batches are loaded again, took what loads change for changed by bodies."""
    source, reads = Hard(Tracker()), LoadsRead()
    reads.begin_epoch()
    list(loaded(reads, source, 8, first_body=4))

    assert reads.lost(source) == []


def test_lists_that_hold_each_other_are_looked_at() -> None:
    nodes: list[Any] = []
    nodes.append({"next": nodes})
    reads = LoadsRead()
    reads.at_head(nodes)
    reads.behind_load()

    assert reads.lost(nodes) == []


def test_tensors_that_do_not_count_their_changes_are_looked_at() -> None:
    torch = pytest.importorskip("torch")
    tracker = Tracker()
    with torch.inference_mode():
        tracker.losses = torch.ones(3)
    source, reads = Hard(tracker), LoadsRead()
    reads.at_head(source)
    reads.behind_load()

    assert reads.lost(source) == []
