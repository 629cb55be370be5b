"""Some mutations of files that are right, without a coverage-guided fuzzer; more with --slow."""

from __future__ import annotations

import pytest

from tests.fuzz import TARGETS, run, seeds, tried


@pytest.mark.parametrize("count", [200, pytest.param(20_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("target", TARGETS)
def test_any_bytes_are_read_or_refused(target: str, count: int) -> None:
    for data in seeds(target):
        tried(target, data)
    run(target, count, seed=1)
