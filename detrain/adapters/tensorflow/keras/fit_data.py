"""The data of a `fit`, which Keras is made to hand out in the same way in every run: in turn, by one thread, in a known
order. And digests of the batches that a `fit` fetches inside of its compiled step, where no probe sees them: taken in a
last stage of the data pipeline, or in the fetching step itself, where pipelines run ahead of the steps.

This is for `fit`, whose loader detrain brings back to its position, but it changes all of Keras's data in this process.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from typing import Any, Final, Protocol

import numpy as np
import tensorflow as tf
from tensorflow.python.distribute.input_lib import DistributedIteratorBase

from detrain.adapters.tensorflow.data.iterator_positions import allow, stages
from detrain.base import messages
from detrain.base.digest import digest_array
from detrain.base.in_place import in_place_of

_STEP: Final = "multi_step_on_iterator"
"""Keras's function that fetches one batch and trains on it."""
_HANDLES: Final = (tf.variant, tf.resource)


def is_generator(steps: Any) -> bool:
    """Return whether `fit` draws from a generator of the program."""
    return type(steps.data_adapter).__name__ == "GeneratorDataAdapter"


def allow_permutation(adapter: Any, dataset: Any) -> None:
    """Let arrays be shuffled: an iterator draws one whole permutation before its first batch, and then no more."""
    if type(adapter).__name__ == "ArrayDataAdapter":
        for stage in stages(dataset):
            if [type(source).__name__ for source in stage._inputs()] == ["_RangeDataset"]:
                allow(stage, "RandomShuffle")


def order_of(steps: Any) -> list[int] | None:
    """Return the batches that the running iterator over a PyDataset is still to give: their numbers, the next one
    first.

    None for other data, and for a PyDataset that has no end.
    """
    order: list[int] | None = getattr(steps.data_adapter, "detrain_order", None)
    if order is None or not isinstance(steps._distributed_dataset, tf.data.Dataset):
        return None
    return order[steps.data_adapter.detrain_given :]


def note_order(adapter: Any) -> None:
    """Have a PyDataset give its batches in a known order that can be set: a resumed run loads none before its cut."""

    def finite(self: Any) -> Iterator[Any]:
        order = self.__dict__.pop("detrain_left", None)
        if order is None:
            order = list(range(self.py_dataset.num_batches))
            if self.shuffle:
                random.shuffle(order)
        self.detrain_order, self.detrain_given = order, 0
        for number in order:
            self.detrain_given += 1
            yield self._standardize_batch(self.py_dataset[number])

    adapter._finite_generator = finite


def fetch_in_turn(adapter: Any) -> None:
    """Take the prefetching stage off loaders that run Python: how far it runs ahead is chance, and so are its draws."""
    original = adapter.get_tf_dataset

    @in_place_of(adapter, "get_tf_dataset")
    def get_tf_dataset(self: Any) -> Any:
        dataset = original(self)
        return dataset._input_dataset if type(dataset).__name__ == "_PrefetchDataset" else dataset


def start_no_workers(adapter: Any) -> None:
    """Have a PyDataset's batches fetched in turn: among several workers, the order of draws and counts is chance."""
    original = adapter.__init__

    @in_place_of(adapter, "__init__")
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if self.enqueuer is not None:
            self.enqueuer = None
            data = self.py_dataset
            messages.say(f"{type(data).__name__}: batches are fetched in turn, to be the same again, not by {data.workers} workers")


class TakesDigest(Protocol):
    """The function that takes the digest of a batch, or of a part of it (`Probes.note_fetched`)."""

    def __call__(self, parts: list[np.ndarray[Any, Any]], *, is_whole: bool) -> None:
        """Take the digest."""


def digest_of_arrays(data: object) -> str:
    """Return a digest of the NumPy arrays in a nested value; empty if there are none."""
    arrays = [each for each in tf.nest.flatten(data) if isinstance(each, np.ndarray) and not each.dtype.hasobject]
    return "".join(map(digest_array, arrays))


def digesting(dataset: Any, note: TakesDigest, *, is_whole: bool) -> Any:
    """Return a set with the elements of another, which takes their digests. `is_whole`: a step fetches at most one."""

    def passed(*element: Any) -> Any:
        note_batch(element, note, is_whole=is_whole)
        return element if isinstance(dataset.element_spec, tuple) else element[0]

    return dataset.map(passed)


def digest_distributed(note: TakesDigest) -> None:
    """Take the digests of distributed sets' batches where a step fetches them: pipelines run ahead of the steps."""
    original = DistributedIteratorBase.get_next

    @in_place_of(DistributedIteratorBase, "get_next")
    def get_next(iterator: Any, *args: Any, **kwargs: Any) -> Any:
        batch = original(iterator, *args, **kwargs)
        if sys._getframe(1).f_code.co_name == _STEP:
            note_batch(batch, note, is_whole=False)
        return batch


def note_batch(element: Any, note: TakesDigest, *, is_whole: bool) -> None:
    """Take the digest of a batch, now or at each run of the function that is being traced."""

    def noted(*parts: np.ndarray[Any, Any]) -> None:
        note(list(parts), is_whole=is_whole)

    parts = [part for part in tf.nest.flatten(element, expand_composites=True) if part.dtype not in _HANDLES]
    tf.numpy_function(noted, parts, [], name="detrain_digest")
