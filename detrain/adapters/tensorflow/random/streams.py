"""TensorFlow's random streams: the eager context's generator, and generators that a program holds."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.ops import resource_variable_ops

from detrain.python.process.random_streams import PythonStream, RngState, Stream, WordStream


class TensorFlowStreams:
    """See `detrain.adapters.api.RandomStreams`."""

    def streams(self) -> dict[str, Stream]:
        """Return the eager context's generator, from which TensorFlow draws the seeds of eager random ops."""
        return {"tensorflow": _ContextStream()}

    def held_generator(self, value: object) -> Stream | None:
        """Return a `tf.random.Generator` as a stream, None for all other objects."""
        variable = resource_variable_ops.BaseResourceVariable
        is_plain = isinstance(value, tf.random.Generator) and isinstance(value.state, variable)
        return _TensorFlowGenerator(value) if is_plain else None


class _TensorFlowGenerator:
    """A `tf.random.Generator`: its state, as long as one device holds it."""

    def __init__(self, source: tf.random.Generator) -> None:
        self._source = source

    def pack(self) -> bytes:
        return bytes(self._source.state.numpy().tobytes())

    def unpack(self, packed: bytes) -> None:
        self._source.state.assign(np.frombuffer(packed, self._source.state.dtype.as_numpy_dtype))


class _ContextStream(WordStream):
    """The eager context's `random.Random`, which exists once a global seed is set."""

    def get(self) -> RngState:
        return PythonStream(context.context()._rng).get()

    def set(self, state: RngState) -> None:
        PythonStream(context.context()._rng).set(state)
