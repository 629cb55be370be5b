"""tf.data: what each shuffled set has given its iterators as seeds, how far those alive have come, and their positions as data.

A position is what TensorFlow's own checkpoint of an iterator holds in explicit mode: counts, the seeds of shuffling, and by value
what waits in buffers. It is exact where nothing in the pipeline has a state of its own, else TensorFlow refuses, and so do we; such
an iterator is brought back by drawing from it as often again. The symbolic mode restores maps that draw random numbers wrongly.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, Final

import numpy as np
import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops, iterator_ops, multi_device_iterator_ops, optional_ops, options
from tensorflow.python.data.util import structure
from tensorflow.python.eager import context
from tensorflow.python.framework import errors_impl, op_def_registry
from tensorflow.python.ops import gen_dataset_ops, gen_optional_ops

from detrain.errors import Diverged, NotCapturable
from detrain.frameworks import tensorflow_seeds
from detrain.frameworks.births import Births
from detrain.frameworks.tensorflow_hold import Pulls, runs_python
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
_SHUFFLED: Final = ("_ShuffleDataset", "_RandomDataset")
_ENDERS: Final = ("_Take", "_Zip", "_DirectedInterleave")
_AHEAD: Final = ("_Prefetch", "_Parallel")
_PYTHON: Final = ("PyFunc", "EagerPyFunc", "PyFuncStateless")


class NoPosition(Exception):
    """An iterator's position cannot be had as data. The text says why."""


