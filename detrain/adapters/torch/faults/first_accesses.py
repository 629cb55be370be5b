"""The first access of a step to each byte of the tensors that outlive it: a read, an overwrite, or none.

Ops are seen as they run, so the result is exact for accesses by ops. There is no result for memory that code other than
PyTorch's ops may read (NumPy, DLPack).
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, wraps
from typing import Any, Final

import torch

from detrain.adapters.torch.faults.op_operands import dtype_of, name_of, read_by, tensors_in
from detrain.base.in_place import in_place_of
from detrain.faults.sites import Access

_READ, _OVERWRITTEN = 1, 2
_WRITERS: Final = frozenset(
    {
        *("copy_", "zero_", "fill_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_", "log_normal_", "cauchy_"),
        *("geometric_", "_foreach_copy_", "_foreach_zero_"),
    }
)
"""Ops in place that do not read the values that they overwrite."""
_given_away: weakref.WeakSet[Any] = weakref.WeakSet()
"""Storages that code other than ops may read."""


def watch() -> None:
    """From now on, note memory that PyTorch shares with other libraries, or that is read without an op."""
    for name in ("numpy", "tolist", "__dlpack__"):
        setattr(torch.Tensor, name, _noting(getattr(torch.Tensor, name)))
    original: Any = torch.from_numpy

    @in_place_of(torch, "from_numpy")
    def from_numpy(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        _given_away.add(result.untyped_storage())
        return result


def _noting(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def noted(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        is_ours = str(sys._getframe(1).f_globals.get("__name__")).startswith("detrain.")  # detrain keeps no array
        if dtype_of(tensor) and not is_ours:
            _given_away.add(tensor.untyped_storage())
        return original(tensor, *args, **kwargs)

    return noted


class FirstAccesses:
    """Follows the ops of a step, and marks the first access to each byte."""

    def __init__(self) -> None:
        self._bytes: dict[int, tuple[Any, Any]] = {}
        """By a storage's identity: the storage, and the mark of the first access to each of its bytes (0: none)."""
        self.is_whole = True
        """Whether all ops of the step are seen."""

    def begin(self, tensors: Iterable[Any]) -> None:
        """Note that a step begins, and that these tensors outlive it."""
        self._bytes, self.is_whole = {}, True
        for storage in (each.untyped_storage() for each in tensors if dtype_of(each)):
            self._bytes.setdefault(id(storage), (storage, torch.zeros(storage.nbytes(), dtype=torch.uint8)))

    def note(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Mark the accesses of an op that is about to run."""
        for each in read_by(func, args, kwargs):
            self._mark(each, _READ)
        for place, overwrites in _stores(func):
            name = func._schema.arguments[place].name
            value = args[place] if place < len(args) else kwargs.get(name)
            for each in tensors_in([value]):
                self._mark(each, _OVERWRITTEN if overwrites else _READ)

    def note_read(self, tensors: Iterable[Any]) -> None:
        """Mark these tensors as read."""
        for each in tensors:
            self._mark(each, _READ)

    def of(self, tensor: Any) -> Access | None:
        """Return the first accesses of the step to a tensor's elements, as counts; None if they are not known."""
        if not dtype_of(tensor) or tensor.untyped_storage() in _given_away:
            return None
        marks = self._marks(tensor)
        if marks is None:
            return None
        marks = marks.expand(*tensor.shape, marks.shape[-1])
        overwritten, untouched = (int((marks == how).all(-1).sum()) for how in (_OVERWRITTEN, 0))
        is_known = self.is_whole or not (overwritten or untouched)
        return Access(tensor.numel() - overwritten - untouched, overwritten, untouched) if is_known else None

    def _marks(self, tensor: Any) -> Any:
        known = self._bytes.get(id(tensor.untyped_storage())) if dtype_of(tensor) else None
        if known is None or known[1].numel() != tensor.untyped_storage().nbytes():
            return None
        size = tensor.element_size()
        # The elements along a dimension of stride 0 share one place in memory.
        shape = [1 if not stride else length for length, stride in zip(tensor.shape, tensor.stride(), strict=True)]
        strides = [stride * size for stride in tensor.stride()]
        return known[1].as_strided((*shape, size), (*strides, 1), tensor.storage_offset() * size)

    def _mark(self, tensor: Any, how: int) -> None:
        marks = self._marks(tensor)
        if marks is None:
            return
        try:
            marks.masked_fill_(marks == 0, how)
        except RuntimeError:  # its elements share places in another way
            whole = self._bytes[id(tensor.untyped_storage())][1]
            whole.masked_fill_(whole == 0, _READ)


@lru_cache(maxsize=4096)
def _stores(func: Any) -> tuple[tuple[int, bool], ...]:
    """Return the places of the arguments that an op writes, each with whether it does so without reading them."""
    overwrites = name_of(func) in _WRITERS
    return tuple(
        (place, overwrites or each.kwarg_only)  # `out=`
        for place, each in enumerate(func._schema.arguments)
        if each.alias_info is not None and each.alias_info.is_write
    )
