"""Processes are killed at random moments of saves; every checkpoint that was acknowledged is found again, with its
bits.
"""

from __future__ import annotations

import ast

import pytest

from tests.e2e.runs import said_by


@pytest.mark.parametrize("kills", [60, pytest.param(600, marks=pytest.mark.slow)])
def test_every_checkpoint_that_was_saved_survives_kills(kills: int) -> None:
    said = said_by("store.torture", kills, 1)
    print(said)
    counts = ast.literal_eval(said)
    assert counts["kills"] == kills
    assert counts["in a save"] > kills // 2
    assert counts["temporary file left"] > kills // 20
