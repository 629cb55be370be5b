"""The memory of variables: read without a copy, and filled from a checkpoint by tensors whose memory a variable takes
over.

Reading a variable copies nothing: the tensor shares its buffer. A later update of the variable sees that the buffer is
shared and writes into a new one (`PrepareToUpdateVariable`; XLA, too, takes a buffer over only if nobody else has it).
So holding a tensor that was read is copy on write, on the device, of only the parts that change. Where sparse updates
write in place, reading copies.

TensorFlow uses memory again that it had before. A large NumPy array gets new memory from the kernel each time, which
takes longer than to read its data from a file in memory: 0.2 to 1 s for 1 GB, against 0.2 s.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context, execute
from tensorflow.python.framework import ops
from tensorflow.python.ops import array_ops, gen_resource_variable_ops
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

from detrain.base.array_memory import address_of
from detrain.base.digest import Array

_LARGE_BYTES: Final = 1 << 20
"""The size in bytes below which a copy costs less than avoiding it."""
NO_NUMBERS: Final = (tf.string, tf.resource, tf.variant)
"""The dtypes of variables without numbers, which no checkpoint holds."""

HIDDEN: Final = "detrain_hidden"
"""The beginning of the names of detrain's own variables; the adapter does not take them for the program's."""
_GRADIENT: Final = "DetrainLinked"


class Reader:
    """A reader of variables by one op a device.

    Raises tf.errors.FailedPreconditionError if a variable has no value yet.
    """

    def __init__(self, variables: Mapping[str, Any]) -> None:
        by_device: dict[str, tuple[list[str], list[Any], list[int]]] = {}
        for key, variable in variables.items():
            handle = variable.handle
            keys, handles, dtypes = by_device.setdefault(handle.device, ([], [], []))
            keys.append(key)
            handles.append(handle)
            dtypes.append(variable.dtype.as_datatype_enum)
        self._groups = [(keys, handles, ("N", len(keys), "dtypes", dtypes)) for keys, handles, dtypes in by_device.values()]

    def __call__(self) -> dict[str, Any]:
        """Return tensors that share the variables' buffers."""
        found: dict[str, Any] = {}
        runtime = context.context()
        for keys, handles, attributes in self._groups:
            tensors = execute.execute("_ReadVariablesOp", len(handles), inputs=handles, attrs=attributes, ctx=runtime)
            found.update(zip(keys, tensors, strict=True))
        return found


def read_each(variables: Mapping[str, Any]) -> dict[str, Array]:
    """Return the variables' values as arrays that share their buffers; variables without a value or without numbers are
    left out.
    """
    numbers = {key: variable for key, variable in variables.items() if variable.dtype not in NO_NUMBERS}
    with tf.init_scope():
        try:
            tensors = Reader(numbers)()
        except tf.errors.FailedPreconditionError:
            tensors = Reader({key: variable for key, variable in numbers.items() if has_value(variable)})()
    return {key: array_of(tensor) for key, tensor in tensors.items()}


def has_value(variable: Any) -> bool:
    """Return whether a variable has been initialized."""
    with tf.init_scope():
        return bool(gen_resource_variable_ops.var_is_initialized_op(variable.handle))


def components_of(variable: Any) -> list[Any]:
    """Return the TensorFlow variables behind a variable of Keras or TensorFlow: one for each replica."""
    value = getattr(variable, "_value", variable)
    parts = getattr(value, "values", None)
    return list(parts) if isinstance(parts, tuple | list) else [value]


def array_of(tensor: Any) -> Array:
    """Return the value of an eager tensor in its own buffer. `np.asarray` takes no scalars of bfloat16 and the like."""
    return np.asarray(tensor._numpy())


def new_array(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return a new array to fill: a large one of numbers lies in the memory of a tensor that `taken_over` returns."""
    size = math.prod(shape) * dtype.itemsize
    if size < _LARGE_BYTES or dtype.kind not in "fiu":
        return np.zeros(shape, dtype)
    with tf.device("CPU:0"):
        tensor = tf.raw_ops.Empty(shape=shape, dtype=tf.as_dtype(dtype), init=False)
    # The tensor's own buffer, never a copy.
    memory: Any = (ctypes.c_char * size).from_address(address_of(np.asarray(memoryview(tensor))))
    memory.tensor = tensor  # lives as long as the array
    return np.ndarray(shape, dtype, memory)


def taken_over(array: Array, dtype: Any) -> Any:
    """Return a tensor of an array's values, in the array's own memory if `new_array` made it."""
    tensor = getattr(array.base, "tensor", None)
    return tf.constant(array, dtype) if tensor is None else tensor


def hidden_variable(value: Any, dtype: Any) -> Any:
    """Return a new variable of detrain's own, unseen by the program, its checkpoints and its gradients.

    May be called while a function is traced.
    """
    # Not tf.Variable: that asks the variable creators of the functions being traced, which refuse if a function is
    # traced again.
    with tf.init_scope():
        return ResourceVariable(value, dtype=dtype, trainable=False, name=HIDDEN)


def linked(original: Any, replacement: Any) -> Any:
    """Return a tensor with the replacement's value, through which gradients flow to the original.

    This is for gradients that are taken by walking through a graph (those of nested functions): tapes do not look at
    these ops.
    """
    with original.graph.gradient_override_map({"IdentityN": _GRADIENT}):
        result = array_ops.identity_n([replacement, original])[0]
    result.set_shape(original.shape)
    return result


@ops.RegisterGradient(_GRADIENT)  # type: ignore[untyped-decorator]
def _pass_to_original(_op: Any, grad: Any, _unused: Any) -> list[Any]:
    return [None, grad]
