"""Which places of a compiled function have faults put in together: compiling takes far longer than a trial does, and so
one copy of the function serves the trials of many sites.

Which these are depends on the function and on the site alone, and not on what else a process tries. So a fault that is
done again by itself is done in the same copy as among thousands. Unarmed, a copy is to give the bits that the program's
own function gives, for the inputs of the step that is hit. Where it does not, one with the
site alone is taken.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Final, TypeVar

_SIZE: Final = 8
"""How many places a copy has. With 32 of them, half and more of the copies that were tried had other bits unarmed."""

Place = TypeVar("Place", bound=Hashable)


def copies(together: Sequence[Place], wanted: Sequence[Place]) -> Iterator[tuple[Place, ...]]:
    """Yield the places that are in a copy with the wanted ones, and then these alone.

    `together`: all those of the function that can share a copy, in its order; wanted others are by themselves.
    """
    number = {place: at for at, place in enumerate(together)}
    if all(place in number for place in wanted):
        blocks = sorted({number[place] // _SIZE for place in wanted})
        yield tuple(place for block in blocks for place in together[block * _SIZE :][:_SIZE])
    yield tuple(wanted)
