"""What the guard looks at: the norms of variables, and of gradients where that is asked for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from detrain.adapters.api import Watched
from detrain.adapters.stable_names import Births
from detrain.adapters.tensorflow.guard.gradient_norms import Gradients
from detrain.adapters.tensorflow.guard.held_state import Moments
from detrain.base.digest import Array


class TensorFlowNorms:
    """See `detrain.adapters.api.Norms`."""

    def __init__(self, births: Births, moments: Moments) -> None:
        self._births, self._moments = births, moments
        self._gradients: Gradients | None = None
        self._has_keras = False
        self._watched: tuple[object, list[Watched]] = (None, [])

    @property
    def has_gradients(self) -> bool:
        """Whether norms of gradients are put into what is traced."""
        return self._gradients is not None

    def watch_gradients(self) -> None:
        """Have the norms of gradients among what is watched."""
        self._gradients = Gradients(self._births)
        if self._has_keras:
            self._gradients.on_keras()

    def value(self, key: str) -> Array | None:
        """Return the value of a variable that is watched; None for any other key."""
        return self._moments.value(key)

    def on_keras(self) -> None:
        """Keras is there now, whose optimizers are given gradients."""
        self._has_keras = True
        if self._gradients is not None:
            self._gradients.on_keras()

    def norms(self) -> tuple[Sequence[Watched], Array]:
        """Return what is watched for hardware faults, and the Euclidean norms [variable]."""
        watched, found = self._moments.norms()
        if self._gradients is None or not self._gradients.watched:
            return watched, found
        before, together = self._watched
        if before is not watched or len(together) != len(watched) + len(self._gradients.watched):
            self._watched = watched, [*watched, *self._gradients.watched]
        return self._watched[1], np.concatenate([found, self._gradients.norms()])
