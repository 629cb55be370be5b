"""Variables of TensorFlow at a moment, held by reference, and put back; and small compiled functions over variables.

Iterators cannot be set back. What they hand out after a moment is kept while the moment is held, and handed out again.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

import numpy as np
import tensorflow as tf
from tensorflow.python.data.ops import iterator_ops
from tensorflow.python.eager import context
from tensorflow.python.eager.polymorphic_function import atomic_function
from tensorflow.python.framework import func_graph
from tensorflow.python.ops import gen_resource_variable_ops

from detrain.adapters.api import CannotGoBackError, PutBack, Watched
from detrain.adapters.lazy_building import Building
from detrain.adapters.stable_names import Births
from detrain.adapters.tensorflow.guard.step_norms import Inside
from detrain.adapters.tensorflow.guard.watched_variables import find_watched
from detrain.adapters.tensorflow.random.eager_draws import EagerDraws
from detrain.adapters.tensorflow.values.tensors import NO_NUMBERS, Reader, has_value
from detrain.base.digest import Array
from detrain.python.inspect.object_graph import ABSENT

_EXECUTOR: Final = "SINGLE_THREADED_EXECUTOR"
"""For functions of many small operations: handing each to another thread takes longer than doing it."""
_LOOKED_AT_AGAIN: Final = (5, 7, 11)
"""Looks at which it is told anew what is watched: by then slots made by hand have values, sums of gradients some below
zero."""
_PYTHON_OPS: Final = ("PyFunc", "EagerPyFunc", "PyFuncStateless")
_numbers: Final = itertools.count()


class Compiled:
    """A function over variables, one call a device. `make` gets a device's variables and returns a list of tensors."""

    def __init__(self, variables: Mapping[str, Any], make: Callable[[list[Any]], list[Any]]) -> None:
        by_device: dict[str, dict[str, Any]] = {}
        for key, variable in variables.items():
            by_device.setdefault(variable.handle.device, {})[key] = variable
        self.keys = [key for group in by_device.values() for key in group]
        self._calls: list[tuple[str, tuple[Any, list[Any], int]]] = []
        for device, group in by_device.items():
            self._calls.append((device, _compiled(device, list(group.values()), make)))

    def __call__(self) -> list[list[Any]]:
        """Return the tensors of each device."""
        runtime = context.context()
        # The one thread of that executor would wait for itself where a function goes over devices.
        with context.function_executor_type(_EXECUTOR if len(self._calls) == 1 else None):
            found = []
            for device, (function, captures, count) in self._calls:
                with tf.device(device):
                    found.append(runtime.call_function(function.name, captures, count))
            return found


def _compiled(device: str, variables: list[Any], make: Callable[[list[Any]], list[Any]]) -> tuple[Any, list[Any], int]:
    def body() -> list[Any]:
        with tf.device(device):
            return make(variables)

    with tf.init_scope():
        graph = func_graph.func_graph_from_py_func("detrain_own", body, (), {})
        function = atomic_function.from_func_graph(f"__detrain_{next(_numbers)}", graph, {})
        return function, [outer for outer, _inner in graph.captures], len(graph.outputs)


def sums_of_squares(variables: list[Any]) -> list[Any]:
    """Return one tensor, half the sum of the squares of each variable: what is not a number in
    it makes its sum none.
    """
    return [tf.stack([half_of_squares(variable) for variable in variables])]


def half_of_squares(variable: Any) -> Any:
    """Return half the sum of the squares of a variable, or of what stands for one: `handle` and `dtype`."""
    return tf.cast(tf.nn.l2_loss(wide(gen_resource_variable_ops.read_variable_op(variable.handle, variable.dtype))), tf.float32)


def wide(value: Any) -> Any:
    """Return a tensor whose squares do not overflow where the tensor itself is sound."""
    return tf.cast(value, tf.float32) if value.dtype in (tf.float16, tf.bfloat16) else value


