"""What a step of Keras's `fit` has added to the means that it keeps, on PyTorch and on JAX: loss, accuracy, …

A mean is two variables, `loss/total` and `loss/count` (keras/src/metrics/reduction_metrics.py, Keras 3.15). They are of
single precision: a step's part of a mean is as exact as the sum.
"""

from __future__ import annotations

import sys
from typing import Any, Final

import numpy as np

from detrain.adapters.keras_objects import metrics_of
from detrain.python.inspect.frames import outwards

_TRAINER: Final = "keras/src/backend/{}/trainer.py"
Sums = dict[str, tuple[float, float]]


class KerasMetrics:
    """Reads them where a step has ended: `fit` is running then, and calls what reads."""

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self.before: Sums = {}
        """Totals and counts as they were behind the step before."""

    def begin(self) -> None:
        """The next step is the first that is looked at."""
        self.before = self._sums()

    def read(self) -> dict[str, float]:
        """Return what each mean is of the step that has ended, by the metric's name."""
        before, self.before = self.before, self._sums()
        found = {}
        for name, (total, count) in self.before.items():
            total_before, count_before = before.get(name, (0.0, 0.0))
            if count <= count_before:  # the means begin anew with each epoch
                total_before = count_before = 0.0
            if count > count_before:
                found[name] = (total - total_before) / (count - count_before)
        return found

    def _sums(self) -> Sums:
        model = self._trained()
        values = {} if model is None else {path: np.asarray(value, np.float64) for path, value in metrics_of(model)}
        names = [path.removesuffix("/total") for path, value in values.items() if path.endswith("/total") and value.ndim == 0]
        return {
            name: (float(values[f"{name}/total"]), float(values[f"{name}/count"])) for name in names if f"{name}/count" in values
        }

    def _trained(self) -> Any:
        """Return the model whose `fit` is running; None if none is."""
        fits = (frame for frame in outwards(sys._getframe()) if frame.f_code.co_name == "fit")
        trainer = _TRAINER.format(self._backend)
        own = (frame for frame in fits if frame.f_code.co_filename.replace("\\", "/").endswith(trainer))
        return next((frame.f_locals.get("self") for frame in own), None)
