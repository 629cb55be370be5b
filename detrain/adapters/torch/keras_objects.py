"""Models and optimizers of Keras on PyTorch: its layers are modules that no other module lists as its children, and its
optimizers are none of PyTorch's. The source: keras/src/layers/layer.py, keras/src/optimizers/base_optimizer.py (3.15).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any


def _is_a(value: object, module: str, name: str) -> bool:
    kind = getattr(sys.modules.get(f"keras.src.{module}"), name, None)
    return kind is not None and isinstance(value, kind)


def is_layer(value: object) -> bool:
    """Return whether a value is a layer or a model of Keras's."""
    return _is_a(value, "layers.layer", "Layer")


def is_optimizer(value: object) -> bool:
    """Return whether a value is an optimizer of Keras's."""
    return _is_a(value, "optimizers.base_optimizer", "BaseOptimizer")


def parts_of(layer: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield a layer, what it is made of, and a model's optimizer, each with the way there, which begins with `name`."""
    yield name, layer
    for each in layer._layers:
        yield from parts_of(each, f"{name}.{each.name}".strip("."))
    if (optimizer := getattr(layer, "optimizer", None)) is not None:
        yield f"{name}.optimizer".strip("."), optimizer


def tensors_of(value: Any) -> Iterator[tuple[str, Any, bool]]:
    """Yield the tensors that a layer itself has, or an optimizer, each by its name, and whether it is trained."""
    if is_optimizer(value):
        yield from ((each.path.partition("/")[2], each.value, False) for each in value.variables if each._value is not None)
        return
    for held in (value._trainable_variables, value._non_trainable_variables):
        yield from ((each.name, each.value, bool(each.trainable)) for each in held if each._value is not None)
