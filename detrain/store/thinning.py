"""Which checkpoints of a run stay within a number of bytes, so that they are spread evenly over its steps."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import msgspec


class Held(msgspec.Struct, frozen=True):
    """A checkpoint of a run."""

    step: int
    """How many batches were done."""
    size_bytes: int
    rests_on: int | None = None
    """The number of the one that must stay with it, among those before."""


def thinned(held: Sequence[Held], needed: Collection[int], most_bytes: int) -> list[int]:
    """Return the numbers of the checkpoints that stay, given in the order of the run: all that are `needed`, and of the
    others as many as fit into so many bytes with them.

    As they come one by one, and none comes back, the one goes that leaves the smallest gap in steps behind.
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
