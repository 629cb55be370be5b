"""Keras's iterator over the batches of an epoch, on PyTorch and on JAX. (On TensorFlow `fit` has probes of its own.)"""

from __future__ import annotations

import functools
from importlib import import_module
from typing import Any


def forget_between_epochs() -> None:
    """Let the iterator go, as an epoch ends, of those that the next epoch makes anew before it reads them.

    They hold loaders that nobody else has, so no process could make them again. The source:
    keras/src/trainers/epoch_iterator.py.
    """
    kind: Any = import_module("keras.src.trainers.epoch_iterator").EpochIterator
    original = kind.__next__

    @functools.wraps(original)
    def next_batch(self: Any) -> Any:
        try:
            return original(self)
        except StopIteration:
            self._epoch_iterator = None
            if self.steps_per_epoch is None:
                self._current_iterator = None
            raise

    kind.__next__ = next_batch
