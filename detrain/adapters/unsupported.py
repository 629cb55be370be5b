"""Frameworks whose state detrain cannot read: a run that trains with one is refused, at the latest at its first
checkpoint.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from detrain.base.errors import FrameworkUnsupported

FOREIGN: Final = ("mlx", "mindspore", "mxnet", "paddle", "tinygrad")
_TODO: Final = "train with PyTorch, TensorFlow or JAX, or run the program with --bare: deterministic settings, no checkpoints"


def imported() -> list[str]:
    """Return the names of such frameworks that the process has imported."""
    return [name for name in FOREIGN if name in sys.modules]


def check_training(*, has_updates: bool) -> list[str]:
    """Return, in words, what a checkpoint of a loop does not hold of such frameworks. `has_updates`: of weights
    of a framework that detrain knows.

    Raises FrameworkUnsupported where nothing else than such a framework can have trained in the loop.
    """
    names = imported()
    if names and not has_updates:
        raise FrameworkUnsupported(
            f"the loop has updated no weights of PyTorch, TensorFlow or JAX, and the program uses {' and '.join(names)}, "
            "whose weights no checkpoint holds yet",
            _TODO,
        )
    return [f"{name} (its tensors, models and random streams)" for name in names]


def check_keras() -> None:
    """Keras has been imported. Raises FrameworkUnsupported where it computes with another framework than TensorFlow."""
    keras: Any = sys.modules["keras"]
    backend = keras.config.backend()
    if backend != "tensorflow":
        raise FrameworkUnsupported(f"Keras runs on {backend!r} here (KERAS_BACKEND), whose weights no checkpoint holds yet", _TODO)
