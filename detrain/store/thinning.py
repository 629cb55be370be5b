"""The choice of checkpoints that stay within a number of bytes, spread evenly over a run's steps."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import msgspec


class Held(msgspec.Struct, frozen=True):
    """A checkpoint of a run."""

    step: int
    """The number of batches done."""
    size_bytes: int
    rests_on: int | None = None
    """The number of the earlier checkpoint that must stay with it."""


def thinned(held: Sequence[Held], needed: Collection[int], most_bytes: int) -> list[int]:
    """Return the numbers of the checkpoints that stay: all `needed` ones, and as many of the others as fit into
    `most_bytes` with them. `held` is in the order of the run.

    Checkpoints are removed one by one: each time the one whose removal leaves the smallest gap in steps. This suits a
    run, which adds checkpoints one by one and cannot get a removed one back.
    """
    chosen = list(range(len(held)))
    total = sum(each.size_bytes for each in held)
    while total > most_bytes:
        rested_on = {held[number].rests_on for number in chosen}
        steps = [0, *(held[number].step for number in chosen), math.inf]
        gaps = [
            (following - steps[place], number)
            for place, (number, following) in enumerate(zip(chosen, steps[2:], strict=True))
            if number not in needed and number not in rested_on
        ]
        if not gaps:
            break
        goes = min(gaps)[1]
        chosen.remove(goes)
        total -= held[goes].size_bytes
    return chosen
