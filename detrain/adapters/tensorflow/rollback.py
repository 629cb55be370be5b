"""The way back to a moment that is held in memory: variables, iterators, and the step of a running `fit`."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import tensorflow as tf
from tensorflow.python.data.ops import iterator_ops
from tensorflow.python.ops import gen_resource_variable_ops

from detrain.adapters.api import Again, CannotGoBackError, PutBack
from detrain.adapters.lazy_building import Building
from detrain.adapters.stable_names import Births
from detrain.adapters.tensorflow.data.datasets import Datasets
from detrain.adapters.tensorflow.data.iterator_positions import runs_python
from detrain.adapters.tensorflow.guard.held_state import IteratorPulls, TensorFlowHeldState, chain
from detrain.adapters.tensorflow.guard.norms import TensorFlowNorms
from detrain.adapters.tensorflow.keras.fit import FitInstrument
from detrain.adapters.tensorflow.random.eager_draws import EagerDraws
from detrain.adapters.tensorflow.values.tensors import NO_NUMBERS, Reader, has_value
from detrain.base.digest import Array
from detrain.python.inspect.object_graph import ABSENT


def _growth(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    return {key: count - before.get(key, 0) for key, count in after.items() if count != before.get(key, 0)}


class TensorFlowRollback:
    """See `detrain.adapters.api.Rollback`."""

    is_compared = False
    """True if the steps after a return to a moment are compared with those of a run that never went back: functions
    traced or layers built since the moment may then stay."""

    def __init__(
        self,
        births: Births,
        building: Building,
        alive: Callable[[], dict[str, Any]],
        draws: EagerDraws,
        datasets: Datasets,
        fit: FitInstrument,
        norms: TensorFlowNorms,
    ) -> None:
        self._births, self._building, self._alive, self._draws = births, building, alive, draws
        self._datasets, self._fit, self._norms = datasets, fit, norms
        self.kept_masks: Callable[[], list[str]] = list
        """Returns the dropout masks that recurrent layers keep."""
        self.iterators: weakref.WeakSet[Any] = weakref.WeakSet()
        self.pulls = IteratorPulls()
        self._are_pure: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
        self._generation = 0
        """A number that goes up with each variable that is made or dropped."""
        self._reader: tuple[int, Reader, frozenset[str]] | None = None
        self._set_by_loaders: set[str] = set()
        """Attributes that loads have set: loads are not repeated after a return, and so would not set them again."""

    def on_change(self, _reference: object = None) -> None:
        """Note that a variable has been made or dropped."""
        self._generation += 1

    def note_set(self, owner: Any, name: str, before: object) -> None:
        """Note that an attribute of one of Keras's objects has been set, and its value before."""
        latest = self.pulls.latest
        if latest is not None:
            latest.sets.append((weakref.ref(owner), name, before))
            if self.pulls.is_loading:
                self._set_by_loaders.add(f"{name} of {type(owner).__name__}, which the loader sets")

    def hold(self, *, on_host: bool) -> PutBack:
        """Hold the variables by reference, or as copies in the host's memory; return the function to put them back."""
        self.pulls.is_loading = False  # a load that was begun may have raised
        if self._reader is None or self._reader[0] != self._generation or self._reader[2]:
            alive = {key: variable for key, variable in self._alive().items() if variable.dtype not in NO_NUMBERS}
            there = {key: variable for key, variable in alive.items() if has_value(variable)}
            self._reader = self._generation, Reader(there), frozenset(alive.keys() - there.keys())
        generation, reader, uninitialized = self._reader
        values = reader()
        if on_host:
            values = {key: value.numpy() for key, value in values.items()}  # a copy, unlike the result of asarray
        held = TensorFlowHeldState(
            generation,
            len(self._building.units()),
            values,
            uninitialized,
            self._births.top_counts(),
            dict(self._datasets.made()),
            self._datasets.given(),
            weakref.WeakSet(self.iterators),
            self._draws.state(),
        )
        self.pulls.follow(held)
        return partial(self._put_back, held)

    def _put_back(self, held: TensorFlowHeldState) -> None:
        """Put variables, names and iterators back. Raise CannotGoBackError if newer objects prevent that."""
        reasons = []
        if held.generation != self._generation:
            reasons.append("variables have been made or dropped since")
        is_built = held.built != len(self._building.units())
        if is_built and not self.is_compared:
            reasons.append("functions have been traced or layers built since")
        made, in_loads = self._datasets.made(), [moment.made_by_load or {} for moment in chain(held)]
        given = self._datasets.given()
        new = [key for key in made if made[key] != held.made.get(key, 0) + sum(load.get(key, 0) for load in in_loads)]
        if any(key in held.made and (key not in given or key not in held.given) for key in new):
            reasons.append("iterators that repeat shuffled sets have been made since")
        alive = self._alive()
        if any(has_value(alive[key]) for key in held.uninitialized if key in alive):
            reasons.append("variables have been initialized since")
        if reasons:
            raise CannotGoBackError("; ".join(reasons))
        self._norms.inside.forget()
        for key, value in held.values.items():
            with tf.device(alive[key].handle.device):
                gen_resource_variable_ops.assign_variable_op(alive[key].handle, value)
        for reference, name, before in reversed([each for moment in chain(held) for each in moment.sets]):
            owner = reference()
            if owner is not None and before is ABSENT:
                vars(owner).pop(name, None)
            elif owner is not None:
                vars(owner)[name] = before
        held.sets = []
        if not is_built:  # objects made while a function was traced stay, and are not made again
            self._births.set_top_counts(held.births)
        made.update({key: held.made.get(key, 0) for key in new})
        self._draws.go_back(held.draws)
        self._datasets.set_given(held.given)
        self.pulls.take_back(held)

    def irreversible(self) -> list[str]:
        """Return, in words, the state that steps change and no held state can put back."""
        return [*self._datasets.irreversible(), *self.kept_masks(), *self._set_by_loaders]

    def begin_load(self) -> Callable[[], Again]:
        """Note that a batch loop begins to load: elements are not kept here until it is over."""
        self.pulls.is_loading = True
        held = self.pulls.latest
        # Reading these counts takes a third of a millisecond.
        given = held.given if held is not None and held.made_by_load is None else self._datasets.given()
        births, made, generation = self._births.top_counts(), dict(self._datasets.made()), self._generation

        def end() -> Again:
            self.pulls.is_loading = False
            grown = _growth(births, self._births.top_counts()), _growth(given, self._datasets.given())
            has_changed = generation != self._generation
            if (latest := self.pulls.latest) is not None:
                latest.made_by_load = _growth(made, self._datasets.made())
            return partial(self._again, *grown, has_changed)

        return end

    def _again(
        self,
        births: dict[str, int],
        given: dict[str, int],
        has_changed_variables: bool,
        item: object,
        fetched: Sequence[list[Array]],
    ) -> object | None:
        """Count the objects that a load made and the seeds that shuffled sets gave, without a second load. Return a
        step of `fit` that fetches the given batches; None if there are none.
        """
        if has_changed_variables:
            raise CannotGoBackError("the loader makes or drops variables")
        counts = self._births.top_counts()
        counts = {label: counts.get(label, 0) + births.get(label, 0) for label in {*counts, *births}}
        self._births.set_top_counts(counts)
        if given:
            known = self._datasets.given()
            self._datasets.set_given({key: known.get(key, 0) + count for key, count in given.items()})
        if not fetched:
            return None
        try:
            with self._building.not_noted():
                return self._fit.refetch(item, fetched)
        finally:
            # Objects made for the step must not shift the names of the program's objects.
            self._births.set_top_counts(counts)

    def way_of(self, loader: object) -> Literal["handed out", ""]:
        """Return "handed out" if a loader runs no Python: its iterator cannot be set back, but batches can be kept."""
        return "handed out" if self._fit.is_pure(loader) or self._is_pure(loader) else ""

    def _is_pure(self, loader: object) -> bool:
        """Return whether an object is a tf.data iterator, and no stage of its pipeline runs Python."""
        if not isinstance(loader, iterator_ops.OwnedIterator):
            return False
        if loader not in self._are_pure:
            self._are_pure[loader] = not runs_python(loader._dataset)
        return self._are_pure[loader]
