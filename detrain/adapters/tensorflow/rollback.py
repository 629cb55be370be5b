"""The way back to a moment that is held in memory: variables, iterators, and the step of a running `fit`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from detrain.adapters.api import Again
from detrain.adapters.lazy_building import Building
from detrain.adapters.stable_names import Births
from detrain.adapters.tensorflow.data.datasets import Datasets
from detrain.adapters.tensorflow.guard.held_state import Moments
from detrain.adapters.tensorflow.keras.fit import FitInstrument
from detrain.base.digest import Array


class TensorFlowRollback:
    """See `detrain.adapters.api.Rollback`. `kept_masks` returns the masks of dropout that recurrent layers keep."""

    def __init__(
        self,
        moments: Moments,
        datasets: Datasets,
        fit: FitInstrument,
        births: Births,
        building: Building,
        kept_masks: Callable[[], list[str]],
    ) -> None:
        self._moments, self._datasets, self._fit, self._births, self._building = moments, datasets, fit, births, building
        self._kept_masks = kept_masks
        self.hold = moments.hold

    def irreversible(self) -> list[str]:
        """Return, in words, what steps move on that no held state can put back."""
        return [*self._datasets.irreversible(), *self._kept_masks(), *self._moments.set_by_loaders]

    def begin_load(self) -> Callable[[], Again]:
        """Keep nothing while a batch loop loads."""
        end = self._moments.begin_load()
        return lambda: partial(self._again, end())

    def way_of(self, loader: object) -> Literal["handed out", ""]:
        """Iterators of tf.data cannot be set back; where a load runs no Python, its batches can be kept."""
        return "handed out" if self._fit.is_pure(loader) or self._moments.is_pure(loader) else ""

    def _again(self, count: Callable[[], None], item: object, fetched: Sequence[list[Array]]) -> object | None:
        """Count what the load made; return a step of `fit` that fetches these batches."""
        count()
        if not fetched:
            return None
        counts = self._births.top_counts()
        try:
            with self._building.not_noted():
                return self._fit.refetch(item, fetched)
        finally:
            # What is made for it must not shift the names of what the program makes.
            self._births.set_top_counts(counts)
