"""Positions of tf.data iterators as data.

A position is the content of TensorFlow's own checkpoint of an iterator in explicit mode: counts, the seeds of
shuffling, and the elements waiting in buffers, by value. It is exact if no stage of the pipeline has a state of its
own; otherwise TensorFlow refuses, and so does detrain, which then draws as often from the iterator again. TensorFlow's
symbolic mode restores maps that draw random numbers wrongly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import tensorflow as tf
from tensorflow.python.data.ops import options
from tensorflow.python.framework import op_def_registry
from tensorflow.python.ops import gen_dataset_ops

from detrain.base.digest import Array, digest_value
from detrain.base.errors import Diverged
from detrain.python.inspect.held import walk

_MOST_BYTES: Final = 64 << 20
"""The largest position that keeps checkpoints quick, in bytes: buffers of shuffling are stored by value."""
_MOST_PLACES: Final = 1 << 16
"""The most places of a shuffle's buffer: even empty ones take time to write (a million over 22 rows 13 to 80 s)."""
_GRAPH_INSIDE: Final = b".is_dataset"
"""The mark, in a position, of an element that is a dataset: a graph, which TensorFlow would run. detrain runs nothing
from a file."""
_HARMLESS: Final = frozenset(
    {
        *("Assert", "Print", "PrintV2", "LookupTableFindV2", "LookupTableSizeV2"),
        *("StatefulPartitionedCall", "If", "While", "Case"),
    }
)
"""Ops that count as stateful, but keep no state between elements; functions that they call are checked separately."""
_RANDOM: Final = ("Random", "Multinomial", "Truncated", "Parameterized", "SampleDistorted", "StatefulRandom", "StatefulUniform")
_KEEPING: Final = ("CacheDataset", "PerDeviceGenerator")
_PYTHON: Final = ("PyFunc", "EagerPyFunc", "PyFuncStateless")


class NoPosition(Exception):
    """An iterator's position cannot be read as data. The text says why."""


def read_position(iterator: Any, dataset: Any, *, is_forced: bool = False, is_judged: bool = False) -> Array:
    """Return the position of an iterator: uint8 [n], TensorFlow's own form. Raises NoPosition.

    `dataset` is the iterator's source, or the part of it to be judged. `is_judged`: it was found free of state, so
    TensorFlow must not check again (it would find detrain's own stage that takes digests).
    """
    reason = refusal(dataset, is_forced=is_forced)
    if reason is not None:
        raise NoPosition(reason)
    policy = options.ExternalStatePolicy.IGNORE if is_judged else options.ExternalStatePolicy.FAIL
    try:
        state = gen_dataset_ops.serialize_iterator(iterator._iterator_resource, policy.value)
        data = np.frombuffer(tf.io.serialize_tensor(state).numpy(), np.uint8)
    except (tf.errors.OpError, ValueError) as error:
        raise NoPosition(f"TensorFlow cannot save its iterator: {_cause(error)}") from error
    if _GRAPH_INSIDE in data.tobytes():
        raise NoPosition("a stage of its tf.data pipeline holds datasets as elements")
    if data.nbytes > _MOST_BYTES and not is_forced:
        dataset.detrain_state_bytes = data.nbytes
        raise NoPosition(_too_large(data.nbytes))
    return data


def set_position(iterator: Any, position: Array) -> None:
    """Bring an iterator over the same pipeline to a position. Raises Diverged if it is another pipeline."""
    data = position.tobytes()
    if _GRAPH_INSIDE in data:
        raise Diverged("the position of a tf.data iterator in the checkpoint holds a graph", "detrain runs nothing from a file")
    try:
        gen_dataset_ops.deserialize_iterator(iterator._iterator_resource, tf.io.parse_tensor(data, tf.variant))
    except tf.errors.OpError as error:
        raise Diverged(
            f"a tf.data iterator cannot be set to its position: {_cause(error)}",
            "is it another pipeline than the first run's? Load the batches again with --loader forward, or use --fresh",
        ) from error


def refusal(dataset: Any, *, is_forced: bool = False) -> str | None:
    """Return why an iterator over a dataset has no position as data, judged by its stages; None if it has one."""
    if dataset is None:
        return "a tf.data iterator that is not made from a dataset"
    for stage in stages(dataset):
        name = type(stage).__name__.strip("_")
        if name.endswith("PerDeviceGenerator"):
            return "it takes one device's part of a distributed set, which TensorFlow cannot save"
        for operation in _operations(stage):
            definition = op_def_registry.get(operation)
            is_stateful = definition is None or (definition.is_stateful and "Dataset" not in operation)
            if is_stateful and operation not in _HARMLESS | _allowed(stage):
                return f"{name} in its tf.data pipeline {_what(operation)} ({operation})"
        # TensorFlow's mixing iterator never goes on if it is set to a position after the end of one of its inputs.
        if name == "DirectedInterleaveDataset":
            return "a set mixed from several in its tf.data pipeline has a position from which TensorFlow may not go on"
        if name == "CacheDataset" and not is_forced:
            return "cache() in its tf.data pipeline would be stored whole"
        if (places := _places(stage)) > _MOST_PLACES and not is_forced:
            return f"a shuffle() in its tf.data pipeline has {places:,} places, each of which TensorFlow writes, filled or not"
        size = 0 if is_forced else max(_buffer_bytes(stage), getattr(stage, "detrain_state_bytes", 0))
        if size > _MOST_BYTES:
            return _too_large(size)
    return None


