"""Keras's models and optimizers on PyTorch and on JAX: no PyTorch module lists Keras's layers, its optimizers are not
PyTorch's, and on JAX a training holds the values of variables outside of them. Source:
keras/src/layers/layer.py, keras/src/optimizers/base_optimizer.py, keras/src/backend/jax/trainer.py (Keras 3.15).

The metrics (loss, accuracy, …) of single steps of Keras's `fit`, from the running means that it keeps: a mean is two
variables, `loss/total` and `loss/count` (keras/src/metrics/reduction_metrics.py). They have single precision, so a
step's share of a mean is as exact as the sum.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

import numpy as np

from detrain.adapters.instruments import StepSeries
from detrain.python.inspect.frames import outwards

PARAMETERS: Final = "_torch_params"
"""The name of the module in which a layer on PyTorch lists its own variables and those of all its layers."""
_STATE: Final = ("trainable_variables", "non_trainable_variables", "optimizer_variables", "metrics_variables")

_TRAINER: Final = "keras/src/backend/{}/trainer.py"
Sums = dict[str, tuple[float, float]]


def _is_a(value: object, module: str, name: str) -> bool:
    kind = getattr(sys.modules.get(f"keras.src.{module}"), name, None)
    return kind is not None and isinstance(value, kind)


def is_layer(value: object) -> bool:
    """Return whether a value is a layer or a model of Keras."""
    return _is_a(value, "layers.layer", "Layer")


def is_optimizer(value: object) -> bool:
    """Return whether a value is an optimizer of Keras."""
    return _is_a(value, "optimizers.base_optimizer", "BaseOptimizer")


def parts_of(layer: Any) -> list[tuple[str, Any]]:
    """Return the layers inside a layer, and a model's optimizer, each after its name."""
    optimizer = getattr(layer, "optimizer", None)
    return [*((each.name, each) for each in layer._layers), *([("optimizer", optimizer)] if optimizer is not None else [])]


def tensors_of(value: Any) -> Iterator[tuple[str, Any, bool]]:
    """Yield (name, tensor, whether it is trained) for each tensor of an optimizer, or of a layer without its layers."""
    if is_optimizer(value):
        yield from ((each.path.partition("/")[2], each.value, False) for each in value.variables if each._value is not None)
        return
    for held in (value._trainable_variables, value._non_trainable_variables):
        yield from ((each.name, each.value, bool(each.trainable)) for each in held if each._value is not None)


def metrics_of(model: Any) -> list[tuple[str, Any]]:
    """Return the values of the variables of a model's metrics, each after its variable's path, in the host's memory."""
    held = (getattr(model, "_jax_state", None) or {}).get("metrics_variables")
    values = [each._value for each in model.metrics_variables] if held is None else held
    plain = [each.detach().cpu() if hasattr(each, "detach") else each for each in values]
    return [(each.path, value) for each, value in zip(model.metrics_variables, plain, strict=True)]


def values_on_jax(value: Any) -> list[tuple[str, Any]]:
    """Return the arrays of a layer, a model or an optimizer on JAX, each after its variable's name.

    Inside an epoch `fit` holds a model's arrays in the order of its variables, and the variables hold none.
    """
    if is_optimizer(value):
        return [(each.path.partition("/")[2], each._value) for each in value.variables if each._value is not None]
    state = getattr(value, "_jax_state", None) or {}
    optimizer = getattr(value, "optimizer", None)
    of_model = {
        "trainable_variables": value.trainable_variables,
        "non_trainable_variables": value.non_trainable_variables,
        "optimizer_variables": [] if optimizer is None else optimizer.variables,
        "metrics_variables": value.metrics_variables if hasattr(value, "metrics_variables") else [],
    }
    found = []
    for kind in _STATE:
        held = [each._value for each in of_model[kind]]
        now = [there if there is not None else kept for there, kept in zip(held, state.get(kind) or held, strict=True)]
        found += [(each.path, array) for each, array in zip(of_model[kind], now, strict=True) if array is not None]
    return found


class StepLosses(Protocol):
    """The losses of which gradients were taken."""

    def has_loss(self) -> bool:
        """See `StepSeries`."""

    def read(self) -> dict[str, float]:
        """Return the sum of the losses since the last call, as `loss`."""


class KerasSeries(StepSeries):
    """The loss of steps, and the metrics of Keras's `fit`. They are read at a step's end, by code that the running
    `fit` has called.
    """

    def __init__(self, backend: str, losses: StepLosses, at_begin: Callable[[], object] = lambda: None) -> None:
        self._backend, self._losses, self._at_begin = backend, losses, at_begin
        self._before: Sums = {}
        """The totals and counts at the end of the step before."""

    def begin(self) -> None:
        """See `StepSeries`."""
        self._at_begin()
        self._losses.read()
        self._before = self._sums()

    def has_loss(self) -> bool:
        """See `StepSeries`."""
        return self._losses.has_loss()

    def read(self) -> dict[str, float]:
        """Return the loss and the mean of each metric over the step that has ended, by the metric's name."""
        before, self._before = self._before, self._sums()
        found = {}
        for name, (total, count) in self._before.items():
            total_before, count_before = before.get(name, (0.0, 0.0))
            if count <= count_before:  # the means begin anew with each epoch
                total_before = count_before = 0.0
            if count > count_before:
                found[name] = (total - total_before) / (count - count_before)
        return found | self._losses.read()

    def state(self) -> object:
        """See `StepSeries`."""
        return self._before

    def set_state(self, state: Any) -> None:
        """See `StepSeries`."""
        self._losses.read()
        self._before = state

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
