"""Arrays in the memory of tensors: what is filled in is what a variable gets, and memory that is held is never written
to.
"""

from __future__ import annotations

import gc
import itertools

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from detrain.adapters.tensorflow.values.tensors import new_array, taken_over  # noqa: E402
from detrain.base.array_memory import address_of  # noqa: E402

SIZES = (0, 1, 1000, (1 << 20) // 8, 400_000)
DTYPES = ("float32", "float64", "float16", "int64", "uint8", "int8", "uint64", "bool", "complex64", "bfloat16")


def filled(array: np.ndarray, seed: int) -> bytes:
    """Fill an array with any bits (or, of truth values, with those that there are); return them."""
    some = np.random.default_rng(seed).integers(0, 2 if array.dtype == bool else 256, array.nbytes, np.uint8)
    array.reshape(-1).view(np.uint8)[...] = some
    return some.tobytes()


def bits(tensor: object) -> bytes:
    return np.asarray(tensor).tobytes()


@pytest.mark.parametrize(("dtype", "size"), list(itertools.product(DTYPES, SIZES)))
def test_a_tensor_holds_what_its_array_was_filled_with(dtype: str, size: int) -> None:
    kind = tf.as_dtype(dtype)
    array = new_array((size,), np.dtype(kind.as_numpy_dtype))
    assert array.shape == (size,)
    assert array.dtype == kind.as_numpy_dtype
    written = filled(array, size)
    tensor = taken_over(array, kind)
    assert tensor.dtype == kind
    assert bits(tensor) == written


def test_a_large_array_is_taken_over_where_it_lies() -> None:
    array = new_array((512, 1024), np.dtype("float32"))
    tensor = taken_over(array, tf.float32)
    assert address_of(np.asarray(memoryview(tensor))) == address_of(array)


def test_an_array_lives_longer_than_all_else_that_holds_its_memory() -> None:
    array = new_array((1 << 20,), np.dtype("float32"))
    written = filled(array, 3)
    variable = tf.Variable(taken_over(array, tf.float32))
    del variable
    gc.collect()
    others = [tf.fill((1 << 20,), float(turn)) for turn in range(8)]
    assert array.tobytes() == written
    assert len(others) == 8


@pytest.mark.parametrize("is_compiled", [False, True])
def test_updates_of_a_variable_leave_an_array_that_is_held(is_compiled: bool) -> None:
    array = new_array((1 << 20,), np.dtype("float32"))
    array[...] = 1.0
    variable = tf.Variable(tf.zeros(array.shape))
    variable.assign(taken_over(array, tf.float32))

    def update() -> None:
        variable.assign_add(tf.ones(array.shape))
        variable.scatter_nd_update([[0]], [7.0])

    (tf.function(update) if is_compiled else update)()
    assert (array == 1.0).all()
    assert variable.numpy()[0] == 7.0
    assert (variable.numpy()[1:] == 2.0).all()
