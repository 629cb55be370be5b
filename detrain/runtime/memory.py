"""Where arrays lie in memory: their axes from slow to fast, the array that a view is of, their address."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from detrain.runtime.digest import Array

_ALIGNMENT: Final = 64
"""What TensorFlow asks of the memory of its tensors."""
_LARGE_BYTES: Final = 1 << 20
"""Below this a copy costs less than the trouble."""


def axes_of(array: Array) -> list[int] | None:
    """Return the axes from the slowest to the fastest in memory, or None if that is their order: sums depend on it."""
    if array.flags.c_contiguous or array.ndim < 2:
        return None
    axes = sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))
    return None if axes == list(range(array.ndim)) else axes


def owner_of(array: Array) -> Array:
    """Return the array whose memory an array is a view of, or itself."""
    while type(array.base) is np.ndarray:
        array = array.base
    return array


def memory_of(array: Array) -> Array | None:
    """Return the memory of an array that has no gaps as one axis, or None."""
    axes = axes_of(array)
    flat = (array if axes is None else array.transpose(axes)).reshape(-1)
    return flat if flat.flags.c_contiguous and address_of(flat) == address_of(array) else None


def address_of(array: Array) -> int:
    """Return the address of the first element."""
    return int(array.__array_interface__["data"][0])


def to_hand_over(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return a new array, to be filled; a large one so aligned that a framework can take its memory over."""
    size = math.prod(shape) * dtype.itemsize
    if size < _LARGE_BYTES:
        return np.zeros(shape, dtype)
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -address_of(memory) % _ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


def can_be_taken_over(array: Array) -> bool:
    """Return whether a framework may use the memory of an array that nobody else needs, without a copy."""
    is_fit = array.flags.writeable and array.flags.c_contiguous and address_of(array) % _ALIGNMENT == 0
    return bool(is_fit and array.nbytes >= _LARGE_BYTES and array.dtype.kind in "fiu")
