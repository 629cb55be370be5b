"""What checkpoints cost is said where it is much of the run's time, once."""

from __future__ import annotations

import pytest

from detrain.base.options import Every
from detrain.runtime.session.saves import Cost


def said(every: Every, save_s: float, between_s: float, saves: int = 50) -> list[str]:
    """Return the warnings of a run with saves that take so long, so long apart."""
    cost, now, found = Cost(), 100.0, []
    for _ in range(saves):
        found.append(cost.note(now, now + save_s, every))
        now += save_s + between_s
    return [warning for warning in found if warning is not None]


@pytest.mark.parametrize(
    ("every", "wanted"),
    [
        (Every(1, "epochs"), "--every 10 or"),
        (Every(3, "epochs"), "--every 30 or"),
        (Every(50, "batches"), "--every 500b or"),
    ],
)
def test_it_is_said_once_with_what_to_do(every: Every, wanted: str) -> None:
    (warning,) = said(every, 1.0, 1.3)
    assert "1.0 s each" in warning
    assert wanted in warning


@pytest.mark.parametrize(
    ("save_s", "between_s", "saves"),
    [(1.0, 9.0, 50), (0.05, 0.01, 50), (3.0, 1.0, 3)],
    ids=["a tenth of the time", "two seconds in all", "three saves"],
)
def test_what_is_little_is_not_said(save_s: float, between_s: float, saves: int) -> None:
    assert said(Every(1, "epochs"), save_s, between_s, saves) == []


def test_who_has_given_minutes_knows() -> None:
    assert said(Every(1, "minutes"), 10.0, 1.0) == []
