"""Keras's variables that are alive, by the keys of those of TensorFlow's that they hold."""

from __future__ import annotations

import weakref
from typing import Any

import tensorflow as tf

from detrain.adapters.stable_names import Births
from detrain.base.in_place import in_place_of


class KerasVariables:
    """Knows each of Keras's variables once it has a value."""

    def __init__(self, births: Births) -> None:
        self._births = births
        self._variables: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
        self._types: tuple[type[Any], ...] = ()  # known once Keras is imported

    def watch(self) -> None:
        """Keras is there now."""
        from keras.src.backend.tensorflow.core import Variable

        self._types = (Variable,)
        original = Variable._initialize

        @in_place_of(Variable, "_initialize")
        def initialized(variable: Any, value: Any) -> None:
            original(variable, value)
            key = self.key(variable)
            if key is not None:
                self._variables[key] = variable

    def key(self, value: Any) -> str | None:
        """Return the key of a variable, TensorFlow's or Keras's."""
        inner = value._value if isinstance(value, self._types) else value
        return self._births.key(inner) if issubclass(type(inner), tf.Variable) else None

    def alive(self) -> list[tuple[str, Any]]:
        """Return Keras's variables that are alive, after their keys."""
        return list(self._variables.items())

    def find(self, key: str) -> Any:
        """Return Keras's variable around the variable with a key, or None."""
        return self._variables.get(key)

    def rename(self, before: str, key: str | None) -> None:
        """Give one of Keras's variables, if it is one, another key, or none."""
        variable = self._variables.pop(before, None)
        if variable is not None and key is not None:
            self._variables[key] = variable
