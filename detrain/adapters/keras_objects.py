"""Models and optimizers of Keras on PyTorch and on JAX: its layers are modules that no module of PyTorch lists, its
optimizers are none of PyTorch's, and on JAX a training holds the values of the variables beside them. The source:
keras/src/layers/layer.py, keras/src/optimizers/base_optimizer.py, keras/src/backend/jax/trainer.py (Keras 3.15).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Final

PARAMETERS: Final = "_torch_params"
"""The module in which a layer on PyTorch lists its variables, and those of all its layers."""
_STATE: Final = ("trainable_variables", "non_trainable_variables", "optimizer_variables", "metrics_variables")


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
