"""tf.data: how many iterators were made over each shuffled set, how far those alive have come, and their positions as data.

A position is what TensorFlow's own checkpoint of an iterator holds in explicit mode: counts, the seeds of shuffling, and by value
what waits in buffers. It is exact where nothing in the pipeline has a state of its own, else TensorFlow refuses, and so do we; such
an iterator is brought back by drawing from it as often again. The symbolic mode restores maps that draw random numbers wrongly.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np
import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops, iterator_ops, multi_device_iterator_ops, options, repeat_op
from tensorflow.python.eager import context
from tensorflow.python.framework import op_def_registry
from tensorflow.python.ops import gen_dataset_ops

from detrain.errors import Diverged
from detrain.frameworks.births import Births
from detrain.frameworks.tensorflow_hold import Pulls
from detrain.runtime.config import Mode
from detrain.runtime.digest import Array

_MOST_BYTES: Final = 64 << 20
"""Positions above this size would make checkpoints slow: buffers of shuffling are stored by value."""
_GRAPH_INSIDE: Final = b".is_dataset"
"""Marks, in a position, an element that is a dataset: a graph, which TensorFlow would run. Nothing from a file is run here."""
_HARMLESS: Final = frozenset(
    {
        *("Assert", "Print", "PrintV2", "LookupTableFindV2", "LookupTableSizeV2"),
        *("StatefulPartitionedCall", "If", "While", "Case"),
    }
)
"""Operations that count as stateful and keep no state between elements; what they call is looked at by itself."""
_RANDOM: Final = ("Random", "Multinomial", "Truncated", "Parameterized", "SampleDistorted", "StatefulRandom", "StatefulUniform")
_PYTHON: Final = ("PyFunc", "EagerPyFunc", "PyFuncStateless")


class NoPosition(Exception):
    """An iterator's position cannot be had as data. The text says why."""


