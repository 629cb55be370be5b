"""Where arrays lie in memory: their axes from slow to fast, the array that a view is of, their address."""

from __future__ import annotations

import numpy as np

from detrain.base.digest import Array


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
