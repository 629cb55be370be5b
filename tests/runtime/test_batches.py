"""Digests of batches and of what bodies fetch: on record in order, compared with the first run's, and few of them
waiting.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from detrain.base.errors import Diverged
from detrain.python.loaders.batch_digests import Batches
from detrain.store.journal import Journal, read_batches


class Constant:
    """What no body can change."""

    def __init__(self, value: float, size: int = 4) -> None:
        self.array = np.full(size, value)


def _to_array(value: object) -> np.ndarray | None:
    return value.array if isinstance(value, Constant) else None


def _batches(journal: Journal) -> Batches:
    batches = Batches(journal, _to_array, may_differ=False)
    batches.register_immutable(Constant)
    return batches


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal(tmp_path / "journal", 0)
    yield journal
    journal.close()


def test_what_a_body_fetches_is_a_part_of_its_batch_and_counted_anew_where_it_is_run_again(
    tmp_path: Path, journal: Journal
) -> None:
    batches = _batches(journal)
    for fetched in ((1.0, 2.0), (3.0,), (3.0,)):  # the last one again: a way back of one step
        number = 0 if fetched[0] == 1 else 1
        batches.add((0, 0, number), number)
        for value in fetched:
            batches.add_fetched((0, 0, number), Constant(value))
    batches.record_waiting()
    journal.flush()

    known = Journal(tmp_path / "journal", journal.size)
    assert list(known.fetched) == [(0, 0, 0, 0), (0, 0, 0, 1), (0, 0, 1, 0)]
    digests = read_batches(tmp_path / "journal")
    assert list(digests) == [(0, 0, 0), (0, 0, 1)]
    assert all(digests[address] != known.batches[address] for address in digests)
    again = _batches(known)
    again.add((0, 0, 0), 0)
    again.add_fetched((0, 0, 0), Constant(1.0))
    with pytest.raises(Diverged, match="batch 0:0 has digest"):
        again.add_fetched((0, 0, 0), Constant(7.0))
    again.may_differ = True
    again.add_fetched((0, 0, 0), Constant(8.0))
    known.close()


def test_the_first_batch_behind_a_checkpoint_is_on_record_at_once_with_what_its_body_fetches(journal: Journal) -> None:
    batches = _batches(journal)
    for number in range(40):
        batches.add((0, 0, number), number)
    batches.record_next_at_once()
    sizes = []
    for act in (lambda: batches.add((0, 0, 40), 40), lambda: batches.add_fetched((0, 0, 40), Constant(1.0))):
        before = journal.size
        act()
        sizes.append(journal.size - before)

    assert min(sizes) > 0


def test_large_batches_do_not_wait_because_what_their_bodies_fetch_is_small(journal: Journal) -> None:
    batches = _batches(journal)
    most = 0
    for number in range(70):
        batches.add((0, 0, number), Constant(1.0, size=1 << 18))  # 2 MB
        batches.add_fetched((0, 0, number), Constant(2.0))
        most = max(most, len(batches._waiting))

    assert most <= 2


def _recorded(tmp_path: Path, journal: Journal, *addresses: tuple[int, int, int]) -> Journal:
    """Return the journal as a resumed run reads it, with batches of one number at these addresses."""
    batches = _batches(journal)
    for address in addresses:
        batches.add(address, 1.0)
    batches.record_waiting()
    journal.flush()
    return Journal(tmp_path / "journal", journal.size)


def test_a_batch_that_is_loaded_again_on_the_way_to_a_checkpoint_is_compared(tmp_path: Path, journal: Journal) -> None:
    known = _recorded(tmp_path, journal, (0, 0, 0), (0, 0, 1))
    again = _batches(known)
    again.compare((0, 0, 0), 1.0)
    with pytest.raises(Diverged, match="batch 0:1 has digest"):
        again.compare((0, 0, 1), 2.0)
    again.compare((0, 0, 0), 2.0, is_by_body=True)
    again.be_at((0, 0, 1))  # the batch behind the cut is on record: it will tell
    again.compare((0, 0, 0), 2.0, is_by_body=True)
    with pytest.raises(Diverged, match="batch 0:0 has digest"):
        again.be_at((0, 0, 2))
    again.begin_fetch((0, 0, 1), is_again=True)
    assert not again.note_fetched([np.ones(2)], is_whole=True)
    with pytest.raises(Diverged, match="batch 0:1 has digest"):
        again.end_fetch()
    assert known.size == journal.size  # nothing was recorded anew


def test_an_epoch_that_trains_less_or_more_than_it_did_is_an_error(tmp_path: Path, journal: Journal) -> None:
    known = _recorded(tmp_path, journal, (0, 0, 0), (0, 0, 1), (0, 1, 0))
    empty = _batches(known)
    with pytest.raises(Diverged, match="epoch 0 has ended before 0:0; the first run had a batch there"):
        empty.require_end(empty.behind(0, 0))

    shorter = _batches(known)
    shorter.add((0, 0, 0), 1.0)
    with pytest.raises(Diverged, match="epoch 0 has ended before 0:1"):
        shorter.require_end(shorter.behind(0, 0))

    longer = _batches(known)
    for batch in range(2):
        longer.add((0, 0, batch), 1.0)
    longer.require_end(longer.behind(0, 0))
    with pytest.raises(Diverged, match="epoch 0 goes on with batch 0:2; in the first run it had ended before it"):
        longer.add((0, 0, 2), 1.0)

    left = _batches(known)
    left.add((0, 0, 0), 1.0)
    with pytest.raises(Diverged, match="phase 0 was left before 0:1; the first run went on to 1:0"):
        left.require_phase_end(0)
    left.require_phase_end(1)

    sought = _batches(known)  # the last epoch on record may go on: the first run was killed in it
    sought.be_at((0, 1, 1))
    sought.require_end(sought.behind(0, 1))
    sought.add((0, 1, 1), 1.0)
