"""A sampler that is not known is watched as it draws: what it says may then follow from what it held as it began, and
from nothing else.

That is so where its draws behind the first move none of the streams that bodies draw from, and all that it leads to is
at a cut what it was. A resumed process has it draw again, and compares.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import torch
import xxhash

from detrain.base.digest import digest_value
from detrain.python.loaders.loads_read import reached

_MOST: Final = sys.maxsize
_MOST_BYTES: Final = 1 << 26


class SamplerWatch:
    """What is seen of a sampler as it draws."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self._before: str | None = None
        self._left: list[bytes] = []
        self._stirs = False
        self._digest = xxhash.xxh3_128()

    def draw(self, source: Iterator[Any], read: Callable[[], list[bytes]], *, is_first: bool) -> Any:
        """Return what the sampler's iterator hands out next. `read` reads the streams: three of the process, and those
        that the sampler has to itself unless bodies move them, too.
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
        """A digest of all that was drawn."""
        return self._digest.hexdigest()

    def is_closed(self) -> bool:
        """Return whether all that the sampler has drawn follows from what it held as it began."""
        return not self._stirs and self._before is not None and self._before == leads_to(self._sampler)


def leads_to(sampler: Any) -> str | None:
    """Return a digest of all that an object's attributes and the code of its classes lead to; None where that cannot be
    told. Generators of PyTorch count by themselves."""
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
    """Return the bytes of a tensor, or what else gives itself as an array. Raises ValueError for a tensor of parts."""
    if not isinstance(value, torch.Tensor):
        return np.asarray(value) if hasattr(type(value), "__array__") else None
    if value.layout is not torch.strided:
        raise ValueError(value.layout)
    return np.asarray(value.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy())
