"""Models and optimizers of Keras on PyTorch and on JAX: its layers are modules that no module of PyTorch lists, its
optimizers are none of PyTorch's, and on JAX a training holds the values of the variables beside them. The source:
keras/src/layers/layer.py, keras/src/optimizers/base_optimizer.py, keras/src/backend/jax/trainer.py (Keras 3.15).

What a step of its `fit` has added to the means that it keeps (loss, accuracy, …): a mean is two variables, `loss/total`
and `loss/count` (keras/src/metrics/reduction_metrics.py). They are of single precision: a step's part of a mean is as
exact as the sum.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

import numpy as np

from detrain.adapters.instruments import StepSeries
from detrain.python.inspect.frames import outwards

PARAMETERS: Final = "_torch_params"
"""The module in which a layer on PyTorch lists its variables, and those of all its layers."""
_STATE: Final = ("trainable_variables", "non_trainable_variables", "optimizer_variables", "metrics_variables")

_TRAINER: Final = "keras/src/backend/{}/trainer.py"
Sums = dict[str, tuple[float, float]]


def _is_a(value: object, module: str, name: str) -> bool:
    kind = getattr(sys.modules.get(f"keras.src.{module}"), name, None)
    return kind is not None and isinstance(value, kind)


def is_layer(value: object) -> bool:
    """Return whether a value is a layer or a model of Keras's."""
    return _is_a(value, "layers.layer", "Layer")


def is_optimizer(value: object) -> bool:
    """Return whether a value is an optimizer of Keras's."""
    return _is_a(value, "optimizers.base_optimizer", "BaseOptimizer")


def parts_of(layer: Any) -> list[tuple[str, Any]]:
    """Return the layers that a layer is made of, and a model's optimizer, each by its name."""
    optimizer = getattr(layer, "optimizer", None)
    return [*((each.name, each) for each in layer._layers), *([("optimizer", optimizer)] if optimizer is not None else [])]


def tensors_of(value: Any) -> Iterator[tuple[str, Any, bool]]:
    """Yield the tensors that a layer itself has, or an optimizer, each by its name, and whether it is trained."""
    if is_optimizer(value):
        yield from ((each.path.partition("/")[2], each.value, False) for each in value.variables if each._value is not None)
        return
    for held in (value._trainable_variables, value._non_trainable_variables):
        yield from ((each.name, each.value, bool(each.trainable)) for each in held if each._value is not None)


def metrics_of(model: Any) -> list[tuple[str, Any]]:
    """Return the values of the variables that a model's metrics keep, each by its variable's name, on the processor."""
    held = (getattr(model, "_jax_state", None) or {}).get("metrics_variables")
    values = [each._value for each in model.metrics_variables] if held is None else held
    plain = [each.detach().cpu() if hasattr(each, "detach") else each for each in values]
    return [(each.path, value) for each, value in zip(model.metrics_variables, plain, strict=True)]


def values_on_jax(value: Any) -> list[tuple[str, Any]]:
    """Return the arrays of a layer, a model or an optimizer on JAX, each by its variable's name.

    Inside of an epoch `fit` holds those of a model in the order of its variables, and they have none.
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


class Losses(Protocol):
    """The losses that gradients were taken of."""

    def has_loss(self) -> bool:
        """See `StepSeries`."""

    def read(self) -> dict[str, float]:
        """Return their sum since the last call, as `loss`."""


class KerasSeries(StepSeries):
    """The loss of steps, and what Keras's `fit` has measured, read where a step has ended: `fit` is running then, and
    calls what reads.
    """

    def __init__(self, backend: str, losses: Losses, at_begin: Callable[[], object] = lambda: None) -> None:
        self._backend, self._losses, self._at_begin = backend, losses, at_begin
        self._before: Sums = {}
        """Totals and counts as they were behind the step before."""

    def begin(self) -> None:
        """See `StepSeries`."""
        self._at_begin()
        self._losses.read()
        self._before = self._sums()

    def has_loss(self) -> bool:
        """See `StepSeries`."""
        return self._losses.has_loss()

    def read(self) -> dict[str, float]:
        """Return the loss, and what each mean is of the step that has ended, by the metric's name."""
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
