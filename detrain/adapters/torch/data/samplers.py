"""The rules by which a sampler may be advanced alone, without loading batches: it draws when it begins, and never again
from a generator that others draw from.

A sampler of an unknown class is watched as it draws, to tell if its items depend on nothing but its state at the start.
So they do if no draw after the first moves a stream that bodies draw from, and if all objects that the sampler leads to
are unchanged at the cut. A resumed process lets the sampler draw again, and compares the items.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import torch
import xxhash
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from detrain.base.digest import digest_value
from detrain.python.loaders.loads_read import reached

_AT_START: Final = (SequentialSampler, SubsetRandomSampler, WeightedRandomSampler, DistributedSampler, range, list, tuple)


_REPEATS: Final = "_RepeatSampler"
"""The class name that timm, ultralytics and programs give to a sampler that repeats another one for ever."""

_MOST: Final = sys.maxsize
_MOST_BYTES: Final = 1 << 26


def reason_to_load(sampler: Any) -> str:
    """Return why a sampler cannot be advanced alone; empty if it can.

    Source: torch/utils/data/sampler.py, distributed.py.
    """
    if type(sampler) is BatchSampler:
        return reason_to_load(sampler.sampler)
    if type(sampler) is RandomSampler:
        is_private = sampler.generator is None  # it seeds one of its own, once
        if is_private or (not sampler.replacement and sampler.num_samples <= len(sampler.data_source)):
            return ""
        return "a RandomSampler draws from a generator that others may draw from between its batches"
    if type(sampler) in _AT_START:
        return ""
    if _repeats(sampler):
        return _reason_to_repeat(sampler.sampler)
    return f"what the sampler {type(sampler).__qualname__} draws between batches is not known"


def is_known(sampler: Any) -> bool:
    """Return whether a sampler's class tells if the sampler draws from generators that others draw from."""
    inner = sampler.sampler if type(sampler) is BatchSampler else sampler
    return type(inner) in (RandomSampler, *_AT_START) or _repeats(inner)


def _repeats(sampler: Any) -> bool:
    return type(sampler).__name__ == _REPEATS and vars(sampler).keys() == {"sampler"}


def takes_turns(sampler: Any) -> bool:
    """Return whether a sampler repeats a RandomSampler that seeds its own generator in each turn, and draws from no
    other: the states of the streams at a turn's start determine all items of the turn.
    """
    inner: Any = sampler.sampler if _repeats(sampler) else None
    inner = inner.sampler if type(inner) is BatchSampler else inner
    return type(inner) is RandomSampler and inner.generator is None


def _reason_to_repeat(sampler: Any) -> str:
    """Return why a repeated sampler, which draws anew in each turn, cannot be advanced alone; empty if it can."""
    if type(sampler) is BatchSampler:
        return _reason_to_repeat(sampler.sampler)
    if type(sampler) in (SequentialSampler, range, list, tuple):
        return ""
    generator = getattr(sampler, "generator", None)
    if type(sampler) is RandomSampler and generator is not torch.default_generator and reason_to_load(sampler) == "":
        return ""
    return f"a {type(sampler).__qualname__} that is repeated draws each order from a generator that bodies draw from, too"


def generators_of(loader: Any) -> list[Any]:
    """Return the generators that a loader and its samplers hold, each once."""
    return list({id(each): each for each in _generators(loader) if each is not None}.values())


def _generators(loader: Any) -> Iterator[Any]:
    yield getattr(loader, "generator", None)  # fastai has a loader of its own kind, over PyTorch's iterators
    batches = getattr(loader, "batch_sampler", None)
    sampler = batches if batches is not None else getattr(loader, "sampler", None)
    for _ in range(4):
        if sampler is None or isinstance(sampler, list | tuple | range):
            return
        yield getattr(sampler, "generator", None)
        sampler = getattr(sampler, "sampler", None)


class SamplerWatch:
    """A watch on the draws of a sampler."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self._before: str | None = None
        self._left: list[bytes] = []
        self._stirs = False
        self._digest = xxhash.xxh3_128()

    def draw(self, source: Iterator[Any], read: Callable[[], list[bytes]], *, is_first: bool) -> Any:
        """Return the next item of the sampler's iterator. `read` reads the streams: three of the process, and the
        generators that the sampler alone uses, unless bodies move them, too.
        """
        streams = read()
        if is_first:
            self._before = leads_to(self._sampler)
        self._stirs |= not is_first and streams[3:] != self._left
        index = next(source)
        after = read()
        self._stirs |= not is_first and streams[:3] != after[:3]
        self._left = after[3:]
        self._digest.update(repr(index).encode())
        return index

    @property
    def drawn(self) -> str:
        """A digest of all drawn items."""
        return self._digest.hexdigest()

    def is_closed(self) -> bool:
        """Return whether all drawn items depend on nothing but the sampler's state at the start."""
        return not self._stirs and self._before is not None and self._before == leads_to(self._sampler)


def leads_to(sampler: Any) -> str | None:
    """Return a digest of all values that an object's attributes and its classes' code lead to; None if some value has
    no digest. Generators of PyTorch are left out: they are streams."""
    state, size = xxhash.xxh3_128(), 0
    for place, value, is_data in reached(sampler, deepest=_MOST, most_items=_MOST):
        if not is_data and not (isinstance(value, torch.Generator) or type(value).__module__.startswith("torch.utils.data.")):
            return None
        size += getattr(value, "nbytes", 0)
        if size > _MOST_BYTES:
            return None
        try:
            state.update(f"{place} {digest_value(value, _array_of) if is_data else ''};".encode())
        except ValueError:
            return None
    return state.hexdigest()


def _array_of(value: Any) -> np.ndarray[Any, Any] | None:
    """Return the bytes of a tensor, or an array-like object as an array. Raises ValueError for a tensor of parts."""
    if not isinstance(value, torch.Tensor):
        return np.asarray(value) if hasattr(type(value), "__array__") else None
    if value.layout is not torch.strided:
        raise ValueError(value.layout)
    return np.asarray(value.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy())
