"""PyTorch's tensors that are changed in place: the description of a tensor and its storage, and the way to restore
both.

A storage is memory that tensors share (views, tied weights, `state_dict()`'s aliases); it is described by its bytes, so
that each dtype is exact. The rest describes a tensor: class, dtype, offset, shape, strides and flags. Writing a
storage's bytes needs no `no_grad`, and moves no version counter (`torch/csrc/autograd/VariableTypeManual.cpp`).
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import torch

from detrain.adapters.torch import lost_graph
from detrain.adapters.torch.devices import TorchDevices
from detrain.adapters.torch.held_memory import address_of, hold, look_at, unseen, watch
from detrain.base.digest import Array
from detrain.base.losses import OF_GRAPH
from detrain.base.paths import path_below
from detrain.python.inspect.names import class_name, find_class
from detrain.python.inspect.object_graph import Item, SharedTensor

_META: Final = "meta"
_MOVED: Final = "what it was a view of, before its `data` was set"
_ELSEWHERE: Final = "mapped to a file that is not below the program's folder"
_FILE: Final = 11
"""The index in a form of the file to which the storage is mapped."""
_CREATION: Final = torch._C._autograd.CreationMeta
_creation: Final = torch._C._autograd._get_creation_meta
_MOST_FUNCTIONS: Final = 100
_CLASSES: Final[dict[str, Any]] = {class_name(cls): cls for cls in (torch.Tensor, torch.nn.Parameter)}


class TorchTensors:
    """See `detrain.python.inspect.hooks.SharedTensors`."""

    def __init__(self, devices: TorchDevices) -> None:
        self._devices = devices
        watch()
        _folder()

    def is_computed(self, value: object) -> bool:
        """Return whether a value is a tensor with an autograd graph: computed from weights, and no data."""
        return isinstance(value, torch.Tensor) and value.grad_fn is not None

    def is_shared(self, value: object) -> bool:
        """Return whether a value is a tensor with a storage of plain memory.

        Sparse, quantised, nested and lazy tensors, and those that wrap others, are made of parts (`leaves`).
        """
        if not isinstance(value, torch.Tensor):
            return False
        with unseen():
            return _is_plain(value)

    def look(self, value: Any) -> SharedTensor | None:
        """Return the description of a tensor: its storage, its view of the storage, its gradient and hooks."""
        if not isinstance(value, torch.Tensor):
            return None
        with unseen():
            found = _look(value) if _is_plain(value) else None
        if found is not None and found.form[2] != "cpu":
            self._devices.note(found.form[2])
        return found

    def read(self, memory: Any, *, holds: bool) -> Array:
        """Return a storage's bytes; with `holds` they stay as they are now."""
        if memory.nbytes() == 0 or memory.device.type == _META:
            return np.empty(0, np.uint8)
        if memory.device.type != "cpu":
            return self._devices.copies.hold(memory) if holds else look_at(memory.cpu()).copy()
        return hold(memory) if holds else look_at(memory)

    def fill(self, memory: Any, size_bytes: int, write: Callable[[Array], None]) -> bool:
        """Let `write` fill a storage; return False, with nothing written, if it has another size."""
        if memory.device.type == _META:
            return True
        if memory.nbytes() != size_bytes:
            return False
        if size_bytes and memory.device.type == "cpu":
            memory.data_ptr()  # a storage that is copied on write is copied now
            write(look_at(memory))
        elif size_bytes:
            content = np.empty(size_bytes, np.uint8)
            write(content)
            memory.copy_(torch.from_numpy(content).untyped_storage())
        return True

    def new_memory(self, size_bytes: int, write: Callable[[Array], None], form: list[Item]) -> object:
        """Return a new storage, filled by `write`, on the device of a form, or mapped to the form's file."""
        with unseen():
            if len(form) > _FILE and _is_below(form[_FILE]):
                made = torch.from_file(form[_FILE], shared=True, size=size_bytes, dtype=torch.uint8).untyped_storage()
            else:
                made = torch.empty(size_bytes, dtype=torch.uint8, device=form[2]).untyped_storage()
        self.fill(made, size_bytes, write)
        return made

    def span(self, memory: Any) -> tuple[int, int]:
        """Return the address of a storage and its size in bytes; no size if it is not in the host's memory."""
        return (address_of(memory), memory.nbytes()) if memory.device.type == "cpu" else (0, 0)

    def array_of(self, memory: Any) -> Array:
        """Return an array [byte] uint8 that lies in a storage, as `numpy()` does."""
        with unseen():
            return np.asarray(torch.empty(0, dtype=torch.uint8, device="cpu").set_(memory).numpy())

    def memory_in(self, array: Array) -> object:
        """Return a storage that lies in an array [byte] uint8, as `from_numpy` does."""
        with unseen():
            return torch.from_numpy(array).untyped_storage()

    def put(self, form: list[Item], memory: Any, current: Any, base: Any) -> object:
        """Return the tensor of a form at a storage, a view of `base` if that is not None. Raises ValueError if it
        cannot be made.
        """
        with unseen(), torch.inference_mode(mode=False):
            return _put(form, memory, current, base)

    def set_parts(self, tensor: Any, parts: list[Any]) -> None:
        """Give a tensor the gradient and hooks that `look` has described."""
        grad, backward, accumulated = (*parts, None, None, None)[:3]
        with unseen():
            if grad_function(tensor) is None and tensor.grad is not grad:
                _set_gradient(tensor, grad)
            if tensor._backward_hooks is not backward:
                tensor._backward_hooks = backward
            if tensor._post_accumulate_grad_hooks is not accumulated:
                tensor._post_accumulate_grad_hooks = accumulated


