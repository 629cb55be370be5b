"""The choice of places of a compiled function that share one copy for faults: compiling takes far longer than a trial,
so one copy serves the trials of many sites.

The choice depends on the function and the site alone, not on the other trials of a process. So a fault that is repeated
by itself runs in the same copy as among thousands. Unarmed, a copy must give the bits that the program's own function
gives, for the inputs of the step that is hit. If it does not, a copy with the site alone is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Final, TypeVar

_SIZE: Final = 8
"""The number of places in a copy. With 32 places, half or more of the tested copies gave other bits unarmed."""

Place = TypeVar("Place", bound=Hashable)
heard: Final[list[Callable[[bool], None]]] = []
"""Called with True before copies are compiled and tried, and with False behind that."""


def copies(together: Sequence[Place], wanted: Sequence[Place]) -> Iterator[tuple[Place, ...]]:
    """Yield the places that share a copy with the wanted places, and then the wanted places alone.

    `together`: all places of the function that can share a copy, in the function's order; if a wanted place is not
    among them, only the wanted places alone are yielded.
    """
    number = {place: at for at, place in enumerate(together)}
    for hear in heard:
        hear(True)
    try:
        if all(place in number for place in wanted):
            blocks = sorted({number[place] // _SIZE for place in wanted})
            yield tuple(place for block in blocks for place in together[block * _SIZE :][:_SIZE])
        yield tuple(wanted)
    finally:
        for hear in heard:
            hear(False)
