"""TensorFlow's random streams: the eager context's generator, and generators that a program holds. And the draws of
eager random ops with seeds of their own, which are counted, so that a resumed run draws as often again.

Most eager ops draw their seed from the eager context's generator, which is captured. Ops to which the program gives a
seed go on in one kernel, whose state is how much it has drawn: the draws are counted, and repeated if the kernel is
new.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.ops import resource_variable_ops

from detrain.adapters.tensorflow.values.tensors import array_of
from detrain.base.errors import CheckpointDamaged
from detrain.base.in_place import in_place_of
from detrain.base.plain_types import ARRAYS
from detrain.python.process.random_streams import PythonStream, RngState, Stream, WordStream

_VALUES: Final = ("shape", "num_samples", "minval", "maxval")
"""Names of the arguments whose values decide how much is drawn."""


_MOST_ELEMENTS: Final = 1 << 31
"""The most elements of one draw; a checkpoint with more is damaged."""


class EagerDraws:
    """The draws of eager random ops whose kernels draw more than once, since the program gives their seeds."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        """The draws by (op, seeds, parts of the arguments that decide how much is drawn, device), as JSON."""
        self._drawn = 0
        """The number of draws of all eager random ops."""
        self._from_context: int | None = None
        self._ops: dict[str, Any] = {}
        original_seed, original_set = context.Context._internal_operation_seed, context.Context._set_global_seed

        @in_place_of(context.Context, "_internal_operation_seed")
        def operation_seed(runtime: Any) -> int:
            self._from_context = original_seed(runtime)
            return self._from_context

        @in_place_of(context.Context, "_set_global_seed")
        def set_seed(runtime: Any, seed: Any) -> None:
            # None asks for numbers by chance: the run's own seed gives some (deterministic ops must have a seed)
            if seed is None:
                return
            original_set(runtime, seed)
            self._counts.clear()  # a new seed makes all kernels new

    def watch(self, name: str, op: Any) -> None:
        """Take up an op whose calls go through `run`."""
        self._ops[name] = op

    def run(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run an op in eager code, and count its draw."""
        drawn = self._ops[name](*args, **kwargs)
        self._drawn += 1
        given = inspect.signature(self._ops[name]).bind(*args, **kwargs).arguments
        seed, seed2 = int(given.get("seed") or 0), int(given.get("seed2") or 0)
        if seed2 == self._from_context:
            self._from_context = None
            return drawn
        size = {key: _decides(key, value) for key, value in given.items() if key not in ("seed", "seed2", "name")}
        device = tf.nest.flatten(drawn)[0].backing_device  # each device has its own kernel
        key = json.dumps([name, seed, seed2, size, device], sort_keys=True)
        self._counts[key] = self._counts.get(key, 0) + 1
        return drawn

    def state(self) -> tuple[int, dict[str, int]]:
        """Return the number of all draws, and the counts of kernels that go on."""
        return self._drawn, dict(self._counts)

    def go_back(self, state: tuple[int, dict[str, int]]) -> None:
        """Set the kernels back to where they were when `state` was called in this process."""
        if state[0] != self._drawn:
            self._drawn = state[0]
            self._set(state[1])

    def restore(self, counts: Mapping[str, int]) -> None:
        """Bring the kernels to where they have drawn so often. Raises CheckpointDamaged for impossible counts."""
        if counts == self._counts:
            return
        try:
            self._set(counts)
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError, tf.errors.OpError) as error:
            raise CheckpointDamaged(
                f"the checkpoint says of eager random ops what cannot have been drawn: {type(error).__name__}: {error}",
                "give one that detrain has written, or start anew with --fresh",
            ) from error

    def _set(self, counts: Mapping[str, int]) -> None:
        context.context().clear_kernel_cache()
        self._counts = dict(counts)
        with tf.init_scope():
            for key, count in counts.items():
                name, seed, seed2, size, *device = json.loads(key)
                if not isinstance(count, int) or any(_elements(each, value) > _MOST_ELEMENTS for each, value in size.items()):
                    raise ValueError(f"{count!r} draws of {name} of {str(size)[:200]}")
                with tf.device(device[0] if device else None):
                    arguments = {each: _again(value) for each, value in size.items()}
                    for _ in range(count):
                        self._ops[name](**arguments, seed=seed, seed2=seed2)


def _decides(name: str, value: Any) -> Any:
    """Return the part of an argument that decides how much is drawn: a plain value itself; of a tensor the type, and
    the values or the shape.
    """
    if isinstance(value, tf.DType):
        return value.name
    if not isinstance(value, (tf.Tensor, tf.Variable, *ARRAYS)):
        return value
    array = array_of(tf.convert_to_tensor(value)) if isinstance(value, tf.Tensor | tf.Variable) else np.asarray(value)
    content = {"value": array.tolist()} if name in _VALUES else {"shape": list(array.shape)}
    return {**content, "dtype": tf.as_dtype(array.dtype).name}


def _elements(name: str, value: Any) -> int:
    """Return the least number of elements that a draw with this argument needs in memory."""
    if not isinstance(value, dict) or name in ("minval", "maxval"):
        return 0
    return math.prod(map(abs, np.ravel(value["value"]).tolist() if "value" in value else value["shape"]))


def _again(value: Any) -> Any:
    """Return an argument with which an op draws as much as with the one that `_decides` described."""
    if not isinstance(value, dict):
        return value
    return tf.constant(value["value"], value["dtype"]) if "value" in value else tf.ones(value["shape"], value["dtype"])


class TensorFlowStreams:
    """See `detrain.adapters.api.RandomStreams`."""

    def streams(self) -> dict[str, Stream]:
        """Return the eager context's generator, from which TensorFlow draws the seeds of eager random ops."""
        return {"tensorflow": _ContextStream()}

    def held_generator(self, value: object) -> Stream | None:
        """Return a `tf.random.Generator` as a stream; None for all other objects."""
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