class Datasets:
    """Watches datasets and iterators from the moment TensorFlow is there."""

    def __init__(self, births: Births, is_of_fit: Callable[[Any], bool]) -> None:
        self._births = births
        self._is_of_fit = is_of_fit
        self._iterators: dict[str, weakref.ref[Any]] = {}
        self._shuffles: dict[str, weakref.ref[Any]] = {}
        self._made: dict[str, int] = {}
        self._pulls: Pulls | None = None
        self._lost_orders: set[str] = set()
        """Keys of shuffled sets that an iterator which is gone has repeated: their order from there on cannot be had again."""

    def made(self) -> dict[str, int]:
        """Return how many iterators were made over each shuffled set."""
        return self._made

    def counters(self) -> dict[str, Any]:
        """Return how many iterators were made over each shuffled set, and how many elements those alive have given."""
        return {
            "shuffles": self._made,
            "iterators": {key: iterator.detrain_pulled for key, iterator in self._alive()},
            "uncounted": [key for key, iterator in self._alive() if iterator.detrain_is_traced],
        }

    def positions(self, mode: Mode) -> tuple[dict[str, Array], list[str]]:
        """Return the positions of the iterators alive, as data, and why others have none.

        With `forward` only of those that compiled functions advance: nobody counts what they draw, so it cannot be drawn again.
        """
        found: dict[str, Array] = {}
        reasons = []
        for key, iterator in self._alive():
            if mode == "forward" and not iterator.detrain_is_traced:
                continue
            if self._pulls is not None and self._pulls.has_waiting(iterator):
                reasons.append("elements of a tf.data iterator are handed out again")
                continue
            try:
                found[key] = read_position(iterator, iterator._dataset, is_forced=mode == "seek" or iterator.detrain_is_traced)
            except NoPosition as reason:
                reasons.append(str(reason))
        return found, reasons

    def restore(self, state: Mapping[str, Any], positions: Mapping[str, Array], mode: Mode) -> None:
        """Make the iterators that the first run had made, and bring those alive to where they were."""
        self.make_iterators(state["shuffles"])
        alive = dict(self._alive())
        for key, pulled in state["iterators"].items():
            iterator = alive.get(key)
            if iterator is not None and key in positions and (mode != "forward" or key in state["uncounted"]):
                set_position(iterator, positions[key])
                iterator.detrain_pulled = pulled
            while iterator is not None and iterator.detrain_pulled < pulled:
                next(iterator)
        self._made = dict(state["shuffles"])

    def make_iterators(self, made: Mapping[str, int]) -> None:
        """Make as many iterators over each shuffled set as the first run had made."""
        for key in reversed(list(self._shuffles)):  # a later set draws from an earlier one, never the other way
            dataset = self._shuffles[key]()
            while dataset is not None and self._made.get(key, 0) < made.get(key, 0):
                iter(dataset)

    def is_counted(self, value: object) -> bool:
        """Return whether an object is an iterator that `restore` brings back."""
        key = self._births.key(value)
        return key is not None and key in self._iterators and self._iterators[key]() is value

    def not_captured(self) -> list[str]:
        """Return, in words, what cannot be had again: orders of sets, and iterators that nobody has counted."""
        found = [f"order of {key} (a shuffled set, repeated inside of one epoch's iterator)" for key in sorted(self._lost_orders)]
        return found + [
            f"{key} (a tf.data iterator that a tf.function advances; {reason})"
            for key, iterator in self._alive()
            if iterator.detrain_is_traced and (reason := _refusal(iterator._dataset, is_forced=True)) is not None
        ]

    def _alive(self) -> Iterator[tuple[str, Any]]:
        for key, reference in list(self._iterators.items()):
            iterator = reference()
            if iterator is None:
                del self._iterators[key]
            else:
                yield key, iterator

    def watch(self, iterators: weakref.WeakSet[Any], pulls: Pulls) -> None:
        """See each dataset and iterator that is made; `iterators` takes all of them, what they give goes through `pulls`."""
        self._pulls = pulls
        original_dataset = dataset_ops.DatasetV2.__init__
        original_iterator = iterator_ops.OwnedIterator.__init__
        original_many = multi_device_iterator_ops.OwnedMultiDeviceIterator.__init__
        original_next = iterator_ops.OwnedIterator._next_internal
        original_type = iterator_ops.OwnedIterator.__tf_tracing_type__
        births = self._births

        @functools.wraps(original_dataset)
        def dataset_made(dataset: Any, *args: Any, **kwargs: Any) -> None:
            original_dataset(dataset, *args, **kwargs)
            if type(dataset).__name__ == "_ShuffleDataset":
                self._shuffles[births.register(dataset, "shuffle", sys._getframe(1))] = weakref.ref(dataset)

        @functools.wraps(original_iterator)
        def iterator_made(iterator: Any, dataset: Any = None, *args: Any, **kwargs: Any) -> None:
            original_iterator(iterator, dataset, *args, **kwargs)
            iterator.detrain_pulled, iterator.detrain_is_traced = 0, False
            iterators.add(iterator)
            if dataset is not None and context.executing_eagerly():
                if not self._is_of_fit(sys._getframe(1)):
                    self._iterators[births.register(iterator, "iterator", sys._getframe(1))] = weakref.ref(iterator)
                self._count_iterator(iterator, dataset)

        @functools.wraps(original_many)
        def many_made(iterator: Any, dataset: Any = None, *args: Any, **kwargs: Any) -> None:
            original_many(iterator, dataset, *args, **kwargs)
            if dataset is not None and context.executing_eagerly():
                self._count_iterator(iterator, dataset)

        @functools.wraps(original_next)
        def advanced(iterator: Any) -> Any:
            value = pulls.next(iterator, original_next)
            if context.executing_eagerly():
                iterator.detrain_pulled += 1
            else:
                iterator.detrain_is_traced = True
            return value

        @functools.wraps(original_type)
        def given_to_function(iterator: Any, *args: Any) -> Any:
            iterator.detrain_is_traced = True
            return original_type(iterator, *args)

        dataset_ops.DatasetV2.__init__ = dataset_made
        iterator_ops.OwnedIterator.__init__ = iterator_made
        multi_device_iterator_ops.OwnedMultiDeviceIterator.__init__ = many_made
        iterator_ops.OwnedIterator._next_internal = advanced
        iterator_ops.OwnedIterator.__tf_tracing_type__ = given_to_function

    def _count_iterator(self, iterator: Any, dataset: Any) -> None:
        """Count an iterator over the shuffled sets that it draws from."""
        shuffles = _upstream_shuffles(dataset, self._births)
        iterator.detrain_made = {key: self._made.get(key, 0) for key in shuffles}
        for key in shuffles:
            self._made[key] = self._made.get(key, 0) + 1
        for key in _upstream_shuffles(dataset, self._births, is_only_repeated=True):
            weakref.finalize(iterator, self._lost_orders.add, key).atexit = False


