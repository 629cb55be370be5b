"""Where a program is killed that is to be proved: at each kind of cut before twice at any."""

from __future__ import annotations

import random

import pytest

from detrain.base.cursor import Address
from detrain.verify.verification import places_to_kill


def run(*phases: list[int]) -> list[Address]:
    """The batches of a run: for each phase the lengths of its epochs."""
    return [
        (phase, epoch, batch)
        for phase, lengths in enumerate(phases)
        for epoch, length in enumerate(lengths)
        for batch in range(length)
    ]


@pytest.mark.parametrize("seed", range(20))
def test_two_kills_fall_at_the_start_of_an_early_epoch_and_inside_the_second_pass(seed: int) -> None:
    batches = run([14] * 4)

    start, inside = sorted((batches[at] for at in places_to_kill(batches, 2, random.Random(seed))), key=lambda each: each[2])

    assert (start[1] in (1, 2), start[2]) == (True, 0)
    assert (inside[1], inside[2] > 0) == (1, True)


@pytest.mark.parametrize("seed", range(20))
def test_an_epoch_of_another_length_and_a_second_loop_come_next(seed: int) -> None:
    batches = run([6, 6, 2, 6], [3, 3])

    chosen = [batches[at] for at in places_to_kill(batches, 4, random.Random(seed))]

    assert any(each[:2] == (0, 2) for each in chosen)
    assert (1, 0, 0) in chosen


@pytest.mark.parametrize(("batches", "kills", "count"), [(run([1]), 3, 0), (run([2]), 3, 1), (run([5]), 2, 2), (run([3, 3]), 9, 5)])
def test_no_cut_is_taken_twice_and_the_start_never(batches: list[Address], kills: int, count: int) -> None:
    chosen = places_to_kill(batches, kills, random.Random(0))

    assert chosen == sorted(set(chosen))
    assert len(chosen) == count
    assert 0 not in chosen
