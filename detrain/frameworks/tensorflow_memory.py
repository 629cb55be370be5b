"""Memory of tensors that nobody has yet, to be filled from a checkpoint: a variable takes it over without a copy.

TensorFlow uses memory again that it has had. A large array of NumPy's is new from the kernel each time, which takes longer than to
read it from a file in memory: 1 GB in 0.2 to 1 s, against 0.2 s.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any, Final

import numpy as np
import tensorflow as tf

from detrain.runtime.digest import Array
from detrain.runtime.memory import address_of

_LARGE_BYTES: Final = 1 << 20
"""Below this a copy costs less than the trouble."""


def array_of(tensor: Any) -> Array:
    """Return the value of an eager tensor in its own buffer. `np.asarray` takes no scalars of bfloat16 and the like."""
    return np.asarray(tensor._numpy())


def new_array(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return a new array, to be filled: a large one of numbers in the memory of a tensor that `taken_over` returns."""
    size = math.prod(shape) * dtype.itemsize
    if size < _LARGE_BYTES or dtype.kind not in "fiu":
        return np.zeros(shape, dtype)
    with tf.device("CPU:0"):
        tensor = tf.raw_ops.Empty(shape=shape, dtype=tf.as_dtype(dtype), init=False)
    memory: Any = (ctypes.c_char * size).from_address(address_of(np.asarray(memoryview(tensor))))  # its own buffer, never a copy
    memory.tensor = tensor  # lives as long as the array
    return np.ndarray(shape, dtype, memory)


def taken_over(array: Array, dtype: Any) -> Any:
    """Return a tensor of what an array holds, in the array's very memory if `new_array` made it."""
    tensor = getattr(array.base, "tensor", None)
    return tf.constant(array, dtype) if tensor is None else tensor
