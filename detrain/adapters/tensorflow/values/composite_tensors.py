"""Tensors of several parts: what they are made of, and how they are made again of that.

Sparse and ragged tensors and indexed slices cannot be changed: one that is still of its parts stays the object that it
is. A `TensorArray` of eager mode holds a Python list that its methods change; what they return is a wrapper around the
same array. A `ref()` stands for a variable or tensor as a key.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final

import tensorflow as tf
from tensorflow.python.ops.tensor_array_ops import _EagerTensorArray
from tensorflow.python.util import tf_should_use
from tensorflow.python.util.object_identity import Reference

_WRAPPER: Final = tf_should_use.ShouldUseWrapper.__name__


def parts(value: Any) -> tuple[str, list[object]] | None:
    """Return the kind of a tensor of several parts and these, or None for anything else."""
    cls = type(value)
    if cls is tf.SparseTensor:
        return "tensorflow.SparseTensor", [value.indices, value.values, value.dense_shape]
    if cls is tf.IndexedSlices:
        return "tensorflow.IndexedSlices", [value.values, value.indices, value.dense_shape]
    if cls is tf.RaggedTensor:
        return "tensorflow.RaggedTensor", [value.values, value.row_splits, value.uniform_row_length]
    if cls is tf.TensorArray and type(value._implementation) is _EagerTensorArray:
        own = value._implementation
        shape = own._element_shape.as_list() if own._element_shape.rank is not None else None
        options = [own._dtype.name, own._dynamic_size, own._clear_after_read, own._infer_shape]
        return "tensorflow.TensorArray", [*options, shape, own._tensor_array, own._previously_read_indices]
    if cls is Reference:
        return "tensorflow.Reference", [value.deref()]
    if cls.__name__ == _WRAPPER and cls.__module__ == tf_should_use.__name__:
        wrapped = object.__getattribute__(value, "_tf_should_use_wrapped_value")
        return None if parts(wrapped) is None else ("tensorflow.wrapper", [wrapped])
    return None


def remake(kind: str, found: list[Any], current: Any) -> Any:
    """Return the tensor of a kind with these parts, `current` if it is that or can become it; None for other kinds."""
    now = parts(current)
    is_alike = now is not None and now[0] == kind
    if kind == "tensorflow.TensorArray":
        return _fill(current if is_alike else None, *found)
    if now is not None and is_alike and all(map(operator.is_, now[1], found)):
        return current
    maker = _MAKERS.get(kind)
    return None if maker is None else maker(*found)


def _ragged(values: Any, splits: Any, length: Any) -> Any:
    if length is None:
        return tf.RaggedTensor.from_row_splits(values, splits, validate=False)
    return tf.RaggedTensor.from_uniform_row_length(values, length, nrows=len(splits) - 1, validate=False)


_MAKERS: Final[dict[str, Callable[..., Any]]] = {
    "tensorflow.SparseTensor": tf.SparseTensor,
    "tensorflow.IndexedSlices": tf.IndexedSlices,
    "tensorflow.RaggedTensor": _ragged,
    "tensorflow.Reference": Reference,
    "tensorflow.wrapper": lambda wrapped: wrapped,
}


def _fill(array: Any, name: str, *content: Any) -> Any:
    """Have a `TensorArray`, a new one for None, hold what `parts` said of another."""
    dynamic, clears, infers, shape, tensors, read = content
    if array is None:
        array = tf.TensorArray(name, size=0)
    own = array._implementation
    own._dtype, own._element_shape = tf.as_dtype(name), tf.TensorShape(shape)
    own._dynamic_size, own._clear_after_read, own._infer_shape = dynamic, clears, infers
    own._tensor_array, own._previously_read_indices = tensors, read
    return array
