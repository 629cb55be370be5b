"""Seeds that the program sets itself, shifted by one number: as if the program had been written with others."""

from __future__ import annotations

import functools
import importlib
import numbers
from collections.abc import Iterable
from typing import Any, Final

OF_PYTHON: Final = (("random", "seed"), ("numpy.random", "seed"))
_NAMES: Final = ("seed", "a")
"""Of the seed, among their parameters."""
_WIDTH: Final = 1 << 32
"""Seeds from 0 to below this stay in that range, which is NumPy's."""


def shift(functions: Iterable[tuple[str, str]], by: int) -> None:
    """Have functions, by module and name, take a seed that is greater by a number than what they are given.

    A seed that is no number stays.
    """
    for module, name in functions:
        owner = importlib.import_module(module)
        setattr(owner, name, _shifted(getattr(owner, name), by))


def _shifted(seeding: Any, by: int) -> Any:
    def shifted(seed: Any) -> Any:
        if not isinstance(seed, numbers.Integral):
            return seed
        number = int(seed)
        return (number + by) % _WIDTH if 0 <= number < _WIDTH else number + by

    @functools.wraps(seeding)
    def call(*args: Any, **kwargs: Any) -> Any:
        named = {name: shifted(value) if name in _NAMES else value for name, value in kwargs.items()}
        return seeding(*map(shifted, args[:1]), *args[1:], **named)

    return call