class Datasets:
    """Watches datasets and iterators from the moment TensorFlow is there."""

    def __init__(self, births: Births, is_of_fit: Callable[[Any], bool], of_fit: Callable[[], Any]) -> None:
        self._births, self._of_fit = births, of_fit
        self._is_of_fit = is_of_fit
        self._iterators: dict[str, weakref.ref[Any]] = {}
        self._seeds: dict[str, weakref.ref[tensorflow_seeds.Seeds]] = {}
        self._caches: dict[str, weakref.ref[Any]] = {}
        """Caches over shuffled sets."""
        self._filled_by_python: weakref.WeakSet[Any] = weakref.WeakSet()
        """Caches whose content Python makes: another run of it may make another."""
        self._called: dict[str, tuple[weakref.ref[Any], object]] = {}
        """Sets that Python makes the elements of, and what they call for these."""
        self._made: dict[str, int] = {}
        self._pulls: Pulls | None = None
        self._uncertain: set[str] = set()
        """Keys of shuffled sets that an iterator was about to go over anew when it was dropped: whether it had, is chance."""

    def begin_phase(self) -> None:
        """A training loop begins: what iterators before it have gone over anew is known now, and comes back."""
        self._uncertain.clear()

    def made(self) -> dict[str, int]:
        """Return how many iterators were made over each shuffled set."""
        return self._made

    def counters(self) -> dict[str, Any]:
        """Return what each shuffled set has given as seeds, and how many elements the iterators alive have given."""
        return {
            "caches": {key: start for key, cached, cache in self._alive_caches() if (start := cache.start_of(cached)) is not None},
            "seeds": {key: seeds.given for key, seeds in self._alive_seeds()},
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

    def restore(self, state: Mapping[str, Any], positions: Mapping[str, Array], mode: Mode, of_fit: Any) -> None:
        """Bring the iterators alive to where they were, and shuffled sets to the seeds that they give next.

        `of_fit` is what the running `fit` draws from by an iterator of its own, or None.
        """
        if "seeds" not in state:
            raise Diverged("an earlier version of detrain took the checkpoint", "start anew with --fresh")
        alive = dict(self._alive())
        lost = [key for key in state["uncounted"] if key in alive and key not in positions]
        if lost:  # no digest would tell: its batches are loaded inside of a function
            raise NotCapturable(
                f"{lost[0]!r}, a tf.data iterator that a tf.function advances, has no position: its pipeline has a state",
                "draw its batches in the Python loop, or make it in the epoch that draws from it, and start anew with --fresh",
            )
        behind: dict[int, list[tuple[Any, int]]] = {}
        for key, pulled in state["iterators"].items():
            iterator = alive.get(key)
            if iterator is not None and key in positions and (mode != "forward" or key in state["uncounted"]):
                set_position(iterator, positions[key])
                iterator.detrain_pulled = pulled
            elif iterator is not None:
                behind.setdefault(id(getattr(iterator, "detrain_source", iterator)), []).append((iterator, pulled))
        for together in behind.values():
            _draw_again(together)
        for key, cached, cache in self._alive_caches():
            if key in state["caches"] and not cache.is_filled(cached):
                self.set_seeds(state["caches"][key])
                for _element in cached:
                    pass
        repeated = self._repeated(of_fit)
        self.set_seeds({key: given for key, given in state["seeds"].items() if key not in repeated})

    def _repeated(self, of_fit: Any) -> set[str]:
        """Return the shuffled sets that an iterator alive repeats.

        It takes seeds while it runs ahead of what draws from it: they come back with its position.
        """
        sources = [of_fit, *(getattr(iterator, "detrain_source", iterator._dataset) for _key, iterator in self._alive())]
        return {seeds.key for source in sources if source is not None for seeds in tensorflow_seeds.drawn(source).later}

    def given(self) -> dict[str, int]:
        """Return what shuffled sets have given as seeds, but for those that an iterator repeats: it stays where it is."""
        repeated = self._repeated(self._of_fit())
        return {key: seeds.given for key, seeds in self._alive_seeds() if key not in repeated}

    def set_given(self, given: Mapping[str, int]) -> None:
        """Set what `given` returned."""
        for key, seeds in self._alive_seeds():
            if key in given and seeds.given != given[key]:
                seeds.given = given[key]

    def set_seeds(self, given: Mapping[str, int]) -> None:
        """Have shuffled sets go on with the seeds that come after those which they had given."""
        for key, seeds in self._alive_seeds():
            if key in given:
                seeds.given = given[key]

    def _alive_caches(self) -> Iterator[tuple[str, Any, tensorflow_seeds.Cache]]:
        for key, reference in list(self._caches.items()):
            dataset = reference()
            cache = None if dataset is None else tensorflow_seeds.cache_of(dataset)
            if cache is None:
                del self._caches[key]
            else:
                yield key, dataset, cache

    def _alive_seeds(self) -> Iterator[tuple[str, tensorflow_seeds.Seeds]]:
        for key, reference in list(self._seeds.items()):
            seeds = reference()
            if seeds is None:
                del self._seeds[key]
            else:
                yield key, seeds

    def is_counted(self, value: object) -> bool:
        """Return whether an object is an iterator that `restore` brings back."""
        key = self._births.key(value)
        return key is not None and key in self._iterators and self._iterators[key]() is value

    def not_captured(self) -> list[str]:
        """Return, in words, what cannot be had again: orders of sets, and iterators that nobody has counted."""
        found = [f"order of {key} (a shuffled set, repeated by an iterator that was left)" for key in sorted(self._uncertain)]
        if self._filled_by_python:
            found.append(
                "what a cache() of tf.data holds (Python fills it; a resumed run fills it again, by what its Python draws then)"
            )
        return found + [
            f"{key} (a tf.data iterator that a tf.function advances; {reason})"
            for key, iterator in self._alive()
            if iterator.detrain_is_traced and (reason := _refusal(iterator._dataset, is_forced=True)) is not None
        ]

    def beyond_recall(self) -> list[str]:
        """Return, in words, the iterators that compiled functions advance: nobody has what they have given."""
        traced = [key for key, iterator in self._alive() if iterator.detrain_is_traced]
        return [f"{key} (a tf.data iterator that a tf.function advances)" for key in traced]

    def called(self) -> dict[str, object]:
        """Return what sets alive call for their elements, by their keys."""
        self._called = {key: entry for key, entry in self._called.items() if entry[0]() is not None}
        return {key: generator for key, (_dataset, generator) in self._called.items()}

    def _alive(self) -> Iterator[tuple[str, Any]]:
        for key, reference in list(self._iterators.items()):
            iterator = reference()
            if iterator is None:
                del self._iterators[key]
            else:
                yield key, iterator

    def watch(self, iterators: weakref.WeakSet[Any], pulls: Pulls) -> None:
        """See each dataset and iterator. What they give goes through `pulls`; `iterators` takes those that are not of `fit`."""
        self._pulls = pulls
        tensorflow_seeds.watch()
        original_dataset = dataset_ops.DatasetV2.__init__
        original_iterator = iterator_ops.OwnedIterator.__init__
        original_many = multi_device_iterator_ops.OwnedMultiDeviceIterator.__init__
        original_next = iterator_ops.OwnedIterator._next_internal
        original_optional = iterator_ops.OwnedIterator.get_next_as_optional
        original_type = iterator_ops.OwnedIterator.__tf_tracing_type__
        original_parts = iterator_ops.IteratorSpec._to_components
        original_generator = dataset_ops.DatasetV2.from_generator
        births = self._births

        @functools.wraps(original_generator)
        def from_generator(generator: Any, *args: Any, **kwargs: Any) -> Any:
            dataset = original_generator(generator, *args, **kwargs)
            if context.executing_eagerly():
                # Not registered: what is made of a set is made by the program, and counted there.
                self._called[births.next_key("generator", sys._getframe(1))] = weakref.ref(dataset), generator
            return dataset

        @functools.wraps(original_dataset)
        def dataset_made(dataset: Any, *args: Any, **kwargs: Any) -> None:
            original_dataset(dataset, *args, **kwargs)
            key = births.register(dataset, "shuffle", sys._getframe(1)) if type(dataset).__name__ in _SHUFFLED else ""
            seeds = tensorflow_seeds.on_dataset(dataset) if context.executing_eagerly() else None
            if seeds is not None:
                seeds.key = key
                self._seeds[key] = weakref.ref(seeds)
            if type(dataset).__name__ == "CacheDataset" and runs_python(dataset):
                self._filled_by_python.add(dataset)
            if context.executing_eagerly() and tensorflow_seeds.cache_of(dataset) is not None:
                self._caches[births.register(dataset, "cache", sys._getframe(1))] = weakref.ref(dataset)

        @functools.wraps(original_iterator)
        def iterator_made(iterator: Any, dataset: Any = None, *args: Any, **kwargs: Any) -> None:
            is_of_fit = self._is_of_fit(sys._getframe(1))
            if dataset is not None and context.executing_eagerly():
                begin(iterator, dataset, is_of_fit=is_of_fit)
            original_iterator(iterator, dataset, *args, **kwargs)
            iterator.detrain_pulled, iterator.detrain_is_traced = 0, False
            if not is_of_fit:  # whose batches are kept by their steps
                iterators.add(iterator)
            if dataset is not None and context.executing_eagerly():
                if not is_of_fit:
                    self._iterators[births.register(iterator, "iterator", _asking(dataset))] = weakref.ref(iterator)
                # What `fit` draws from to its end it leaves nowhere.
                self._count_iterator(
                    iterator, dataset, is_drawn_out=is_of_fit and dataset.cardinality() != tf.data.INFINITE_CARDINALITY
                )

        @functools.wraps(original_many)
        def many_made(iterator: Any, dataset: Any = None, *args: Any, **kwargs: Any) -> None:
            if dataset is not None and context.executing_eagerly():
                begin(iterator, dataset)
            original_many(iterator, dataset, *args, **kwargs)
            if dataset is not None and context.executing_eagerly():
                self._count_iterator(iterator, dataset)
                for each in iterator._device_iterators:
                    each.detrain_source = dataset

        @functools.wraps(original_next)
        def advanced(iterator: Any) -> Any:
            try:
                value = pulls.next(iterator, original_next)
            except errors_impl.OutOfRangeError:
                end(iterator)
                raise
            if context.executing_eagerly():
                iterator.detrain_pulled += 1
            else:
                iterator.detrain_is_traced = True
            return value

        @functools.wraps(original_optional)
        def advanced_if_possible(iterator: Any) -> Any:
            if not context.executing_eagerly():
                iterator.detrain_is_traced = True
                return original_optional(iterator)
            try:
                value = advanced(iterator)
            except errors_impl.OutOfRangeError:
                return original_optional(iterator)
            spec = iterator.element_spec
            return optional_ops._OptionalImpl(gen_optional_ops.optional_from_value(structure.to_tensor_list(spec, value)), spec)

        @functools.wraps(original_type)
        def given_to_function(iterator: Any, *args: Any) -> Any:
            iterator.detrain_is_traced = True
            return original_type(iterator, *args)

        @functools.wraps(original_parts)
        def taken_apart(spec: Any, iterator: Any) -> Any:  # as a part of a distributed one that a function is given
            iterator.detrain_is_traced = True
            return original_parts(spec, iterator)

        dataset_ops.DatasetV2.__init__ = dataset_made
        dataset_ops.DatasetV2.from_generator = staticmethod(from_generator)
        iterator_ops.OwnedIterator.__init__ = iterator_made
        multi_device_iterator_ops.OwnedMultiDeviceIterator.__init__ = many_made
        iterator_ops.OwnedIterator._next_internal = advanced
        iterator_ops.OwnedIterator.get_next_as_optional = advanced_if_possible
        iterator_ops.OwnedIterator.__tf_tracing_type__ = given_to_function
        iterator_ops.IteratorSpec._to_components = taken_apart

    def _count_iterator(self, iterator: Any, dataset: Any, *, is_drawn_out: bool = False) -> None:
        """Count an iterator over the shuffled sets that it draws from."""
        drawn = tensorflow_seeds.drawn(dataset)
        for key in drawn.names():
            self._made[key] = self._made.get(key, 0) + 1
        if drawn.later and not is_drawn_out:
            iterator.detrain_runs_ahead = _runs_ahead(dataset)
            iterator.detrain_left = weakref.finalize(iterator, self._uncertain.update, [seeds.key for seeds in drawn.later])
            iterator.detrain_left.atexit = False


def _draw_again(behind: Sequence[tuple[Any, int]]) -> None:
    """Draw from the iterators of one source until each has given so many, in turn: it waits until each device takes its part."""
    while waiting := [iterator for iterator, pulled in behind if iterator.detrain_pulled < pulled]:
        for iterator in waiting:
            next(iterator)


def _asking(dataset: Any) -> FrameType | None:
    """Return the frame that asks a dataset for an iterator: a shuffled set is no owner, its counts would not come back."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_locals.get("self") is dataset:
        frame = frame.f_back
    return frame


def begin(iterator: Any, dataset: Any, *, is_of_fit: bool = False) -> None:
    """Note what is there when an iterator over a dataset is about to be made."""
    if is_of_fit:
        iterator.detrain_given = tensorflow_seeds.given(dataset)
    drawn = tensorflow_seeds.drawn(dataset)
    for stage in stages(dataset) if drawn.at_start or drawn.later else ():
        cache = tensorflow_seeds.cache_of(stage)
        if cache is not None:
            cache.begin(stage)


def end(iterator: Any) -> None:
    """Note that an iterator has run out: it goes over nothing anew any more, but for what a stage has drawn ahead and dropped."""
    left = getattr(iterator, "detrain_left", None)
    if left is not None and not iterator.detrain_runs_ahead:
        left.detach()


def _runs_ahead(dataset: Any) -> bool:
    """Return whether a stage of a pipeline may end while one before it, which works on its own, still has elements."""
    enders = [stage for stage in stages(dataset) if type(stage).__name__.startswith(_ENDERS)]
    return any(type(stage).__name__.startswith(_AHEAD) for ender in enders for stage in stages(ender))


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
        if name.endswith("PerDeviceGenerator"):
            return "it takes one device's part of a distributed set, which TensorFlow cannot save"
        for operation in _operations(stage):
            definition = op_def_registry.get(operation)
            is_stateful = definition is None or (definition.is_stateful and "Dataset" not in operation)
            if is_stateful and operation not in _HARMLESS | _allowed(stage):
                return f"{name} in its tf.data pipeline {_what(operation)} ({operation})"
        if name == "DirectedInterleaveDataset":  # set to a position behind the end of one of its inputs, TensorFlow's never goes on
            return "a set mixed from several in its tf.data pipeline has a position from which TensorFlow may not go on"
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
