"""Which places of a compiled function have faults put in together: compiling takes far longer than a trial does, and so
one copy of the function serves the trials of many sites.

Which these are depends on the function and on the site alone, and not on what else a process tries. So a fault that is
done again by itself is done in the same copy as among thousands. Unarmed, a copy is to give the bits that the program's
own function gives, for the inputs of the step that is hit. Where it does not, a smaller one is taken, in the end with
the site alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import TypeVar

Place = TypeVar("Place", bound=Hashable)


def copies(together: Sequence[Place], wanted: Sequence[Place], sizes: Sequence[int]) -> Iterator[tuple[Place, ...]]:
    """Yield the places that are in a copy with the wanted ones, from most to these alone.

    `together`: all those of the function that can share a copy, in its order; wanted others are by themselves. `sizes`:
    how many places a copy has, and the smaller one that is taken where that changes bits.
    """
    number = {place: at for at, place in enumerate(together)}
    for size in sizes if all(place in number for place in wanted) else ():
        blocks = sorted({number[place] // size for place in wanted})
        yield tuple(place for block in blocks for place in together[block * size :][:size])
    yield tuple(wanted)