def _set_gradient(tensor: Any, gradient: Any) -> None:
    try:
        tensor.grad = gradient
    except RuntimeError:  # the tensor was given other data since
        data = tensor.data
        tensor.data = torch.empty_like(gradient)
        tensor.grad = gradient
        tensor.data = data


def _is_plain(value: Any) -> bool:
    if value.layout is not torch.strided or value.is_nested or value.is_quantized or torch.nn.parameter.is_lazy(value):
        return False
    if type(value) in (torch.Tensor, torch.nn.Parameter):
        return True
    # A subclass may wrap other tensors, and have a storage in name only.
    has_memory = value.device.type != "cpu" or value.untyped_storage().nbytes() == 0 or torch._C._data_address(value) != 0
    return has_memory and not hasattr(type(value), "__tensor_flatten__")


def _look(value: Any) -> SharedTensor:
    function = grad_function(value)
    graph, is_leaf = "" if function is None else lost_graph.name_of(function), function is None
    memory = value.untyped_storage()
    base = value._base if is_leaf and value._is_view() else None
    if base is not None and (grad_function(base) is not None or not _is_plain(base)):
        base = None
    loss = OF_GRAPH if graph and _may_go_backward(function) else ""
    if base is not None and not (base.untyped_storage()._cdata == memory._cdata and _is_seen_as(base, value.dtype)):
        base, loss = None, _MOVED
    file = memory.filename if memory.device.type == "cpu" else None
    if file is not None and not _is_below(file):
        file, loss = None, _ELSEWHERE
    form = [
        class_name(type(value)),
        str(value.dtype).removeprefix("torch."),
        str(value.device),
        value.storage_offset(),
        list(value.shape),
        list(value.stride()),
        value.requires_grad if graph else _wants_gradient(value),
        graph,
        value.is_conj(),
        value.is_neg(),
        *([] if base is None and file is None else ["" if base is None else _creation(value).name]),
        *([] if file is None else [file]),
    ]
    parts = [value.grad if is_leaf else None, value._backward_hooks, value._post_accumulate_grad_hooks]
    while parts and parts[-1] is None:
        parts.pop()
    is_parameter = is_leaf and bool(form[6])
    return SharedTensor("torch", memory, form, _extent(value), parts, loss, base, is_parameter, function)


def _is_below(file: str) -> bool:
    """Return whether a file is below the folder of the program."""
    return path_below(os.path.realpath(file), _folder()) is not None


@functools.cache
def _folder() -> str:
    """Return the working folder of the program when it imported PyTorch."""
    return os.path.realpath(os.getcwd())


def _wants_gradient(value: Any) -> bool:
    """Return whether a tensor that was not computed requires gradients itself: PyTorch also says so of a view, if the
    tensor behind the view requires them.
    """
    if not (value.requires_grad and value._is_view() and value._base.requires_grad):
        return bool(value.requires_grad)
    try:
        with torch.enable_grad():
            function = value.view_as(value).grad_fn
    except RuntimeError:  # nothing can be computed from it: see `grad_function`
        return False
    return function is not None and function.next_functions[0][0] is not None


def _is_seen_as(base: Any, dtype: Any) -> bool:
    """Return whether autograd has views of a tensor in this dtype: its own, or that of a complex tensor's parts."""
    return dtype is base.dtype or (base.dtype.is_complex and dtype is base.dtype.to_real() and not base.is_conj())


def grad_function(value: Any) -> Any:
    """Return the function that computed a tensor, or None; None, too, for a view made without gradients, if its base
    was written since: PyTorch raises an error there.
    """
    try:
        return value.grad_fn
    except RuntimeError:
        return None


