"""Living tf.data sets (the seeds of shuffled ones, caches, and those that call Python) and their iterators: how far
these have come, and how a resumed run brings them there again.

It does so by their positions, where their pipelines have some, else by drawing again (`iterator_positions`).
"""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops, iterator_ops, multi_device_iterator_ops
from tensorflow.python.eager import context

from detrain.adapters.stable_names import Births
from detrain.adapters.tensorflow.data import shuffle_seeds
from detrain.adapters.tensorflow.data.iterator_calls import begin, runs_ahead, watch_elements, watch_python
from detrain.adapters.tensorflow.data.iterator_positions import (
    NoPosition,
    can_be_drawn_again,
    digest_of_element,
    draw_again,
    read_position,
    refusal,
    require_same,
    runs_python,
    set_position,
)
from detrain.adapters.tensorflow.guard.held_state import IteratorPulls
from detrain.base.digest import Array
from detrain.base.errors import DetrainError, Diverged, NotCapturable
from detrain.base.in_place import in_place_of
from detrain.base.options import Mode
from detrain.python.loaders.generator_replay import Elements

ITERATORS: Final = ("tensorflow.iterator", "tensorflow.numpy_iterator")
"""The kinds, in a checkpoint, of iterators that the loop has made."""


class LiveSets:
    """The living tf.data sets, watched from the moment when TensorFlow has been imported."""

    def __init__(self, births: Births) -> None:
        self._births = births
        self._seeds: weakref.WeakValueDictionary[str, shuffle_seeds.Seeds] = weakref.WeakValueDictionary()
        self._caches: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
        """Caches over shuffled sets."""
        self._filled_by_python: weakref.WeakSet[Any] = weakref.WeakSet()
        """Caches that Python fills: a second run of that Python may give other content."""
        self._called: weakref.WeakKeyDictionary[Any, tuple[str, object]] = weakref.WeakKeyDictionary()
        """Sets of `from_generator`, each with its key and the function or object that makes its elements."""

    def watch(self) -> None:
        """Note each set as it is made."""
        births = self._births
        shuffle_seeds.watch()
        original_dataset = dataset_ops.DatasetV2.__init__
        original_generator = dataset_ops.DatasetV2.from_generator
        original_rewrite = dataset_ops.apply_rewrite

        @in_place_of(dataset_ops, "apply_rewrite")
        def rewritten(dataset: Any, *args: Any, **kwargs: Any) -> Any:
            result = original_rewrite(dataset, *args, **kwargs)
            result.detrain_rewritten = dataset  # nothing else keeps that set, with the record of its seeds
            return result

        @functools.wraps(original_generator)
        def from_generator(generator: Any, *args: Any, **kwargs: Any) -> Any:
            dataset = original_generator(generator, *args, **kwargs)
            if context.executing_eagerly():
                # Not registered, or it would be an owner: objects made of a set count as made by the program.
                self._called[dataset] = births.next_key("generator", None), generator
            return dataset

        @in_place_of(dataset_ops.DatasetV2, "__init__")
        def dataset_made(dataset: Any, *args: Any, **kwargs: Any) -> None:
            original_dataset(dataset, *args, **kwargs)
            seeds = shuffle_seeds.on_dataset(dataset) if context.executing_eagerly() else None
            if seeds is not None:
                seeds.key = births.register_at_top(dataset, "shuffle")
                self._seeds[seeds.key] = seeds
            if type(dataset).__name__ == "CacheDataset" and runs_python(dataset):
                self._filled_by_python.add(dataset)
            if context.executing_eagerly() and shuffle_seeds.cache_of(dataset) is not None:
                self._caches[births.register_at_top(dataset, "cache")] = dataset

        dataset_ops.DatasetV2.from_generator = staticmethod(from_generator)

    def set_given(self, given: Mapping[str, int]) -> None:
        """Have each shuffled set continue after so many seeds, as `Datasets.given` counted them."""
        for key, seeds in self.alive_seeds():
            if key in given and seeds.given != given[key]:
                seeds.given = given[key]

    def alive_caches(self) -> Iterator[tuple[str, Any, shuffle_seeds.Cache]]:
        """Yield (key, set, cache) of each living cache over shuffled sets."""
        for key, dataset in list(self._caches.items()):
            if (cache := shuffle_seeds.cache_of(dataset)) is not None:
                yield key, dataset, cache

    def alive_seeds(self) -> list[tuple[str, shuffle_seeds.Seeds]]:
        """Return the keys of living shuffled sets, each with the generator of its seeds."""
        return list(self._seeds.items())

    def called(self) -> dict[str, object]:
        """Return, by key, the Python objects that living sets call for their elements."""
        return dict(list(self._called.values()))

    def has_filled_by_python(self) -> bool:
        """Return whether a living cache is filled by Python."""
        return bool(self._filled_by_python)


