"""Where arrays lie in memory: their axes from slow to fast, the arrays behind views, their addresses."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from detrain.base.digest import Array


def axes_of(array: Array) -> list[int] | None:
    """Return the axes from the slowest to the fastest in memory, or None if in order: sums depend on it."""
    if array.flags.c_contiguous or array.ndim < 2:
        return None
    axes = sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))
    return None if axes == list(range(array.ndim)) else axes


def owner_of(array: Array) -> Array:
    """Return the array that owns the memory of a view; an array that is no view is returned itself."""
    while type(array.base) is np.ndarray:
        array = array.base
    return array


def lies_in_other_class(array: Array) -> bool:
    """Return whether an array is a view of an array of a class that derives from NumPy's, `memmap` aside."""
    base = owner_of(array).base
    return isinstance(base, np.ndarray) and not isinstance(base, np.memmap)


def memory_of(array: Array) -> Array | None:
    """Return the memory of an array as a view with one axis, or None if the memory has gaps."""
    axes = axes_of(array)
    flat = (array if axes is None else array.transpose(axes)).reshape(-1)
    return flat if flat.flags.c_contiguous and address_of(flat) == address_of(array) else None


def address_of(array: Array) -> int:
    """Return the address of an array's first element."""
    return int(array.__array_interface__["data"][0])


def writing(content: Array) -> tuple[int, Callable[[Array], None]]:
    """Return the size of an array ([byte] uint8) in bytes, and a function that copies it into another array."""

    def write(memory: Array) -> None:
        memory[:] = content

    return content.nbytes, write


def bounds_of(array: Array) -> tuple[int, int]:
    """Return the address of an array's first byte and the address behind its last byte. The array may have gaps."""
    start = end = address_of(array)
    if array.size == 0:
        return start, start
    for count, stride in zip(array.shape, array.strides, strict=True):
        start, end = start + min(0, (count - 1) * stride), end + max(0, (count - 1) * stride)
    return start, end + array.itemsize
