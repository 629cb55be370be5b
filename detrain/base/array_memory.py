"""Where arrays lie in memory: their axes from slow to fast, the array that a view is of, their address."""

from __future__ import annotations

from collections.abc import Callable

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


def lies_in_other_class(array: Array) -> bool:
    """Return whether the memory that an array is a view of is an array's of a class that derives from NumPy's."""
    base = owner_of(array).base
    return isinstance(base, np.ndarray) and not isinstance(base, np.memmap)


def memory_of(array: Array) -> Array | None:
    """Return the memory of an array that has no gaps as one axis, or None."""
    axes = axes_of(array)
    flat = (array if axes is None else array.transpose(axes)).reshape(-1)
    return flat if flat.flags.c_contiguous and address_of(flat) == address_of(array) else None


def address_of(array: Array) -> int:
    """Return the address of the first element."""
    return int(array.__array_interface__["data"][0])


def writing(content: Array) -> tuple[int, Callable[[Array], None]]:
    """Return how large an array [byte] uint8 is, and what writes it into another."""

    def write(memory: Array) -> None:
        memory[:] = content

    return content.nbytes, write


def bounds_of(array: Array) -> tuple[int, int]:
    """Return the addresses of an array's first byte and of the one behind its last, also of one with gaps."""
    start = end = address_of(array)
    if array.size == 0:
        return start, start
    for count, stride in zip(array.shape, array.strides, strict=True):
        start, end = start + min(0, (count - 1) * stride), end + max(0, (count - 1) * stride)
    return start, end + array.itemsize
