"""What TensorFlow's and Keras's own classes mean for the state of a program's objects."""

from __future__ import annotations

import tensorflow as tf
from tensorflow.python.trackable import data_structures

from detrain.adapters.stable_names import Births


class TensorFlowRules:
    """See `detrain.python.inspect.hooks.ObjectRules`. Keras adds its types when it is imported."""

    on_functions = frozenset({"ag_dnc_wrapper__"})
    """`tf.numpy_function` and its like keep what they have made of a function there."""

    def __init__(self, births: Births) -> None:
        self._births = births
        self.holders: tuple[type, ...] = (tf.train.CheckpointManager,)
        self.models: tuple[type, ...] = (tf.Module,)
        self.containers: tuple[type, ...] = (
            data_structures.ListWrapper,
            data_structures._DictWrapper,
            data_structures._TupleWrapper,
        )

    def is_holder(self, value: object) -> bool:
        """Return whether an object only holds data: a callback (any loop may call it), a bar, files listed, words
        counted.
        """
        return isinstance(value, self.holders)

    def holds_variables(self, value: object) -> bool:
        """Return whether an object is a model, layer, optimizer, metric or module."""
        return isinstance(value, self.models)

    def is_container(self, value: object) -> bool:
        """Return whether an object is what a model or module makes of a list, dict, set or tuple that is assigned to
        it.
        """
        return type(value) in self.containers

    def is_of_loop(self, value: object) -> bool:
        """Return whether the loop has made an object, and that not as it built something."""
        return self._births.is_of_loop(value)

    def is_spent(self, value: object) -> bool:
        """Return whether an object is a tape that has given its gradients."""
        return isinstance(value, tf.GradientTape) and value._tape is None and not value._recording
