"""Where `detrain verify` kills: one place of each kind of cut before a second of any.

By chance alone most kills fall inside of long epochs; what goes wrong goes wrong at seams.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Final

from detrain.base.cursor import Address

_LATER: Final = 3
"""From this epoch on starts of epochs are of one kind."""


def places_to_kill(batches: Sequence[Address], kills: int, draw: random.Random) -> list[int]:
    """Return so many places, in order: the numbers in `batches` (of the whole run, in order) of those before which to
    kill; never the first.
    """
    lengths: dict[tuple[int, int], int] = {}
    for phase, epoch, _batch in batches:
        lengths[phase, epoch] = lengths.get((phase, epoch), 0) + 1

    def is_other_length(phase: int, epoch: int) -> bool:
        return lengths[phase, epoch] != lengths.get((phase, 0), lengths[phase, epoch])

    kinds: list[Callable[[int, int, int], bool]] = [
        lambda _phase, epoch, batch: batch == 0 and 0 < epoch < _LATER,  # the start of an early epoch
        lambda _phase, epoch, batch: batch > 0 and epoch == 1,  # inside the second pass over the data
        lambda phase, epoch, _batch: is_other_length(phase, epoch),  # an epoch of another length than the first
        lambda phase, epoch, batch: batch == 0 and epoch == 0 and phase > 0,  # another training loop
        lambda _phase, epoch, batch: batch == 0 and epoch >= _LATER,
        lambda _phase, epoch, batch: batch > 0 and epoch == 0,
        lambda _phase, epoch, batch: batch > 0 and epoch > 1,
    ]
    of_kinds = [[at for at, address in enumerate(batches) if at and kind(*address)] for kind in kinds]
    chosen: list[int] = []
    for places in itertools.cycle(of_kinds):
        if len(chosen) >= min(kills, len(batches) - 1):
            return sorted(chosen)
        left = [at for at in places if at not in chosen]
        chosen += [draw.choice(left)] if left else []
    raise AssertionError("a cycle has no end")
