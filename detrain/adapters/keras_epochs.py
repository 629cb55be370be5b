"""Changes to Keras's iterator over an epoch's batches, on PyTorch and on JAX. (On TensorFlow `fit` has its own probes.)

Source: keras/src/trainers/epoch_iterator.py, keras/src/backend/jax/trainer.py (Keras 3.15).
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from detrain.base.errors import DetrainError, FrameworkUnsupported
from detrain.python.inspect.frames import is_user_file
from detrain.python.process.random_streams import NumpyStream, PythonStream

_OF_ARRAYS: Final = "ArrayDataAdapter"
"""Keras's class for data in arrays: no Python code of the program loads it."""
_AT_BATCH: Final = ("on_train_batch_begin", "on_batch_begin")


_LOADERS: Final[weakref.WeakKeyDictionary[Any, Any]] = weakref.WeakKeyDictionary()
"""For each of Keras's epoch iterators over arrays, the loader that it has made: no other object holds the loader."""


def maker_of(loader: object) -> object:
    """Return the epoch iterator that has made a loader; the loader itself if none has."""
    return next((epochs for epochs, made in _LOADERS.items() if made is loader), loader)


def loader_of(maker: Any) -> Any:
    """Return the loader for a result of `maker_of`: the epoch iterator's existing loader, or a new one made like it."""
    if not callable(getattr(maker, "enumerate_epoch", None)):
        return maker
    return _LOADERS[maker] if maker in _LOADERS else maker._get_iterator()


class KerasEpochs:
    """Makes each turn of `fit` load its batches in the header of the loop, and makes Keras drop the loaders that the
    next epoch makes anew: only Keras holds these, so no resumed process could make them again.

    On JAX, Keras by itself loads after the callbacks that begin a batch. If the program has such a callback, the order
    must not matter: the callback draws from no random stream, and no Python code of the program loads the data.
    """

    def __init__(self, backend: str, fail: Callable[[DetrainError], object]) -> None:
        """`fail` ends the process with the reason."""
        self._fail = fail
        self._runs_python = False
        kind: Any = import_module("keras.src.trainers.epoch_iterator").EpochIterator
        kind.__next__ = next_batches = self._forgetting(kind.__next__, gives_iterator=backend == "jax")
        trainer: Any = import_module(f"keras.src.backend.{backend}.trainer")
        training = trainer.TorchTrainer if backend == "torch" else trainer.JAXTrainer
        training.evaluate = _forgetting_behind(training.evaluate)
        if backend == "torch":
            trainer.TorchEpochIterator._get_iterator = _noting_loader(trainer.TorchEpochIterator._get_iterator)
        if backend == "jax":
            trainer.JAXEpochIterator.__next__ = next_batches
            callbacks: Any = sys.modules["keras"].callbacks.CallbackList
            callbacks.on_train_batch_begin = self._in_any_order(callbacks.on_train_batch_begin)

    def _forgetting(self, original: Any, *, gives_iterator: bool) -> Any:
        """Return a `__next__` that loads a turn's batches and drops used-up loaders. `gives_iterator`: for JAX."""

        @functools.wraps(original)
        def next_batches(iterator: Any) -> Any:
            self._runs_python = type(iterator.data_adapter).__name__ != _OF_ARRAYS
            try:
                first, last, batches = original(iterator)
            except StopIteration:
                iterator._epoch_iterator = None
                if iterator.steps_per_epoch is None:
                    iterator._current_iterator = None
                raise
            return first, last, iter(batches) if gives_iterator else batches

        return next_batches

    def _in_any_order(self, original: Any) -> Any:
        streams = PythonStream(), NumpyStream()

        @functools.wraps(original)
        def on_train_batch_begin(held: Any, batch: Any, logs: Any = None) -> None:
            mine = next((name for each in held.callbacks for name in _AT_BATCH if _is_of_program(getattr(each, name))), "")
            before = [each.pack() for each in streams] if mine else []
            original(held, batch, logs)
            if mine and (self._runs_python or before != [each.pack() for each in streams]):
                what = "code of the program loads the data" if self._runs_python else "it draws random numbers"
                self._fail(
                    FrameworkUnsupported(
                        f"a callback's {mine} would run behind the load of its batch, and on JAX it runs before: {what}",
                        "do that in on_train_batch_end, or train with Keras on PyTorch or TensorFlow",
                    )
                )

        return on_train_batch_begin


def _noting_loader(original: Any) -> Any:
    @functools.wraps(original)
    def get_iterator(epochs: Any) -> Any:
        made = original(epochs)
        if type(epochs.data_adapter).__name__ == _OF_ARRAYS:
            _LOADERS[epochs] = made
        return made

    return get_iterator


def _forgetting_behind(original: Any) -> Any:
    """Return an `evaluate` that afterwards resets the iterator that `fit` keeps for it, wherever that iterator is."""

    @functools.wraps(original)
    def evaluate(model: Any, *args: Any, **named: Any) -> Any:
        result = original(model, *args, **named)
        if (kept := getattr(model, "_eval_epoch_iterator", None)) is not None:
            kept._epoch_iterator = kept._current_iterator = None
        return result

    return evaluate


def _is_of_program(method: Any) -> bool:
    code = getattr(method, "__code__", None)
    return code is not None and is_user_file(code.co_filename)