def _put(form: list[Item], memory: Any, current: Any, base: Any) -> object:
    name, dtype, device, offset, shape, strides, requires_grad, graph, is_conj, is_neg = form[:10]
    kind = getattr(torch, dtype)
    now = _look(current) if isinstance(current, torch.Tensor) and _is_plain(current) else None
    if now is not None and now.form[0] == name:
        is_there = now.memory._cdata == memory._cdata and now.form[1:6] == form[1:6] and now.form[7:] == form[7:]
        is_there = is_there or (device == _META and now.form[1:6] == form[1:6])
        if is_there and now.base is base and not graph:
            if now.form[6] != requires_grad:
                current.requires_grad_(requires_grad)
            return current
    if base is not None:
        made = _view(base, form)
    elif device == _META:
        made = torch.empty_strided(tuple(shape), tuple(strides), dtype=kind, device=_META)
    else:
        with _large_enough(memory, (offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1) * kind.itemsize):
            made = torch.empty(0, dtype=kind, device=memory.device).set_(memory, offset, tuple(shape), tuple(strides))
        torch._C._set_conj(made, is_conj)
        torch._C._set_neg(made, is_neg)
    if graph:
        return lost_graph.stand_in(made, graph)
    if now is not None and now.form[0] == name and not now.form[7] and base is None and not current._is_view():
        with torch.no_grad():
            current.data = made
        current.requires_grad_(requires_grad)
        return current
    cls: Any = _CLASSES.get(name) or find_class(name, current) or _subclass(name)
    if cls is torch.nn.Parameter:
        return torch.nn.Parameter(made, requires_grad)
    if cls is None and name not in _CLASSES:
        raise ValueError(f"class {name!r} is not there")
    if cls is not torch.Tensor:
        made = made.as_subclass(cls)
    return made.requires_grad_() if requires_grad else made


def _subclass(name: str) -> Any:
    """Return a class of tensors by its name, from any imported module, or None: making a tensor of it runs none of its
    code.
    """
    module, _, found = name.partition(":")
    cls = vars(sys.modules.get(module, torch)).get(found)
    return cls if isinstance(cls, type) and issubclass(cls, torch.Tensor) and class_name(cls) == name else None


@contextmanager
def _large_enough(memory: Any, size: int) -> Iterator[None]:
    """Inside, an empty storage has this size: the program may have freed the memory behind a tensor."""
    before = memory.nbytes()
    if before < size and before == 0 and memory.resizable():
        memory.resize_(size)
        yield
        memory.resize_(before)
    else:
        yield


def _view(base: Any, form: list[Item]) -> Any:
    """Return a view of a tensor that autograd knows as one."""
    _name, dtype, _device, offset, shape, strides, _requires_grad, _graph, is_conj, is_neg, creation = form[:_FILE]
    kind, needs_grad = getattr(torch, dtype), base.requires_grad
    base.requires_grad_(False)  # else the view would be computed from it
    try:
        with torch.enable_grad():
            made = base if kind is base.dtype else torch.view_as_real(base)
            made = made.as_strided(tuple(shape), tuple(strides), offset)
            made = made.conj() if is_conj != made.is_conj() else made
            made = torch._neg_view(made) if is_neg != made.is_neg() else made
    except RuntimeError as error:
        raise ValueError(f"it is no view any more of what it was one of ({error})") from error
    finally:
        base.requires_grad_(needs_grad)
    torch._C._autograd._set_creation_meta(made, _CREATION.__members__[creation])
    return made


def _extent(value: torch.Tensor) -> tuple[int, int]:
    """Return the range of its storage's bytes that a tensor uses: the first byte, and the one after the last."""
    start, size = value.storage_offset(), value.element_size()
    if value.numel() == 0 or value.device.type == _META:
        return 0, 0
    last = start + sum((length - 1) * stride for length, stride in zip(value.shape, value.stride(), strict=True))
    return start * size, (last + 1) * size


def _may_go_backward(function: Any) -> bool:
    """Return whether a `backward` through a graph is possible: an earlier one may have freed the tensors saved for it.

    None is possible through a stand-in for a lost graph.
    """
    if type(function) is lost_graph.Lost._backward_cls:
        return False
    seen, left = {function}, [function]
    while left and len(seen) < _MOST_FUNCTIONS:
        node = left.pop()
        for name in dir(node):
            if name.startswith("_saved_"):
                try:
                    getattr(node, name)
                except RuntimeError:  # "… after they have already been freed"
                    return False
        new = [each for each, _number in node.next_functions if each is not None and each not in seen]
        seen.update(new)
        left += new
    return True