def can_be_drawn_again(dataset: Any) -> bool:
    """Return whether a new iterator over a dataset gives the same elements as another, after the same seeds: no stage
    runs Python, reads a variable, or keeps elements.
    """
    found = [(stage, each) for stage in stages(dataset) for each in _operations(stage) if each not in _HARMLESS | _allowed(stage)]
    definitions = [(each, op_def_registry.get(each)) for _stage, each in found]
    is_free = all(
        each.startswith(_RANDOM) or (definition is not None and ("Dataset" in each or not definition.is_stateful))
        for each, definition in definitions
    )
    return is_free and not any(type(stage).__name__.strip("_").endswith(_KEEPING) for stage in stages(dataset))


def stages(dataset: Any) -> Iterator[Any]:
    """Yield a dataset and all datasets that it draws from, each once."""
    return walk([dataset], lambda stage: stage._inputs()[::-1], id)


def runs_python(dataset: Any) -> bool:
    """Return whether a stage of a pipeline calls Python (`py_function`, `from_generator`)."""
    return any(not _operations(stage).isdisjoint(_PYTHON) for stage in stages(dataset))


def _operations(stage: Any) -> set[str]:
    """Return the kinds of ops in the functions of a stage, and in functions that these call."""
    found: set[str] = set()
    for function in stage._functions():
        graph = function.function.graph.as_graph_def()
        found.update(node.op for node in graph.node)
        found.update(node.op for called in graph.library.function for node in called.node_def)
        names = {called.signature.name for called in graph.library.function}
        found -= names  # a call of a function stands there under the function's name
    return found


def allow(stage: Any, operation: str) -> None:
    """Note that a stage runs an op only before its first element, so that the op's state does not matter."""
    stage.detrain_allowed = _allowed(stage) | {operation}


def _allowed(stage: Any) -> frozenset[str]:
    return getattr(stage, "detrain_allowed", frozenset())


def _what(operation: str) -> str:
    if operation in _PYTHON:
        return "runs Python"
    if operation.startswith(_RANDOM):
        return "draws random numbers"
    return "reads a variable" if operation == "ReadVariableOp" else "has a state of its own"


def _places(stage: Any) -> int:
    """Return how many elements the buffer of a shuffling stage has room for; 0 for other stages."""
    return int(stage._buffer_size) if type(stage).__name__ == "_ShuffleDataset" else 0


def _buffer_bytes(stage: Any) -> int:
    """Return the size of a shuffling stage's buffer in bytes, as far as the elements' shapes are known."""
    rows = _places(stage)
    if not rows:
        return 0
    specs = [spec for spec in tf.nest.flatten(stage.element_spec) if isinstance(spec, tf.TensorSpec)]
    sizes = [spec.shape.num_elements() * max(spec.dtype.size, 1) for spec in specs if spec.shape.is_fully_defined()]
    length = int(stage._input_dataset.cardinality())
    return int(sum(sizes)) * (min(rows, length) if length >= 0 else rows)


def _too_large(size_bytes: int) -> str:
    return f"the buffers of its tf.data pipeline hold {size_bytes >> 20} MB, which each checkpoint would store (--loader seek does)"


def _cause(error: Exception) -> str:
    text = getattr(error, "message", "") or str(error)
    return str(text).partition("\n")[0].rpartition("}} ")[2].partition(" [Op:")[0][:200]


def draw_again(behind: Sequence[tuple[Any, int]]) -> None:
    """Draw from the iterators of one source, in turn, until each has given so many elements.

    They take turns because the source waits until each device has taken its part.
    """
    while waiting := [iterator for iterator, pulled in behind if iterator.detrain_pulled < pulled]:
        for iterator in waiting:
            iterator.detrain_last = next(iterator)


def is_drawn_again(iterator: Any) -> bool:
    """Return whether a resumed run draws an iterator's elements again, since it has no position."""
    if not hasattr(iterator, "detrain_is_drawn_again"):
        iterator.detrain_is_drawn_again = refusal(iterator._dataset) is not None
    return bool(iterator.detrain_is_drawn_again)


def digest_of_element(element: Any) -> str:
    """Return the digest of the tensors in an element, except those without numbers (resources, variants)."""
    parts = [part for part in tf.nest.flatten(element, expand_composites=True) if part.dtype not in (tf.variant, tf.resource)]
    return digest_value([part.numpy() for part in parts], lambda _value: None)


def require_same(key: str, iterator: Any, state: Mapping[str, Any]) -> None:
    """Raise Diverged if the last element of an iterator that was drawn from again is not the first run's."""
    expected = state.get("last", {}).get(key)
    if expected is None or iterator.detrain_last is None:
        return
    found = digest_of_element(iterator.detrain_last)
    if found != expected:
        raise Diverged(
            f"element {iterator.detrain_pulled - 1} of {key!r}, a tf.data iterator that lives on, has digest {found} as it is "
            f"drawn again; the first run had {expected}",
            "the data, or what its pipeline draws them with, is not what it was; restore it or use --fresh",
        )
