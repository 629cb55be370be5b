"""The arguments of calls of functions and layers in a form that JSON can hold: tensors by type and shape, named objects
by their names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops import iterator_ops
from tensorflow.python.distribute import distribute_utils
from tensorflow.python.distribute.values import DistributedVariable
from tensorflow.python.trackable import data_structures

from detrain.adapters.stable_names import Births
from detrain.adapters.tensorflow.values.json_values import Description, NoDataError, ValueDescriptions
from detrain.base.plain_types import ARRAYS


class Calls(ValueDescriptions):
    """Descriptions of calls.

    `variable_key` and `keras_variable` are those of `Builder`: Keras's variables wrap TensorFlow's.
    """

    def __init__(self, births: Births, variable_key: Callable[[Any], str | None], keras_variable: Callable[[str], Any]) -> None:
        super().__init__(births)
        self._variable_key, self._keras_variable = variable_key, keras_variable
        self._containers: tuple[type[Any], ...] = (list, dict, data_structures.ListWrapper)
        """The classes that TensorFlow takes as plain lists and dicts, with those that models make of a list."""

    def on_keras(self) -> None:
        """Take up Keras's own class of lists: Keras has been imported."""
        from keras.src.utils.tracking import TrackedList

        self._containers = (*self._containers, TrackedList)

    def describe_call(self, args: tuple[Any, ...], kwargs: dict[str, Any], scope: str | None = None) -> str | None:
        """Return a call as JSON, with the strategy around it; `scope` is Keras's path of names around a called layer.

        None if an argument is no data.
        """
        try:
            described = {
                "strategy": self._births.key(tf.distribute.get_strategy()) if tf.distribute.has_strategy() else None,
                "args": [self.describe(value) for value in args],
                "kwargs": {name: self.describe(value) for name, value in kwargs.items()},
                "scope": scope,
            }
        except NoDataError:
            return None
        return json.dumps(described)

    def recall_arguments(self, call: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments of a call, tensors as `tf.TensorSpec`. Raises NotThereError."""
        return [self.recall(value) for value in call["args"]], {name: self.recall(value) for name, value in call["kwargs"].items()}

    def _described(self, value: Any, depth: int, count: Iterator[int]) -> Description:
        if isinstance(value, DistributedVariable) and (primary := self._births.key(value._primary)) is not None:
            return {"distributed": primary}
        if isinstance(value, iterator_ops.OwnedIterator):
            return {"iterator": self._describe_spec(value.element_spec)}
        if isinstance(value, tf.data.Dataset):
            return {"set": self._describe_spec(value.element_spec)}
        if isinstance(value, tf.TensorSpec | tf.RaggedTensor | tf.SparseTensor):
            return self._describe_spec(value if isinstance(value, tf.TensorSpec) else tf.type_spec_from_value(value))
        key = self._variable_key(value)
        if key is not None:
            return {"key": key}
        if isinstance(value, (tf.Tensor, *ARRAYS)):
            return {"tensor": [tf.as_dtype(value.dtype).name, list(value.shape)]}
        if isinstance(value, list | dict) and type(value) not in self._containers:
            raise NoDataError
        return super()._described(value, depth, count)

    def _describe_spec(self, spec: Any) -> Description:
        if type(spec) is tf.RaggedTensorSpec:
            return {"ragged": [spec._shape.as_list(), spec.dtype.name, spec.ragged_rank, spec.row_splits_dtype.name]}
        if type(spec) is tf.SparseTensorSpec and spec.shape.rank is not None:
            return {"sparse": [spec.shape.as_list(), spec.dtype.name]}
        if isinstance(spec, tf.TensorSpec):
            return {"tensor": [spec.dtype.name, None if spec.shape.rank is None else spec.shape.as_list()]}
        return self._described_items(spec, self._describe_spec)

    def recall(self, description: Description) -> Any:
        """Return an argument, tensors as `tf.TensorSpec`. Raises NotThereError."""
        [(kind, content)] = description.items()
        match kind:
            case "tensor":
                return tf.TensorSpec(content[1], content[0])
            case "ragged":
                return tf.RaggedTensorSpec(*content)
            case "sparse":
                return tf.SparseTensorSpec(*content)
            case "iterator":
                return iterator_ops.IteratorSpec(self.recall(content))
            case "set":
                return tf.data.DatasetSpec(self.recall(content))
            case "distributed":
                return distribute_utils.value_container(self._recall_key(content))
        return super().recall(description)

    def _recall_key(self, key: str) -> Any:
        variable = self._keras_variable(key)
        return super()._recall_key(key) if variable is None else variable
