"""How far the program's loaders are: iterators over tf.data sets, and what a running `fit` trains on."""

from __future__ import annotations

from collections.abc import Mapping

from detrain.adapters.tensorflow.data.datasets import Datasets
from detrain.adapters.tensorflow.data.iterator_positions import NoPosition
from detrain.adapters.tensorflow.keras.fit import FIT, FitInstrument
from detrain.base.digest import Array
from detrain.base.options import Mode


class TensorFlowLoaders:
    """See `detrain.adapters.api.LoaderPositions`."""

    def __init__(self, datasets: Datasets, fit: FitInstrument) -> None:
        self._datasets, self._fit = datasets, fit

    def positions(self, mode: Mode) -> tuple[dict[str, Array], list[str]]:
        """Return the positions of loaders alive as data, and why others have none."""
        found, reasons = self._datasets.positions(mode)
        try:
            fit = None if mode == "forward" else self._fit.position(self._datasets.read_with, is_forced=mode == "seek")
        except NoPosition as reason:
            return found, [*reasons, str(reason)]
        return found if fit is None else found | {FIT: fit}, reasons

    def is_loader(self, value: object) -> bool:
        """Return whether an object is a tf.data iterator that is counted, or a generator that `fit` trains on."""
        return self._datasets.is_counted(value) or self._fit.is_loader(value)

    def no_position(self, _value: object) -> str:
        """What has no position is drawn from as often again."""
        return ""

    def loader_key(self, loader: object) -> str:
        """Return the name of an iterator over a tf.data set."""
        return self._datasets.loader_key(loader)

    def called(self) -> Mapping[str, object]:
        """Return the Python objects that pipelines alive call."""
        return self._datasets.called()
