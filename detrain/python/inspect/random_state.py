"""Random generators of Python and NumPy: their bit generators, and their whole state as plain data."""

from __future__ import annotations

import random
from typing import Any, Final

import numpy as np

STREAMS: Final = (random.Random, np.random.RandomState, np.random.Generator)
"""Generators that classes of the program may derive from."""
DRAWN_FROM: Final = (np.random.SeedSequence, np.random.BitGenerator, *STREAMS)
"""Classes of sources of random numbers and of their seeds."""
BIT_GENERATORS: Final = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")


def is_stream(value: object) -> bool:
    """Return whether an object is a random generator or a bit generator."""
    return isinstance(value, (np.random.BitGenerator, *STREAMS))


def bits_of(stream: Any) -> Any:
    """Return the bit generator of one of NumPy's generators."""
    return stream._bit_generator if isinstance(stream, np.random.RandomState) else stream.bit_generator


def state_of(stream: Any) -> Any:
    """Return the state of a generator as tuples, dicts, numbers and arrays. No method of a derived class is called."""
    if isinstance(stream, random.Random):
        return random.Random.getstate(stream)
    if isinstance(stream, np.random.RandomState):  # keeps the second of each pair of normal numbers beside its bits
        return np.random.RandomState.get_state(stream, legacy=False)
    return (stream if isinstance(stream, np.random.BitGenerator) else stream.bit_generator).state


def set_state(stream: Any, state: Any) -> None:
    """Set a generator to a state from `state_of`. Lists may stand in place of its tuples."""
    if isinstance(stream, random.Random):
        version, words, gauss = state
        random.Random.setstate(stream, (version, tuple(words), gauss))
    elif isinstance(stream, np.random.RandomState):
        np.random.RandomState.set_state(stream, state)
    else:
        (stream if isinstance(stream, np.random.BitGenerator) else stream.bit_generator).state = state
