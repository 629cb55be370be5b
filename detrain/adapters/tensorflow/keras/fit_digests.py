"""Digests of the batches that a `fit` fetches inside of its compiled step, where no probe sees them.

A stage behind all others of the data pipeline takes them, or, where pipelines run ahead of the steps,
the fetching step itself.
"""

from __future__ import annotations

import sys
from typing import Any, Final, Protocol

import numpy as np
import tensorflow as tf
from tensorflow.python.distribute.input_lib import DistributedIteratorBase

from detrain.base.digest import digest_array
from detrain.base.in_place import in_place_of

_STEP: Final = "multi_step_on_iterator"
"""Keras's function that fetches one batch and trains on it."""
_HANDLES: Final = (tf.variant, tf.resource)


class TakesDigest(Protocol):
    """What takes the digest of a batch, or of a part of it (`Probes.note_fetched`)."""

    def __call__(self, parts: list[np.ndarray[Any, Any]], *, is_whole: bool) -> None:
        """Take it."""


def digest_of_arrays(data: object) -> str:
    """Return a digest of the arrays of NumPy in a nested value; empty without one."""
    arrays = [each for each in tf.nest.flatten(data) if isinstance(each, np.ndarray) and not each.dtype.hasobject]
    return "".join(map(digest_array, arrays))


def digesting(dataset: Any, note: TakesDigest, *, is_whole: bool) -> Any:
    """Return a set that gives what another gives, and has digests taken of it. `is_whole`:
    a step fetches no more than one."""

    def passed(*element: Any) -> Any:
        note_batch(element, note, is_whole=is_whole)
        return element if isinstance(dataset.element_spec, tuple) else element[0]

    return dataset.map(passed)


def digest_distributed(note: TakesDigest) -> None:
    """Take the digests of batches of distributed sets where a step fetches them:
    their pipelines run ahead of the steps."""
    original = DistributedIteratorBase.get_next

    @in_place_of(DistributedIteratorBase, "get_next")
    def get_next(iterator: Any, *args: Any, **kwargs: Any) -> Any:
        batch = original(iterator, *args, **kwargs)
        if sys._getframe(1).f_code.co_name == _STEP:
            note_batch(batch, note, is_whole=False)
        return batch


def note_batch(element: Any, note: TakesDigest, *, is_whole: bool) -> None:
    """Take the digest of a batch, now or whenever the function that is being traced runs."""

    def noted(*parts: np.ndarray[Any, Any]) -> None:
        note(list(parts), is_whole=is_whole)

    parts = [part for part in tf.nest.flatten(element, expand_composites=True) if part.dtype not in _HANDLES]
    tf.numpy_function(noted, parts, [], name="detrain_digest")
