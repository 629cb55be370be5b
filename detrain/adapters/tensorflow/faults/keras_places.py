"""Which layer or optimizer of Keras makes an op: noted as their methods run, for the names of sites."""

from __future__ import annotations

import functools
from typing import Any

from detrain.adapters.tensorflow.faults.step_stage import ThreadStage
from detrain.base.in_place import in_place_of


def watch_layers(here: ThreadStage, cls: Any) -> None:
    """Have the layer that runs noted."""
    original_call = cls.__call__

    @in_place_of(cls, "__call__")
    def called(layer: Any, *args: Any, **kwargs: Any) -> Any:
        here.layers.append(str(layer.name))
        try:
            return original_call(layer, *args, **kwargs)
        finally:
            here.layers.pop()


def watch_optimizer(here: ThreadStage, cls: Any, method: str) -> None:
    """Have the optimizer noted whose update is being made."""
    original = vars(cls).get(method)
    if original is None:  # it is inherited
        return

    @functools.wraps(original)
    def applied(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        here.optimizers.append(str(getattr(optimizer, "name", None) or optimizer._name))
        try:
            return original(optimizer, *args, **kwargs)
        finally:
            here.optimizers.pop()

    setattr(cls, method, applied)