def read_position(iterator: Any, dataset: Any, *, is_forced: bool = False, is_judged: bool = False) -> Array:
    """Return the position of an iterator: uint8 [n], TensorFlow's own form. Raises NoPosition.

    `dataset` is what the iterator draws from, or the part of it to be judged. `is_judged`: it was found free of state, do not have
    TensorFlow look again (it would find the stage of ours that takes digests).
    """
    reason = _refusal(dataset, is_forced=is_forced)
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
    """Bring an iterator over the same pipeline to a position. Raises Diverged if the pipeline is another one."""
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


def _refusal(dataset: Any, *, is_forced: bool = False) -> str | None:
    """Return why an iterator over a dataset has no position as data, as far as its stages show, or None."""
    if dataset is None:
        return "a tf.data iterator that is not made from a dataset"
    for stage in stages(dataset):
        name = type(stage).__name__.strip("_")
        for operation in _operations(stage):
            definition = op_def_registry.get(operation)
            is_stateful = definition is None or (definition.is_stateful and "Dataset" not in operation)
            if is_stateful and operation not in _HARMLESS | _allowed(stage):
                return f"{name} in its tf.data pipeline {_what(operation)} ({operation})"
        if name == "CacheDataset" and not is_forced:
            return "cache() in its tf.data pipeline would be stored whole"
        size = 0 if is_forced else max(_buffer_bytes(stage), getattr(stage, "detrain_state_bytes", 0))
        if size > _MOST_BYTES:
            return _too_large(size)
    return None


def stages(dataset: Any) -> Iterator[Any]:
    """Yield a dataset and all those that it draws from."""
    seen: set[int] = set()
    waiting = [dataset]
    while waiting:
        stage = waiting.pop()
        if id(stage) not in seen:
            seen.add(id(stage))
            yield stage
            waiting.extend(stage._inputs())


def _operations(stage: Any) -> set[str]:
    """Return the kinds of operations in the functions of a stage, and in those that they call."""
    found: set[str] = set()
    for function in stage._functions():
        graph = function.function.graph.as_graph_def()
        found.update(node.op for node in graph.node)
        found.update(node.op for called in graph.library.function for node in called.node_def)
        names = {called.signature.name for called in graph.library.function}
        found -= names  # a call of a function, by its name
    return found


def allow(stage: Any, operation: str) -> None:
    """Note that a stage is done with an operation before the first element is out, so that its state does not matter."""
    stage.detrain_allowed = _allowed(stage) | {operation}


def _allowed(stage: Any) -> frozenset[str]:
    return getattr(stage, "detrain_allowed", frozenset())


def _what(operation: str) -> str:
    if operation in _PYTHON:
        return "runs Python"
    if operation.startswith(_RANDOM):
        return "draws random numbers"
    return "reads a variable" if operation == "ReadVariableOp" else "has a state of its own"


def _buffer_bytes(stage: Any) -> int:
    """Return how much a stage that shuffles holds, as far as the shapes of its elements say."""
    if type(stage).__name__ != "_ShuffleDataset":
        return 0
    specs = [spec for spec in tf.nest.flatten(stage.element_spec) if isinstance(spec, tf.TensorSpec)]
    sizes = [spec.shape.num_elements() * max(spec.dtype.size, 1) for spec in specs if spec.shape.is_fully_defined()]
    rows = int(stage._buffer_size)
    length = int(stage._input_dataset.cardinality())
    return int(sum(sizes)) * (min(rows, length) if length >= 0 else rows)


def _too_large(size_bytes: int) -> str:
    return f"the buffers of its tf.data pipeline hold {size_bytes >> 20} MB, which each checkpoint would store (--loader seek does)"


def _cause(error: Exception) -> str:
    text = getattr(error, "message", "") or str(error)
    return str(text).partition("\n")[0].rpartition("}} ")[2].partition(" [Op:")[0][:200]


def _upstream_shuffles(dataset: Any, births: Births, *, is_only_repeated: bool = False) -> set[str]:
    """Return the keys of the shuffled sets that an iterator over a dataset draws from, or of those that it draws from again and
    again, because they are repeated downstream: how often, nobody counts.
    """
    found: set[str] = set()
    seen: set[tuple[int, bool]] = set()
    waiting = [(dataset, not is_only_repeated)]
    while waiting:
        current, is_wanted = waiting.pop()
        if (id(current), is_wanted) in seen:
            continue
        seen.add((id(current), is_wanted))
        key = births.key(current)
        if key is not None and is_wanted:
            found.add(key)
        is_wanted = is_wanted or isinstance(current, repeat_op._RepeatDataset)
        waiting.extend((upstream, is_wanted) for upstream in current._inputs())
    return found
