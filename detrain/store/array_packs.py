"""Packs: small arrays of one dtype and shape, stacked into one array. A replay buffer has 100,000 arrays, and writing a
dataset for each takes seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from detrain.base.digest import Array
from detrain.base.errors import CheckpointDamaged

PREFIX: Final = "python/packs/"
_NUMBERS: Final = " numbers"
_MOST_BYTES: Final = 1 << 12
_LEAST: Final = 4
"""The fewest arrays of one dtype and shape that are stacked."""
_NUMBER: Final = np.dtype("<u4")


def packed(arrays: Mapping[str, Array]) -> tuple[dict[str, Array], list[tuple[str, Array]]]:
    """Return the arrays that stay apart, by name, and the packs of the others: (name of the dataset, [array, axes of
    each...]).

    Each pack is followed by an array of the names of its arrays: these names are numbers.
    """
    apart: dict[str, Array] = {}
    groups: dict[tuple[np.dtype[np.void], tuple[int, ...]], list[str]] = {}
    for name, array in arrays.items():
        if array.nbytes <= _MOST_BYTES and name.isdecimal() and f"{int(name):05d}" == name:
            groups.setdefault((array.dtype, array.shape), []).append(name)
        else:
            apart[name] = array
    packs: list[tuple[str, Array]] = []
    for (dtype, shape), names in groups.items():
        if len(names) < _LEAST:
            apart.update((name, arrays[name]) for name in names)
            continue
        stacked = np.empty((len(names), *shape), dtype)
        for place, name in enumerate(names):
            stacked[place, ...] = arrays[name]
        number = f"{PREFIX}{len(packs) // 2:05d}"
        packs += [(number, stacked), (number + _NUMBERS, np.array([int(name) for name in names], _NUMBER))]
    return apart, packs


def unpacked(values: Mapping[str, Array]) -> Iterator[tuple[str, Array]]:
    """Yield the name and the array of each array in the packs among the datasets `values`.

    Raises CheckpointDamaged if a pack does not have a number for each of its arrays.
    """
    for name, stacked in values.items():
        if not name.startswith(PREFIX) or name.endswith(_NUMBERS):
            continue
        numbers = values.get(name + _NUMBERS)
        if numbers is None or numbers.dtype != _NUMBER or stacked.ndim == 0 or numbers.shape != stacked.shape[:1]:
            raise CheckpointDamaged(f"has a pack {name!r} without a number for each of its arrays")
        yield from ((f"{number:05d}", stacked[place, ...]) for place, number in enumerate(numbers.tolist()))
