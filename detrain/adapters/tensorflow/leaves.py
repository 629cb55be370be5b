"""Tensors of TensorFlow as leaves of Python objects: constants, tensors of several parts, and what else is made of
parts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.distribute.values import PerReplica
from tensorflow.python.framework.ops import EagerTensor

from detrain.adapters.api import TensorLeaves
from detrain.adapters.stable_names import Births
from detrain.adapters.tensorflow.data.datasets import ITERATORS, Datasets
from detrain.adapters.tensorflow.keras.loop_metrics import METRIC, metric_parts, remake_metric
from detrain.adapters.tensorflow.keras.loop_models import MADE
from detrain.adapters.tensorflow.keras_import import Keras
from detrain.adapters.tensorflow.tracing.builder import FUNCTION, Builder
from detrain.adapters.tensorflow.values import composite_tensors as composites
from detrain.adapters.tensorflow.values.tensors import array_of, read_each
from detrain.base.digest import Array
from detrain.python.inspect.object_graph import Item

_RESOURCE, _VARIANT, _STRING = tf.resource, tf.variant, tf.string


class TensorFlowLeaves(TensorLeaves):
    """See `detrain.adapters.api.TensorLeaves`."""

    constant_type = EagerTensor

    def __init__(self, births: Births, builder: Builder, datasets: Datasets, keras: Keras) -> None:
        self._births, self._builder, self._datasets, self._keras = births, builder, datasets, keras

    def to_array(self, value: object) -> Array | None:
        """Return the value of an eager tensor, a variable, or the parts of a sparse, ragged or distributed one; else
        None.

        It may share memory.
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
            return np.asarray(value._numpy(), object if dtype is _STRING else None)  # NumPy's texts lose trailing zeros
        except tf.errors.UnimplementedError:  # a tensor that is sharded over devices: it has no value in one place
            return None

    def make_constant(self, array: Array, form: list[Item] | None = None) -> object | None:
        """Return an eager tensor."""
        return tf.constant(array, tf.string if array.dtype == object else None) if form is None else None

    def parts(self, value: object) -> tuple[str, list[object]] | None:
        """Return what a sparse or ragged tensor, indexed slices, a `TensorArray` are made of; None for most else.

        Compiled methods and metrics are described, too, if the loop has made them.
        """
        made_of = self._builder.function_parts(value)
        if made_of is not None:
            return FUNCTION, made_of
        made_of = None if self._builder.holds_metrics else metric_parts(self._births, value)
        return composites.parts(value) if made_of is None else (METRIC, made_of)

    def parts_of_new(self, value: object) -> tuple[str, list[object]] | None:
        """Return what an iterator over a tf.data set is made of; of what is in a model that the
        loop has made, its key.
        """
        key = self._keras.part_of_made(value)
        return self._datasets.parts(value) if key is None else (MADE, [key])

    def remake(self, kind: str, parts: list[Any], current: object) -> object | None:
        """Return what `parts` or `parts_of_new` described."""
        if kind in ITERATORS:
            return self._datasets.remake(kind, *parts)
        if kind == FUNCTION:
            return self._builder.remake_function(*parts)
        if kind == MADE:
            return self._births.find(*parts)
        if kind == METRIC:
            return remake_metric(self._births, *parts)
        made: object | None = composites.remake(kind, parts, current)
        return made
