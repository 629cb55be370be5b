"""The bytes of storages: read in place, and held while training goes on, by copy on write.

`torch._lazy_clone` gives a storage and its clone one memory, and the first to be written takes another: so holding is
cheap, and held bytes stay. PyTorch 2.13 fails if such a storage is made larger (INTERNAL ASSERT,
`c10/core/impl/COW.cpp`), as `out=` may do: so only storages of optimizers, nearly all of a state, are held this way,
and `resize_` undoes it first. PyTorch does not know who got the address before: NumPy's arrays (PyTorch no longer
resizes a storage with one), and other libraries by DLPack, which is noted here. Memory that these may write into is
copied, as is memory that PyTorch did not allocate. An address that the program has kept (`data_ptr`) is not known.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any, Final

import numpy as np
import torch
import torch.utils.dlpack
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import _disable_current_modes

from detrain.base.digest import Array

_SMALL_BYTES: Final = 1 << 14
"""Fewer bytes than these are copied in less time than copying on write takes."""
_Reference = weakref.ref[Any]
_given_away: Final[dict[int, _Reference]] = {}
"""Storages with an address that DLPack has handed out, by their identity."""


def is_spread(tensor: object) -> bool:
    """Return whether a tensor is spread over the processes of a job."""
    cls = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    return cls is not None and isinstance(tensor, cls)


def shard_of(tensor: Any) -> Any:
    """Return the tensor that has the memory: this process's shard if a tensor is spread over processes, else itself."""
    return tensor._local_tensor if is_spread(tensor) else tensor


def shards_of(tensors: list[Any]) -> list[Any]:
    """Return `shard_of` each; without looking at them where no tensor can be spread."""
    return [*map(shard_of, tensors)] if "torch.distributed.tensor" in sys.modules else tensors


class unseen:
    """Inside, no code of the program sees or changes detrain's work on tensors: classes of tensors and modes that
    follow each call (`torch.set_default_device`, a counter of operations) are off.
    """

    __slots__ = ("_functions", "_modes")

    def __enter__(self) -> None:
        self._functions = torch._C.DisableTorchFunction()
        self._functions.__enter__()
        self._modes = _disable_current_modes() if torch._C._len_torch_dispatch_stack() else None
        if self._modes is not None:
            self._modes.__enter__()

    def __exit__(self, *error: Any) -> None:
        if self._modes is not None:
            self._modes.__exit__(*error)
        self._functions.__exit__(*error)


class _OfOptimizers:
    """The storages of parameters, gradients and state of all optimizers that have made a step."""

    def __init__(self) -> None:
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self.steps, self._read_at = 0, -1
        self._storages: dict[int, _Reference] = {}

    def stepped(self, optimizer: Any, _args: object, _kwargs: object) -> None:
        """Note a step of an optimizer."""
        self._optimizers.add(optimizer)
        self.steps += 1

    def has(self, storage: Any) -> bool:
        """Return whether a storage belongs to one of these optimizers."""
        if self._read_at != self.steps:
            self._read_at, self._storages = self.steps, {}
            for optimizer in self._optimizers:
                parameters = [each for group in optimizer.param_groups for each in group["params"]]
                state = [each for held in optimizer.state.values() if isinstance(held, dict) for each in held.values()]
                for tensor in map(shard_of, (*parameters, *(each.grad for each in parameters), *state)):
                    if isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided:
                        found = tensor.untyped_storage()
                        self._storages[id(found)] = weakref.ref(found)
        known = self._storages.get(id(storage))
        return known is not None and known() is storage


_of_optimizers: Final = _OfOptimizers()


def has_stepped() -> bool:
    """Return whether any optimizer has made a step."""
    return _of_optimizers.steps > 0


def watch() -> None:
    """From now on, note the steps of optimizers, and the storages that DLPack hands out."""
    if hasattr(torch.Tensor.__dlpack__, "__wrapped__"):
        return
    torch.Tensor.__dlpack__ = _noting(torch.Tensor.__dlpack__)
    torch.to_dlpack = torch.utils.dlpack.to_dlpack = _noting(torch.utils.dlpack.to_dlpack)
    torch.UntypedStorage.resize_ = _apart(torch.UntypedStorage.resize_)
    register_optimizer_step_post_hook(_of_optimizers.stepped)


def _apart(resize: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(resize)
    def resized(storage: Any, *args: Any, **kwargs: Any) -> Any:
        if storage.device.type == "cpu" and storage.nbytes():
            storage.data_ptr()  # gives it a memory of its own
        return resize(storage, *args, **kwargs)

    return resized


def _noting(export: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(export)
    def exported(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        with contextlib.suppress(NotImplementedError, RuntimeError):  # of a tensor without memory
            storage = tensor.untyped_storage()
            number = id(storage)
            _given_away[number] = weakref.ref(storage, lambda _reference: _given_away.pop(number, None))
        return export(tensor, *args, **kwargs)

    return exported


def address_of(storage: Any) -> int:
    """Return the address of a storage, without causing a copy on write."""
    with unseen():
        return int(torch._C._data_address(torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)))


def start_of(tensor: Any) -> int:
    """Return the address of a tensor's storage, as `address_of` does, but faster for a plain tensor."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or not tensor.numel():
        return address_of(tensor.untyped_storage())
    return int(torch._C._data_address(tensor) - tensor.storage_offset() * tensor.element_size())


def look_at(storage: Any) -> Array:
    """Return the bytes of a storage in the host's memory, without a copy, to be used at once. (After `numpy()` PyTorch
    would not resize the storage any more, and `numpy()` copies a storage that is copied on write.)
    """
    return np.frombuffer((ctypes.c_uint8 * storage.nbytes()).from_address(address_of(storage)), np.uint8)


def hold(storage: Any) -> Array:
    """Return the bytes that a storage in the host's memory has now; the array may only be read."""
    is_known = storage.resizable() and not storage.is_shared() and id(storage) not in _given_away
    if storage.nbytes() < _SMALL_BYTES or not is_known or not _of_optimizers.has(storage):
        return look_at(storage).copy()
    try:
        with unseen(), torch.inference_mode(mode=False), torch.no_grad():
            clone = torch._lazy_clone(torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage))
    except RuntimeError:  # PyTorch has not allocated this memory
        return look_at(storage).copy()
    memory: Any = (ctypes.c_uint8 * storage.nbytes()).from_address(torch._C._data_address(clone))
    memory.held = clone
    found = np.frombuffer(memory, np.uint8)
    found.flags.writeable = False
    return found
