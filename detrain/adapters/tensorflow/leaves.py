"""TensorFlow's tensors as leaves of Python objects: constants, tensors of several parts, and other objects with parts.

Sparse tensors, ragged tensors and indexed slices cannot be changed: one whose parts are still the same stays the same
object. A `TensorArray` of eager mode holds a Python list that its methods change; they return a wrapper around the same
array. A `ref()` stands for a variable or tensor as a key.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import tensorflow as tf
from tensorflow.python.distribute.values import PerReplica
from tensorflow.python.framework.ops import EagerTensor
from tensorflow.python.ops.tensor_array_ops import _EagerTensorArray
from tensorflow.python.util import tf_should_use
from tensorflow.python.util.object_identity import Reference

from detrain.adapters.stable_names import Births
from detrain.adapters.tensorflow.data.datasets import ITERATORS, Datasets
from detrain.adapters.tensorflow.keras.loop_models import MADE, METRIC, metric_parts, remake_metric
from detrain.adapters.tensorflow.keras_import import Keras
from detrain.adapters.tensorflow.tracing.builder import FUNCTION, Builder
from detrain.adapters.tensorflow.values.tensors import array_of, read_each
from detrain.base.digest import Array
from detrain.python.inspect.hooks import TensorLeaves
from detrain.python.inspect.object_graph import Item

_RESOURCE, _VARIANT, _STRING = tf.resource, tf.variant, tf.string
_WRAPPER: Final = tf_should_use.ShouldUseWrapper.__name__


class TensorFlowLeaves(TensorLeaves):
    """See `detrain.python.inspect.hooks.TensorLeaves`."""

    constant_type = EagerTensor

    def __init__(self, births: Births, builder: Builder, datasets: Datasets, keras: Keras) -> None:
        self._births, self._builder, self._datasets, self._keras = births, builder, datasets, keras

    def to_array(self, value: object) -> Array | None:
        """Return the values of an eager tensor, a variable, or all parts of a sparse, ragged or distributed tensor;
        else None.

        The array may share memory with the tensor.
        """
        if type(value) is EagerTensor:
            return self.constant(value)
        if isinstance(value, tf.RaggedTensor | tf.SparseTensor | PerReplica):
            flat = tf.nest.flatten(value, expand_composites=True)
            parts = [array_of(tf.convert_to_tensor(part)).reshape(-1) for part in flat]
            return np.concatenate([part.astype(np.float64) for part in parts]) if parts else None
        if isinstance(value, tf.Variable):
            return read_each({"": value}).get("")
        return None

    def constant(self, value: object) -> Array | None:
        """Return the value of an eager tensor of numbers or text, in the tensor's own memory; else None."""
        if not isinstance(value, EagerTensor) or (dtype := value.dtype) is _RESOURCE or dtype is _VARIANT:
            return None
        try:
            return np.asarray(value._numpy(), object if dtype is _STRING else None)  # NumPy's own strings lose trailing zero bytes
        except tf.errors.UnimplementedError:  # a tensor sharded over devices has no value in one place
            return None

    def make_constant(self, array: Array, form: list[Item] | None = None) -> object | None:
        """Return an eager tensor with an array's values; None if a form is given, since that is another adapter's."""
        return tf.constant(array, tf.string if array.dtype == object else None) if form is None else None

    def parts(self, value: object) -> tuple[str, list[object]] | None:
        """Return the kind and parts of a sparse or ragged tensor, indexed slices or a `TensorArray`; None for most
        others.

        Compiled methods and metrics that the loop has made are described, too.
        """
        made_of = self._builder.function_parts(value)
        if made_of is not None:
            return FUNCTION, made_of
        made_of = None if self._builder.holds_metrics else metric_parts(self._births, value)
        return composite_parts(value) if made_of is None else (METRIC, made_of)

    def parts_of_new(self, value: object) -> tuple[str, list[object]] | None:
        """Return the kind and parts of a tf.data iterator, or the key of an object inside a model that the loop has
        made.
        """
        key = self._keras.part_of_made(value)
        return self._datasets.parts(value) if key is None else (MADE, [key])

    def remake(self, kind: str, parts: list[Any], current: object) -> object | None:
        """Return the object that `parts` or `parts_of_new` described."""
        if kind in ITERATORS:
            return self._datasets.remake(kind, *parts)
        if kind == FUNCTION:
            return self._builder.remake_function(*parts)
        if kind == MADE:
            return self._births.find(*parts)
        if kind == METRIC:
            return remake_metric(self._births, *parts)
        made: object | None = remade_composite(kind, parts, current)
        return made


def composite_parts(value: Any) -> tuple[str, list[object]] | None:
    """Return the kind and the parts of a tensor of several parts; None for anything else."""
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
        return None if composite_parts(wrapped) is None else ("tensorflow.wrapper", [wrapped])
    return None


def remade_composite(kind: str, found: list[Any], current: Any) -> Any:
    """Return the tensor of a kind with these parts: `current` if it is or can become that; None for other kinds."""
    now = composite_parts(current)
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
    """Fill a `TensorArray` (a new one if None) with the content of another, as `composite_parts` returned it."""
    dynamic, clears, infers, shape, tensors, read = content
    if array is None:
        array = tf.TensorArray(name, size=0)
    own = array._implementation
    own._dtype, own._element_shape = tf.as_dtype(name), tf.TensorShape(shape)
    own._dynamic_size, own._clear_after_read, own._infer_shape = dynamic, clears, infers
    own._tensor_array, own._previously_read_indices = tensors, read
    return array
