"""How Keras hands out the data of a `fit`, made the same in every run: in turn, by one thread, in a known order.

For `fit`, which brings a loader back to where it was. What is changed here is changed for all data of Keras's in this
process.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from detrain.adapters.tensorflow.data.iterator_positions import allow, stages
from detrain.base import messages
from detrain.base.in_place import in_place_of


def is_generator(steps: Any) -> bool:
    """Return whether `fit` draws from a generator of the program's."""
    return type(steps.data_adapter).__name__ == "GeneratorDataAdapter"


def allow_permutation(adapter: Any, dataset: Any) -> None:
    """Let arrays be shuffled: an iterator draws one permutation, whole, before its first batch, and then ends."""
    if type(adapter).__name__ == "ArrayDataAdapter":
        for stage in stages(dataset):
            if [type(source).__name__ for source in stage._inputs()] == ["_RangeDataset"]:
                allow(stage, "RandomShuffle")


def order_of(steps: Any) -> list[int] | None:
    """Return what the iterator over a PyDataset that is running is to give: numbers of batches, the next one first.

    None for other data, and for a PyDataset that has no end.
    """
    order: list[int] | None = getattr(steps.data_adapter, "detrain_order", None)
    if order is None or not isinstance(steps._distributed_dataset, tf.data.Dataset):
        return None
    return order[steps.data_adapter.detrain_given :]


def note_order(adapter: Any) -> None:
    """Have a PyDataset's batches given by an order that is known, and can be set:
    to come back to a batch runs no other."""

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
    """Take the prefetching stage off loaders that run Python: how far they run ahead is chance,
    and so is what they draw."""
    original = adapter.get_tf_dataset

    @in_place_of(adapter, "get_tf_dataset")
    def get_tf_dataset(self: Any) -> Any:
        dataset = original(self)
        return dataset._input_dataset if type(dataset).__name__ == "_PrefetchDataset" else dataset


def start_no_workers(adapter: Any) -> None:
    """Have a PyDataset's batches fetched one after another: what several workers draw, or count,
    has no order of its own."""
    original = adapter.__init__

    @in_place_of(adapter, "__init__")
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if self.enqueuer is not None:
            self.enqueuer = None
            data = self.py_dataset
            messages.say(f"{type(data).__name__}: batches are fetched in turn, to be the same again, not by {data.workers} workers")
