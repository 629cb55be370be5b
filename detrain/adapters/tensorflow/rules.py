"""Rules that say which objects of TensorFlow's and Keras's own classes are state of the program."""

from __future__ import annotations

import tensorflow as tf
from tensorflow.python.trackable import data_structures

from detrain.adapters.stable_names import Births


class TensorFlowRules:
    """See `detrain.python.inspect.hooks.ObjectRules`. `keras_import` adds Keras's types when Keras is imported."""

    on_functions = frozenset({"ag_dnc_wrapper__"})
    """The attribute of a program's function where `tf.numpy_function` and its like keep their wrapper of it."""

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
        """Return whether an object only holds data: a callback (any loop may call it), a progress bar, lists of files,
        counts of words.
        """
        return isinstance(value, self.holders)

    def holds_variables(self, value: object) -> bool:
        """Return whether an object is a model, layer, optimizer, metric or module."""
        return isinstance(value, self.models)

    def is_container(self, value: object) -> bool:
        """Return whether an object is the wrapper that a model or module puts around a list, dict, set or tuple
        assigned to it.
        """
        return type(value) in self.containers

    def is_of_loop(self, value: object) -> bool:
        """Return whether the loop has made an object, except while building something lazily."""
        return self._births.is_of_loop(value)

    def is_spent(self, value: object) -> bool:
        """Return whether an object is a gradient tape that has given its gradients and can give no more."""
        return isinstance(value, tf.GradientTape) and value._tape is None and not value._recording
