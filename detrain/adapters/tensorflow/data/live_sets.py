"""The sets of tf.data that are alive: the seeds of those that are shuffled, caches, and those that call Python.

Iterators over them are `datasets`' business.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

from tensorflow.python.data.ops import dataset_ops
from tensorflow.python.eager import context

from detrain.adapters.stable_names import Births
from detrain.adapters.tensorflow.data import shuffle_seeds
from detrain.adapters.tensorflow.data.iterator_positions import runs_python
from detrain.base.in_place import in_place_of


class LiveSets:
    """Watches sets from the moment TensorFlow is there."""

    def __init__(self, births: Births) -> None:
        self._births = births
        self._seeds: weakref.WeakValueDictionary[str, shuffle_seeds.Seeds] = weakref.WeakValueDictionary()
        self._caches: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
        """Caches over shuffled sets."""
        self._filled_by_python: weakref.WeakSet[Any] = weakref.WeakSet()
        """Caches whose content Python makes: another run of it may make another."""
        self._called: weakref.WeakKeyDictionary[Any, tuple[str, object]] = weakref.WeakKeyDictionary()
        """Sets that Python makes the elements of, and what they call for these."""

    def watch(self) -> None:
        """See each set that is made."""
        births = self._births
        shuffle_seeds.watch()
        original_dataset = dataset_ops.DatasetV2.__init__
        original_generator = dataset_ops.DatasetV2.from_generator
        original_rewrite = dataset_ops.apply_rewrite

        @in_place_of(dataset_ops, "apply_rewrite")
        def rewritten(dataset: Any, *args: Any, **kwargs: Any) -> Any:
            result = original_rewrite(dataset, *args, **kwargs)
            result.detrain_rewritten = dataset  # nothing else keeps it, and what is known of its order
            return result

        @functools.wraps(original_generator)
        def from_generator(generator: Any, *args: Any, **kwargs: Any) -> Any:
            dataset = original_generator(generator, *args, **kwargs)
            if context.executing_eagerly():
                # Not registered: what is made of a set is made by the program, and counted there.
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
        """Set what `given` returned."""
        for key, seeds in self.alive_seeds():
            if key in given and seeds.given != given[key]:
                seeds.given = given[key]

    def set_seeds(self, given: Mapping[str, int]) -> None:
        """Have shuffled sets go on with the seeds that come after those which they had given."""
        for key, seeds in self.alive_seeds():
            if key in given:
                seeds.given = given[key]

    def alive_caches(self) -> Iterator[tuple[str, Any, shuffle_seeds.Cache]]:
        """Yield the caches over shuffled sets that are alive: (key, set, cache)."""
        for key, dataset in list(self._caches.items()):
            if (cache := shuffle_seeds.cache_of(dataset)) is not None:
                yield key, dataset, cache

    def alive_seeds(self) -> list[tuple[str, shuffle_seeds.Seeds]]:
        """Return what gives the seeds of the shuffled sets that are alive, each after its key."""
        return list(self._seeds.items())

    def called(self) -> dict[str, object]:
        """Return what sets alive call for their elements, by their keys."""
        return dict(list(self._called.values()))

    def has_filled_by_python(self) -> bool:
        """Return whether a cache is alive whose content Python makes."""
        return bool(self._filled_by_python)
