"""Keras's iterator over the batches of an epoch, on PyTorch and on JAX. (On TensorFlow `fit` has probes of its own.)

The source: keras/src/trainers/epoch_iterator.py, keras/src/backend/jax/trainer.py (Keras 3.15).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from detrain.base.errors import FrameworkUnsupported
from detrain.python.inspect.frames import is_user_file


def prepare(backend: str, fail: Callable[[FrameworkUnsupported], object]) -> None:
    """Have each turn of `fit` load its batches in the header of the loop, and nothing kept from epoch to epoch that the
    next one makes anew before it reads it: loaders that nobody else has, so that no process could make them again.
    """
    kind: Any = import_module("keras.src.trainers.epoch_iterator").EpochIterator
    original = kind.__next__  # on PyTorch it loads, and gives a list

    @functools.wraps(original)
    def next_batches(self: Any) -> Any:
        try:
            first, last, batches = original(self)
        except StopIteration:
            self._epoch_iterator = None
            if self.steps_per_epoch is None:
                self._current_iterator = None
            raise
        return first, last, iter(batches) if backend == "jax" else batches

    kind.__next__ = next_batches
    if backend == "jax":
        import_module("keras.src.backend.jax.trainer").JAXEpochIterator.__next__ = next_batches
        _refuse_what_comes_between(fail)


def _refuse_what_comes_between(fail: Callable[[FrameworkUnsupported], object]) -> None:
    """Refuse a callback of the program that acts between the header of the loop and the load, as it is on JAX."""
    callbacks: Any = sys.modules["keras"].callbacks.CallbackList
    original = callbacks.on_train_begin

    @functools.wraps(original)
    def on_train_begin(self: Any, logs: Any = None) -> None:
        for each in self.callbacks:
            for name in ("on_train_batch_begin", "on_batch_begin"):
                if is_user_file(getattr(getattr(type(each), name), "__code__", on_train_begin.__code__).co_filename):
                    fail(
                        FrameworkUnsupported(
                            f"{type(each).__qualname__}.{name} would run behind the load of its batch, not before it",
                            "on JAX, move what it does into on_train_batch_end, or train with Keras on PyTorch or TensorFlow",
                        )
                    )
        original(self, logs)

    callbacks.on_train_begin = on_train_begin