class Datasets:
    """The living datasets and iterators, watched from the moment when TensorFlow has been imported."""

    def __init__(self, births: Births, is_of_fit: Callable[[Any], bool], of_fit: Callable[[], Any]) -> None:
        self._births, self._of_fit = births, of_fit
        self._is_of_fit = is_of_fit
        self._iterators: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
        self._sets = sets = LiveSets(births)
        self.set_given, self.called = sets.set_given, sets.called
        self._made: dict[str, int] = {}
        self._described: set[str] = set()
        """Keys of iterators that the loop has made, and that a resumed process is to make again."""
        self._restored: tuple[Mapping[str, Any], Mapping[str, Array], Any] | None = None
        """The source of a restore that is under way: (state, positions, the data that the running `fit` draws from)."""
        self._with_positions: dict[str, int] = {}
        """How many seeds shuffled sets had given when the positions of iterators over them were read."""
        self._pulls: IteratorPulls | None = None
        self._elements: Elements | None = None
        self._uncertain: set[str] = set()
        """Keys of shuffled sets that an iterator may have begun anew just before it was dropped: whether it
        did so is chance."""

    def begin_phase(self) -> None:
        """Note that a training loop begins: the seeds that earlier iterators have taken by now will come back."""
        self._uncertain.clear()

    def made(self) -> dict[str, int]:
        """Return how many iterators were made over each shuffled set."""
        return self._made

    def counters(self) -> dict[str, Any]:
        """Return the counts of seeds that shuffled sets and of elements that living iterators have given."""
        self._restored = None  # it may hold buffers; by now every iterator that needed it has been made again
        alive, caches = dict(self._iterators), self._sets.alive_caches()
        lasts = {key: iterator.detrain_last for key, iterator in alive.items()}
        return {
            "caches": {key: start for key, cached, cache in caches if (start := cache.start_of(cached)) is not None},
            "seeds": {key: self._with_positions.get(key, seeds.given) for key, seeds in self._sets.alive_seeds()},
            "iterators": {key: iterator.detrain_pulled for key, iterator in alive.items()},
            "last": {key: digest_of_element(last) for key, last in lasts.items() if last is not None},
            "uncounted": [key for key, iterator in alive.items() if iterator.detrain_is_traced],
        }

    def positions(self, mode: Mode) -> tuple[dict[str, Array], list[str]]:
        """Return the positions of living iterators as data, and the reasons why others have none.

        `forward` asks for two kinds only: iterators that compiled functions advance, whose elements nobody counts, so
        that they cannot be drawn again; and iterators made by the loop, which a second load of the same batches may not
        make.
        """
        found: dict[str, Array] = {}
        reasons = []
        self._with_positions = {}
        for key, iterator in list(self._iterators.items()):
            if mode == "forward" and not iterator.detrain_is_traced and key not in self._described:
                continue
            if self._pulls is not None and self._pulls.has_waiting(iterator):
                reasons.append("elements of a tf.data iterator are handed out again")
                continue
            try:
                is_forced = mode == "seek" or iterator.detrain_is_traced
                read = functools.partial(read_position, iterator, iterator._dataset, is_forced=is_forced)
                found[key] = self.read_with(iterator._dataset, read)
            except NoPosition as reason:
                reasons.append(str(reason))
        return found, reasons

    def read_with(self, dataset: Any, read: Callable[[], Array]) -> Array:
        """Return the position from `read`; note how many seeds the dataset's shuffled sets had given by then."""
        position, given = shuffle_seeds.read_with(dataset, read)
        self._with_positions.update(given)
        found: Array = position
        return found

    def restore(self, state: Mapping[str, Any], positions: Mapping[str, Array], mode: Mode, of_fit: Any) -> None:
        """Bring living iterators to their positions, and have shuffled sets give the seeds that come next.

        `of_fit` is the data that the running `fit` draws from by an iterator of its own, or None.
        """
        if "seeds" not in state or any("/" in key for key in [*state["seeds"], *state["iterators"], *state["caches"]]):
            raise Diverged("an earlier version of detrain took the checkpoint", "start anew with --fresh")
        alive = dict(self._iterators)
        lost = [key for key in state["uncounted"] if key in alive and key not in positions]
        if lost:  # no digest would show it: the batches are loaded inside of a function
            raise NotCapturable(
                f"{lost[0]!r}, a tf.data iterator that a tf.function advances, has no position: its pipeline has a state",
                "draw its batches in the Python loop, or make it in the epoch that draws from it, and start anew with --fresh",
            )
        behind: dict[int, list[tuple[Any, int]]] = {}
        drawn_again = []
        by_pulls = self._elements.drawn_by_pulls() if self._elements is not None else set()
        for key, pulled in state["iterators"].items():
            iterator = alive.get(key)
            if id(iterator) in by_pulls:
                continue
            if iterator is not None and key in positions and (mode != "forward" or key in state["uncounted"]):
                setting = functools.partial(set_position, iterator, positions[key])
                shuffle_seeds.set_with(iterator._dataset, state["seeds"], setting)
                iterator.detrain_pulled = pulled
            elif iterator is not None:
                behind.setdefault(id(getattr(iterator, "detrain_source", iterator)), []).append((iterator, pulled))
                drawn_again.append((key, iterator))
        with self._elements.again() if self._elements is not None else contextlib.nullcontext():
            for together in behind.values():
                draw_again(together)
        for key, iterator in drawn_again:
            require_same(key, iterator, state)
        for key, cached, cache in self._sets.alive_caches():
            if key in state["caches"] and not cache.is_filled(cached):
                self.set_given(state["caches"][key])
                for _element in cached:
                    pass
        self._restored = state, positions, of_fit
        self._settle_seeds()

    def _settle_seeds(self) -> None:
        assert self._restored is not None
        state, _positions, of_fit = self._restored
        repeated = self._repeated(of_fit)
        self.set_given({key: given for key, given in state["seeds"].items() if key not in repeated})

    def parts(self, value: Any) -> tuple[str, list[object]] | None:
        """Return the kind and parts of an iterator that has a position or can be drawn again, or None for anything
        else.

        The parts: [its key, its set, how many seeds the set's sources had given before the iterator was made]
        """
        is_numpy = isinstance(value, dataset_ops.NumpyIterator)
        iterator = value._iterator if is_numpy else value
        if not self.is_counted(iterator):
            return None
        if refusal(iterator._dataset) is not None and (iterator.detrain_is_traced or not can_be_drawn_again(iterator._dataset)):
            return None
        key = self._births.key(iterator) or ""
        self._described.add(key)
        return ITERATORS[is_numpy], [key, iterator._dataset, iterator.detrain_given]

    def remake(self, kind: str, key: str, dataset: Any, given: Mapping[str, int]) -> object | None:
        """Return the iterator with a key at its position: a new one, or one that code before the cut has made."""
        iterator: Any = self._births.find(key)
        if iterator is None and isinstance(dataset, dataset_ops.DatasetV2) and self._restored is not None:
            state, positions, _of_fit = self._restored
            if key not in state["iterators"]:
                return None
            self.set_given(given)
            with self._births.naming(key):
                iterator = iter(dataset)
            if key in positions:
                setting = functools.partial(set_position, iterator, positions[key])
                shuffle_seeds.set_with(dataset, state["seeds"], setting)
                iterator.detrain_pulled = state["iterators"][key]
            else:
                draw_again([(iterator, state["iterators"][key])])
                require_same(key, iterator, state)
            self._settle_seeds()
        if not self.is_counted(iterator):
            return None
        if kind != ITERATORS[1]:
            return iterator  # type: ignore[no-any-return]
        numpy = object.__new__(dataset_ops.NumpyIterator)
        numpy._iterator, numpy._dataset = iterator, iterator._dataset
        return numpy  # type: ignore[no-any-return]

    def _repeated(self, of_fit: Any) -> set[str]:
        """Return the keys of shuffled sets that a living iterator repeats.

        Such an iterator takes seeds while it runs ahead of its reader: the seeds come back with its position.
        """
        sources = [
            of_fit,
            *(getattr(iterator, "detrain_source", iterator._dataset) for _key, iterator in list(self._iterators.items())),
        ]
        return {seeds.key for source in sources if source is not None for seeds in shuffle_seeds.drawn(source).later}

    def given(self) -> dict[str, int]:
        """Return how many seeds each shuffled set has given, except sets that a living iterator repeats."""
        repeated = self._repeated(self._of_fit())
        return {key: seeds.given for key, seeds in self._sets.alive_seeds() if key not in repeated}

    def is_counted(self, value: object) -> bool:
        """Return whether an object is an iterator that `restore` brings to its position."""
        key = self._births.key(value)
        return key is not None and self._iterators.get(key) is value

    def loader_key(self, loader: object) -> str:
        """Return the key of an iterator; empty for any other object."""
        return self._births.key(loader) or "" if self.is_counted(loader) else ""

    def not_captured(self) -> list[str]:
        """Return, in words, state that a resumed run lacks: orders of sets, caches, and uncounted iterators."""
        found = [f"order of {key} (a shuffled set, repeated by an iterator that was left)" for key in sorted(self._uncertain)]
        if self._sets.has_filled_by_python():
            found.append(
                "what a cache() of tf.data holds (Python fills it; a resumed run fills it again, by what its Python draws then)"
            )
        return found + [
            f"{key} (a tf.data iterator that a tf.function advances; {reason})"
            for key, iterator in list(self._iterators.items())
            if iterator.detrain_is_traced and (reason := refusal(iterator._dataset, is_forced=True)) is not None
        ]

    def irreversible(self) -> list[str]:
        """Return, in words, iterators whose elements cannot be handed out again: compiled functions advance the
        iterator, so that nobody keeps them; or its pipeline runs Python, whose side effects would not happen again.
        """
        traced = [key for key, iterator in list(self._iterators.items()) if iterator.detrain_is_traced]
        by_python = sorted(self._pulls.by_python) if self._pulls is not None else []
        return [
            *(f"{key} (a tf.data iterator that a tf.function advances)" for key in traced),
            *(f"{key} (a tf.data iterator that the body advances, whose pipeline runs Python)" for key in by_python),
        ]

    def watch(
        self,
        iterators: weakref.WeakSet[Any],
        pulls: IteratorPulls,
        elements: Elements | None,
        fail: Callable[[DetrainError], None] | None,
    ) -> None:
        """Note each dataset and iterator. Iterators give their elements through `pulls`; `iterators` collects those not
        of `fit`.

        `elements` is told of elements made by Python, and of those that bodies fetch; `fail` ends the process with an
        error.
        """
        self._pulls, self._elements = pulls, elements
        self._sets.watch()
        self._watch_iterators(iterators)
        watch_elements(pulls, elements, self._births, fail)
        if elements is not None:
            watch_python(elements)

    def _watch_iterators(self, iterators: weakref.WeakSet[Any]) -> None:
        births = self._births
        original_iterator = iterator_ops.OwnedIterator.__init__
        original_many = multi_device_iterator_ops.OwnedMultiDeviceIterator.__init__

        @in_place_of(iterator_ops.OwnedIterator, "__init__")
        def iterator_made(iterator: Any, dataset: Any = None, *args: Any, **kwargs: Any) -> None:
            is_of_fit = self._is_of_fit(sys._getframe(1))
            if dataset is not None and context.executing_eagerly():
                begin(iterator, dataset)
            original_iterator(iterator, dataset, *args, **kwargs)
            iterator.detrain_pulled, iterator.detrain_is_traced, iterator.detrain_last = 0, False, None
            if not is_of_fit:  # the steps of `fit` keep their batches themselves
                iterators.add(iterator)
            if dataset is not None and context.executing_eagerly():
                if not is_of_fit:
                    key = births.register_at_top(iterator, "iterator")
                    self._iterators[key] = iterator
                    iterator.detrain_made_at = self._births.moment()
                    if self._elements is not None and self._elements.is_python and runs_python(dataset):
                        iterator.detrain_python = key
                # An iterator that `fit` draws to its end is never left half-way.
                self._count_iterator(
                    iterator, dataset, is_drawn_out=is_of_fit and dataset.cardinality() != tf.data.INFINITE_CARDINALITY
                )

        @in_place_of(multi_device_iterator_ops.OwnedMultiDeviceIterator, "__init__")
        def many_made(iterator: Any, dataset: Any = None, *args: Any, **kwargs: Any) -> None:
            if dataset is not None and context.executing_eagerly():
                begin(iterator, dataset)
            original_many(iterator, dataset, *args, **kwargs)
            if dataset is not None and context.executing_eagerly():
                self._count_iterator(iterator, dataset)
                for each in iterator._device_iterators:
                    each.detrain_source = dataset

    def _count_iterator(self, iterator: Any, dataset: Any, *, is_drawn_out: bool = False) -> None:
        """Count a new iterator at each shuffled set that it draws from."""
        drawn = shuffle_seeds.drawn(dataset)
        for key in drawn.names():
            self._made[key] = self._made.get(key, 0) + 1
        if drawn.later and not is_drawn_out:
            iterator.detrain_runs_ahead = runs_ahead(dataset)
            iterator.detrain_left = weakref.finalize(iterator, self._uncertain.update, [seeds.key for seeds in drawn.later])
            iterator.detrain_left.atexit = False