def _growth(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    return {key: count - before.get(key, 0) for key, count in after.items() if count != before.get(key, 0)}


@dataclass(slots=True, eq=False, weakref_slot=True)
class TensorFlowHeldState:
    """The variables, and what names and counts them, at a moment."""

    generation: int
    built: int
    """Pieces of building until then."""
    values: dict[str, Any]
    uninitialized: frozenset[str]
    births: dict[str, int]
    made: dict[str, int]
    given: dict[str, int]
    iterators: weakref.WeakSet[Any]
    """Those that there were."""
    draws: tuple[int, dict[str, int]]
    """Of eager random ops."""
    pulls: list[tuple[weakref.ref[Any], Any]] = field(default_factory=list)
    """What iterators have handed out since, until the next moment that was held."""
    sets: list[tuple[weakref.ref[Any], str, object]] = field(default_factory=list)
    """Attributes of Keras's objects that have been set since, likewise, and what they were."""
    following: TensorFlowHeldState | None = None
    made_by_load: dict[str, int] | None = None
    """How many iterators over each shuffled set the load behind this moment made."""


class IteratorPulls:
    """What iterators hand out after a moment that is held."""

    def __init__(self) -> None:
        self._latest: weakref.ref[TensorFlowHeldState] | None = None
        self._again: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()
        self.is_loading = False
        """Inside the load of a batch loop, whose batches the loop's wrapper keeps."""
        self.by_python: set[str] = set()
        """Iterators that bodies have advanced and whose pipelines run Python: it may draw, count, or change what bodies
        read."""

    @property
    def latest(self) -> TensorFlowHeldState | None:
        """The newest moment, while its holder keeps it."""
        return None if self._latest is None else self._latest()

    def follow(self, held: TensorFlowHeldState) -> None:
        """A moment has been held."""
        if (before := self.latest) is not None:
            before.following = held
        self._latest = weakref.ref(held)

    def next(self, iterator: Any, original: Callable[[Any], Any]) -> Any:
        """Return the next element of an iterator: one that was taken back, or a new one."""
        waiting = self._again.get(iterator)
        value = waiting.pop(0) if waiting else original(iterator)
        latest = None if self.is_loading else self.latest
        if latest is not None:
            latest.pulls.append((weakref.ref(iterator), value))
            name = getattr(iterator, "detrain_python", "")
            if name and iterator in latest.iterators:
                self.by_python.add(name)
        return value

    def has_waiting(self, iterator: Any) -> bool:
        """Return whether an iterator has elements to hand out again, so that it is further than what draws from it."""
        return bool(self._again.get(iterator))

    def take_back(self, held: TensorFlowHeldState) -> None:
        """Take back what was handed out since a moment."""
        taken: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()
        for moment in _chain(held):
            for reference, value in moment.pulls:
                iterator = reference()
                if iterator is not None and iterator in held.iterators:
                    taken.setdefault(iterator, []).append(value)
        for iterator, values in taken.items():
            self._again[iterator] = values + self._again.get(iterator, [])
            iterator.detrain_pulled -= len(values)
        held.pulls, held.following, self._latest = [], None, weakref.ref(held)


def _chain(held: TensorFlowHeldState | None) -> Iterator[TensorFlowHeldState]:
    while held is not None:
        yield held
        held = held.following


class ShuffledSets(Protocol):
    """What is known of shuffled sets (detrain.adapters.tensorflow.data.datasets.Datasets)."""

    def made(self) -> dict[str, int]:
        """Return how many iterators there have been over each, by the sets' names."""

    def given(self) -> dict[str, int]:
        """Return how many seeds each has given, of which those to iterators that are gone by the next cut are known
        only here.
        """

    def set_given(self, given: Mapping[str, int]) -> None:
        """Have the sets go on behind what they had given."""


class Moments:
    """What is asked of the framework to look for faults, and to go back (detrain.adapters.api.Rollback)."""

    def __init__(
        self,
        births: Births,
        building: Building,
        alive: Callable[[], dict[str, Any]],
        draws: EagerDraws,
        sets: ShuffledSets,
    ) -> None:
        self._births, self._building, self._alive, self._draws, self._sets = births, building, alive, draws, sets
        self.iterators: weakref.WeakSet[Any] = weakref.WeakSet()
        self.pulls = IteratorPulls()
        self._are_pure: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
        self._generation = 0
        """Goes up with each variable that is made or gone."""
        self._watched: tuple[int, list[Watched], Compiled] | None = None
        self._norms: Array | None = None
        """Of what is watched, at the last look; None where what is watched has changed since."""
        self.inside = Inside(half_of_squares)
        self._masks: dict[str, bool] = {}
        """Whether a variable had infinite values when it was first looked at."""
        self._signed: set[str] = set()
        self._looks = 0
        self._reader: tuple[int, Reader, frozenset[str]] | None = None
        self.is_compared = False
        """Whether the steps behind a way back are compared with those of a run that never went back: what has been
        traced or built since may stay then."""
        self.set_by_loaders: set[str] = set()
        """Attributes that loads have set, which are not done again."""

    def note_set(self, owner: Any, name: str, before: object) -> None:
        """An attribute of one of Keras's objects has been set."""
        latest = self.pulls.latest
        if latest is not None:
            latest.sets.append((weakref.ref(owner), name, before))
            if self.pulls.is_loading:
                self.set_by_loaders.add(f"{name} of {type(owner).__name__}, which the loader sets")

    def on_change(self, _reference: object = None) -> None:
        """A variable has been made, or is gone."""
        self._generation += 1

    def norms(self) -> tuple[Sequence[Watched], Array]:
        """Return what is watched, and the norms [variable]: from where steps have ended, or by one call of a function a
        device.
        """
        self._looks += 1
        if self._watched is None or self._watched[0] != self._generation or self._looks in _LOOKED_AT_AGAIN:
            alive = {key: variable for key, variable in self._alive().items() if has_value(variable)}
            watched = {each.key: each for each in find_watched(alive, self._births, self._is_mask, self._has_sign)}
            before = self._watched if self._watched is not None and self._watched[0] == self._generation else None
            if before is None or watched != {each.key: each for each in before[1]}:
                compiled = Compiled({key: alive[key] for key in watched}, sums_of_squares)
                self._watched, self._norms = (self._generation, [watched[key] for key in compiled.keys], compiled), None
                self.inside.watch({key: alive[key] for key in compiled.keys})
        assert self._watched is not None
        known = self._norms if self.inside.is_complete else None
        found = self.inside.take()
        if known is None:
            self._norms = norms(self._watched[2]())
        elif len(found) == 1 and found[0][0] is None:  # the usual case
            self._norms = norms([[found[0][1]]])
        elif found:
            self._norms = known.copy()
            for numbers, sums in found:
                self._norms[numbers] = norms([[sums]])
        assert self._norms is not None
        return self._watched[1], self._norms

    def value(self, key: str) -> Array | None:
        """Return the value of a variable alive; None for any other key."""
        variable = self._alive().get(key)
        return None if variable is None else np.asarray(variable.numpy())

    def _is_mask(self, key: str, variable: Any) -> bool:
        """Return whether a variable was infinite when it was first looked at. What is no number is by no one's intent.

        Nor is a weight that was made since the first look of all: a faulty step may have made it.
        """
        if self._watched is not None and variable.trainable:
            return self._masks.get(key, False)
        if key not in self._masks:
            values = variable.numpy()
            self._masks[key] = bool(np.isinf(values).any() and not np.isnan(values).any())
        return self._masks[key]

    def _has_sign(self, key: str, variable: Any) -> bool:
        """Return whether a variable has ever been found with a value below zero."""
        if key not in self._signed and (variable.numpy() < 0).any():
            self._signed.add(key)
        return key in self._signed

    def hold(self, *, on_host: bool) -> PutBack:
        """Hold the variables by reference, or copies of them in the host's memory."""
        self.pulls.is_loading = False  # a load that was begun may have raised
        if self._reader is None or self._reader[0] != self._generation or self._reader[2]:
            alive = {key: variable for key, variable in self._alive().items() if variable.dtype not in NO_NUMBERS}
            there = {key: variable for key, variable in alive.items() if has_value(variable)}
            self._reader = self._generation, Reader(there), frozenset(alive.keys() - there.keys())
        generation, reader, uninitialized = self._reader
        values = reader()
        if on_host:
            values = {key: value.numpy() for key, value in values.items()}  # a copy, unlike what asarray returns
        held = TensorFlowHeldState(
            generation,
            len(self._building.units()),
            values,
            uninitialized,
            self._births.top_counts(),
            dict(self._sets.made()),
            self._sets.given(),
            weakref.WeakSet(self.iterators),
            self._draws.state(),
        )
        self.pulls.follow(held)
        return partial(self._put_back, held)

    def _put_back(self, held: TensorFlowHeldState) -> None:
        """Put variables, names and iterators back. What has been made since cannot be unmade."""
        reasons = []
        if held.generation != self._generation:
            reasons.append("variables have been made or dropped since")
        is_built = held.built != len(self._building.units())
        if is_built and not self.is_compared:
            reasons.append("functions have been traced or layers built since")
        made, in_loads = self._sets.made(), [moment.made_by_load or {} for moment in _chain(held)]
        given = self._sets.given()
        new = [key for key in made if made[key] != held.made.get(key, 0) + sum(load.get(key, 0) for load in in_loads)]
        if any(key in held.made and (key not in given or key not in held.given) for key in new):
            reasons.append("iterators that repeat shuffled sets have been made since")
        alive = self._alive()
        if any(has_value(alive[key]) for key in held.uninitialized if key in alive):
            reasons.append("variables have been initialized since")
        if reasons:
            raise CannotGoBackError("; ".join(reasons))
        self.inside.forget()
        for key, value in held.values.items():
            with tf.device(alive[key].handle.device):
                gen_resource_variable_ops.assign_variable_op(alive[key].handle, value)
        for reference, name, before in reversed([each for moment in _chain(held) for each in moment.sets]):
            owner = reference()
            if owner is not None and before is ABSENT:
                vars(owner).pop(name, None)
            elif owner is not None:
                vars(owner)[name] = before
        held.sets = []
        if not is_built:  # what was born while a function was traced stays, and is not born again
            self._births.set_top_counts(held.births)
        made.update({key: held.made.get(key, 0) for key in new})
        self._draws.go_back(held.draws)
        self._sets.set_given(held.given)
        self.pulls.take_back(held)

    def begin_load(self) -> Callable[[], Callable[[], None]]:
        """Keep nothing while a batch loop loads. Returns what ends that, and returns what counts the same again."""
        self.pulls.is_loading = True
        held = self.pulls.latest
        # Reading takes a third of a ms.
        given = held.given if held is not None and held.made_by_load is None else self._sets.given()
        births, made, generation = self._births.top_counts(), dict(self._sets.made()), self._generation

        def end() -> Callable[[], None]:
            self.pulls.is_loading = False
            grown = _growth(births, self._births.top_counts()), _growth(given, self._sets.given())
            if (latest := self.pulls.latest) is not None:
                latest.made_by_load = _growth(made, self._sets.made())
            return partial(self._count_again, *grown, has_changed_variables=generation != self._generation)

        return end

    def _count_again(self, births: dict[str, int], given: dict[str, int], *, has_changed_variables: bool) -> None:
        """Count what a load made, of each label, and the seeds that shuffled sets gave, without the load."""
        if has_changed_variables:
            raise CannotGoBackError("the loader makes or drops variables")
        counts = self._births.top_counts()
        self._births.set_top_counts({label: counts.get(label, 0) + births.get(label, 0) for label in {*counts, *births}})
        if given:
            known = self._sets.given()
            self._sets.set_given({key: known.get(key, 0) + count for key, count in given.items()})

    def is_pure(self, loader: object) -> bool:
        """Return whether an iterator is of tf.data, and no stage of it runs Python."""
        if not isinstance(loader, iterator_ops.OwnedIterator):
            return False
        if loader not in self._are_pure:
            self._are_pure[loader] = not runs_python(loader._dataset)
        return self._are_pure[loader]


def runs_python(dataset: Any) -> bool:
    """Return whether a stage of a pipeline calls Python (`py_function`, `from_generator`)."""
    waiting, seen = [dataset], set()
    while waiting:
        current = waiting.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        for stage in current._functions():
            graph = stage.function.graph.as_graph_def()
            nodes = itertools.chain(graph.node, *(function.node_def for function in graph.library.function))
            if any(node.op in _PYTHON_OPS for node in nodes):
                return True
        waiting.extend(current._inputs())
    return False


def norms(sums: list[list[Any]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the Euclidean norms [variable] for what `sums_of_squares` returned."""
    parts = [np.asarray(tensors[0]._numpy(), np.float64) for tensors in sums]
    return np.sqrt(2.0 * (np.concatenate(parts) if len(parts) != 1 else parts[0])) if parts else np.zeros(0)
