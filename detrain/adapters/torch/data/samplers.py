"""Which samplers may be advanced alone, without the batches between: those that draw when they begin, and never again
from a generator that others draw from.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

_AT_START: Final = (SequentialSampler, SubsetRandomSampler, WeightedRandomSampler, DistributedSampler, range, list, tuple)


_REPEATS: Final = "_RepeatSampler"
"""What timm, ultralytics and programs call a sampler that goes over another one again and again."""


def reason_to_load(sampler: Any) -> str:
    """Return why a sampler cannot be advanced alone; empty if it can.

    The source: torch/utils/data/sampler.py, distributed.py.
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
    """Return whether a sampler, by its class, is known to draw, or not to draw, from what others draw from."""
    inner = sampler.sampler if type(sampler) is BatchSampler else sampler
    return type(inner) in (RandomSampler, *_AT_START) or _repeats(inner)


def _repeats(sampler: Any) -> bool:
    return type(sampler).__name__ == _REPEATS and vars(sampler).keys() == {"sampler"}


def takes_turns(sampler: Any) -> bool:
    """Return whether a sampler goes over a RandomSampler again and again that seeds a generator of its own each time,
    and draws from no other: what the streams are as that begins says all that it hands out until it begins again.
    """
    inner: Any = sampler.sampler if _repeats(sampler) else None
    inner = inner.sampler if type(inner) is BatchSampler else inner
    return type(inner) is RandomSampler and inner.generator is None


def _reason_to_repeat(sampler: Any) -> str:
    """Return why a sampler that is gone over again and again cannot be advanced alone: each time it draws anew."""
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
