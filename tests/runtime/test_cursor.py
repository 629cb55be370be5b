"""Cursors: how they read, and that they sort in the order in which a run reaches them."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detrain.base.cursor import Cursor, Cut

CUTS: list[Cut] = ["epoch", "load", "batch", "end"]


def cuts_of_a_run(phases: int, epochs: int, batches: int) -> list[Cursor]:
    """Every cut in the order in which the probes of a run come (an epoch loop around a batch
    loop, run once a phase).
    """
    found = []
    for phase in range(phases):
        for epoch in range(epochs):
            found.append(Cursor(phase, epoch, 0, "epoch"))
            for batch in range(batches):
                found += [Cursor(phase, epoch, batch, "load"), Cursor(phase, epoch, batch, "batch")]
        found.append(Cursor(phase, epochs, 0, "end"))
    return found


@given(st.randoms(use_true_random=False), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))
def test_sorting_by_key_gives_the_order_of_the_run(random, phases, epochs, batches):
    expected = cuts_of_a_run(phases, epochs, batches)
    shuffled = random.sample(expected, len(expected))
    assert sorted(shuffled, key=Cursor.key) == expected


def test_no_two_cuts_have_the_same_key():
    cuts = cuts_of_a_run(2, 3, 4)
    assert all(a.key() != b.key() for a, b in itertools.combinations(cuts, 2))


@pytest.mark.parametrize(
    ("cursor", "text"), [(Cursor(0, 3, 17, "load"), "3:17"), (Cursor(1, 3, 17), "1/3:17"), (Cursor(0, 0, 0), "0:0")]
)
def test_the_phase_is_written_only_where_there_is_more_than_one(cursor, text):
    assert str(cursor) == text
