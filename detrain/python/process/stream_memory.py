"""Whether a generator of random numbers has moved, by the bytes of its memory: that takes a microsecond, where to read
its state takes 15 (Python's) or 35 (NumPy's).

Where Python and NumPy have the state is found out once, by generators of our own whose state is known. Where it does
not come out as expected there is no mark, and states are read each time.
"""

from __future__ import annotations

import ctypes
import random
import struct
from functools import cache
from typing import Any, Final

import numpy as np

_BYTES: Final = 4 * 625
"""624 words and the position."""
_NORMAL: Final = struct.Struct("<i4xd")
"""In NumPy's generator: whether there is a spare Gaussian, and which."""


def mark_of_python(generator: object) -> tuple[bytes, object] | None:
    """Return what is another when a `random.Random` has moved: position and words, and the object that is its spare
    Gaussian. None where that is not known.
    """
    if type(generator) is not random.Random or not _knows_python():
        return None
    return ctypes.string_at(id(generator) + object.__basicsize__, _BYTES), generator.gauss_next  # type: ignore[attr-defined]


def mark_of_numpy(generator: Any) -> tuple[bytes, bytes] | None:
    """Return the same of a `RandomState` over a Mersenne Twister."""
    at = _place_of_gauss()
    if at is None or type(generator) is not np.random.RandomState or type(generator._bit_generator) is not np.random.MT19937:
        return None
    words = ctypes.string_at(generator._bit_generator.ctypes.state_address, _BYTES)
    return words, ctypes.string_at(id(generator) + at, _NORMAL.size)


@cache
def _knows_python() -> bool:
    known = random.Random(1)
    for _ in range(3):
        known.random()
    _version, state, _gauss = known.getstate()
    has_room = random.Random.__basicsize__ >= object.__basicsize__ + _BYTES
    return has_room and ctypes.string_at(id(known) + object.__basicsize__, _BYTES) == struct.pack("=625I", state[-1], *state[:-1])


@cache
def _place_of_gauss() -> int | None:
    """Return how far into a `RandomState` its spare Gaussian lies; None if its memory is not what is expected."""
    known = np.random.RandomState(1)
    places = set(range(0, np.random.RandomState.__basicsize__ - _NORMAL.size + 1, 8))
    for _ in range(4):
        known.standard_normal()
        state: Any = known.get_state(legacy=False)
        spare = bool(state["has_gauss"]), state["gauss"]
        places = {at for at in places if _spare_at(id(known) + at) == spare}
    words: Any = known._bit_generator
    expected = state["state"]["key"].tobytes() + struct.pack("=i", state["state"]["pos"])
    is_known = len(places) == 1 and ctypes.string_at(words.ctypes.state_address, _BYTES) == expected
    return places.pop() if is_known else None


def _spare_at(address: int) -> tuple[bool, float]:
    has, spare = _NORMAL.unpack(ctypes.string_at(address, _NORMAL.size))
    return bool(has), spare
