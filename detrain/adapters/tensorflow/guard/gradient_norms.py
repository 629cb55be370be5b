"""The norm of the gradients that an optimizer of Keras is given, noted in the step itself: one small sum in its graph.

This is the only thing that the guard puts into a program's graph, so it is there only where it is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import ops

from detrain.adapters.api import Watched
from detrain.adapters.stable_names import Births
from detrain.adapters.tensorflow.faults.graph_owners import replica_of
from detrain.adapters.tensorflow.guard.sums import norms, wide
from detrain.adapters.tensorflow.values.hidden import hidden_variable
from detrain.base.digest import Array
from detrain.base.in_place import in_place_of


class Gradients:
    """Notes half the sum of squares of all gradients, for each optimizer and replica."""

    def __init__(self, births: Births) -> None:
        self._births = births
        self._sums: dict[str, Any] = {}
        self.watched: list[Watched] = []

    def on_keras(self) -> None:
        """Keras is there now."""
        import keras

        original = keras.optimizers.Optimizer.apply

        @in_place_of(keras.optimizers.Optimizer, "apply")
        def apply(optimizer: Any, grads: Any, *args: Any, **kwargs: Any) -> Any:
            # Scaled gradients may overflow, and such a step is left out; the optimizer inside gets them unscaled.
            if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
                self._note(optimizer, grads)
            return original(optimizer, grads, *args, **kwargs)

    def _note(self, optimizer: Any, grads: Sequence[Any]) -> None:
        owner = next((key for key, each in self._births.living(type(optimizer)) if each is optimizer), type(optimizer).__name__)
        replica = replica_of(ops.get_default_graph())
        key = f"gradients for {owner}" + (f", replica {replica}" if replica else "")
        dense = [gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient for gradient in grads]
        parts = [tf.cast(tf.nn.l2_loss(wide(part)), tf.float32) for part in dense if part is not None and part.dtype.is_floating]
        if not parts:
            return
        if key not in self._sums:
            self._sums[key] = hidden_variable(0.0, tf.float32)
            self.watched = [*self.watched, Watched(key, f"gradients for {owner}", 1)]
        self._sums[key].assign(tf.add_n(parts), read_value=False)

    def norms(self) -> Array:
        """Return the norms [optimizer and replica] of the gradients of the last update."""
        return norms([[tf.stack([variable.read_value() for variable in self._sums.values()])]]) if self._sums else np.zeros(0)
