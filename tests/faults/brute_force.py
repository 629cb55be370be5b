"""The oracle for liveness: each bit of each variable is flipped before a step, and all results are compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

Variables = Mapping[str, NDArray[np.generic]]


def accesses(initial: Variables, step: Callable[[Variables], tuple[object, Variables]]) -> dict[str, tuple[int, int, int]]:
    """Return, for each variable, how many elements matter to the step, are overwritten by it, and are left alone by it.

    `step` takes the variables' values, and returns a step's output and the values after it.
    """
    said, after = step(initial)
    found = {}
    for name, value in initial.items():
        counts = [0, 0, 0]
        for element in range(value.size):
            kinds = {_kind(initial, name, element, bit, step, (said, after)) for bit in range(8 * value.itemsize)}
            counts[0 if len(kinds) > 1 else kinds.pop()] += 1
        found[name] = (counts[0], counts[1], counts[2])
    return found


def _kind(
    initial: Variables,
    name: str,
    element: int,
    bit: int,
    step: Callable[[Variables], tuple[object, Variables]],
    golden: tuple[object, Variables],
) -> int:
    before = {key: value.copy() for key, value in initial.items()}
    _flip(before[name], element, bit)
    said, after = step(before)
    is_same = said == golden[0] and all(_equal(after[key], value) for key, value in golden[1].items() if key != name)
    if is_same and _equal(after[name], golden[1][name]):
        return 1
    left = golden[1][name].copy()
    _flip(left, element, bit)
    return 2 if is_same and _equal(after[name], left) else 0


def _flip(value: NDArray[np.generic], element: int, bit: int) -> None:
    value.reshape(-1).view(np.uint8)[element * value.itemsize + bit // 8] ^= 1 << bit % 8


def _equal(one: NDArray[np.generic], other: NDArray[np.generic]) -> bool:
    return one.tobytes() == other.tobytes()
