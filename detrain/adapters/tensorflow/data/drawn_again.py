"""Iterators without a position: drawn from again as often as before, and compared with what they gave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from detrain.adapters.tensorflow.data.iterator_positions import refusal
from detrain.base.digest import digest_value
from detrain.base.errors import Diverged


def draw_again(behind: Sequence[tuple[Any, int]]) -> None:
    """Draw from the iterators of one source until each has given so many, in turn:
    it waits until each device takes its part."""
    while waiting := [iterator for iterator, pulled in behind if iterator.detrain_pulled < pulled]:
        for iterator in waiting:
            iterator.detrain_last = next(iterator)


def is_drawn_again(iterator: Any) -> bool:
    """Return whether a resumed run draws again what an iterator has given, as it has no position."""
    if not hasattr(iterator, "detrain_is_drawn_again"):
        iterator.detrain_is_drawn_again = refusal(iterator._dataset) is not None
    return bool(iterator.detrain_is_drawn_again)


def digest_of_element(element: Any) -> str:
    """Return the digest of the tensors in an element, but for those that have no numbers."""
    parts = [part for part in tf.nest.flatten(element, expand_composites=True) if part.dtype not in (tf.variant, tf.resource)]
    return digest_value([part.numpy() for part in parts], lambda _value: None)


def require_same(key: str, iterator: Any, state: Mapping[str, Any]) -> None:
    """Raise Diverged if an iterator that was drawn from again has not given, at last, what it had given."""
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
