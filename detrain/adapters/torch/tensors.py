"""Tensors of PyTorch that are changed in place: how one looks at its storage, and how both are put back.

A storage is what tensors share (views, tied weights, `state_dict()`'s aliases); it is described by its bytes, so that
each dtype is exact. A tensor is the rest: class, dtype, offset, shape, strides and flags. Writing a storage's bytes
needs no `no_grad`, and moves no version counter (`torch/csrc/autograd/VariableTypeManual.cpp`).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch

from detrain.base.digest import Array
from detrain.python.inspect.names import class_name, find_class
from detrain.python.inspect.object_graph import OF_GRAPH, Item, SharedTensor

_META: Final = "meta"
_MOST_FUNCTIONS: Final = 100
_CLASSES: Final[dict[str, Any]] = {class_name(cls): cls for cls in (torch.Tensor, torch.nn.Parameter)}


class Lost(torch.autograd.Function):  # type: ignore[misc]
    """Stands for the graph behind a tensor that was computed, which no checkpoint holds: its value is exact, a
    `backward` through it fails.
    """

    @staticmethod
    def forward(_ctx: Any, value: torch.Tensor) -> torch.Tensor:
        """Return the value."""
        return value.view_as(value)

    @staticmethod
    def backward(_ctx: Any, _grad: torch.Tensor) -> torch.Tensor:
        """Raise RuntimeError."""
        raise RuntimeError(
            "detrain: this tensor was computed before the checkpoint, which does not hold the graph behind it: compute it again, "
            "or take checkpoints where no graph goes on (--every 1)"
        )


class Tensors:
    """See `detrain.adapters.api.SharedTensors`."""

    def is_shared(self, value: object) -> bool:
        """Return whether a value is a tensor with a storage of plain memory.

        Sparse, quantised, nested and lazy ones, and those that wrap others, are made of parts (`leaves`).
        """
        if not isinstance(value, torch.Tensor):
            return False
        is_plain = value.layout is torch.strided and not value.is_nested and not value.is_quantized
        return is_plain and not torch.nn.parameter.is_lazy(value) and not hasattr(type(value), "__tensor_flatten__")

    def look(self, value: Any) -> SharedTensor | None:
        """Return what a tensor is: its storage, how it looks at it, its gradient and hooks."""
        if not self.is_shared(value):
            return None
        graph = "" if value.grad_fn is None else type(value.grad_fn).__name__
        form = [
            class_name(type(value)),
            str(value.dtype).removeprefix("torch."),
            str(value.device),
            value.storage_offset(),
            list(value.shape),
            list(value.stride()),
            value.requires_grad,
            graph,
            value.is_conj(),
            value.is_neg(),
        ]
        parts = [value.grad if value.is_leaf else None, value._backward_hooks, value._post_accumulate_grad_hooks]
        while parts and parts[-1] is None:
            parts.pop()
        is_live = bool(graph) and _may_go_backward(value.grad_fn)
        return SharedTensor("torch", value.untyped_storage(), form, _extent(value), parts, OF_GRAPH if is_live else "")

    def read(self, memory: Any, *, holds: bool) -> Array:
        """Return a storage's bytes; with `holds` a copy of them."""
        if memory.nbytes() == 0 or memory.device.type == _META:
            return np.empty(0, np.uint8)
        if memory.device.type != "cpu":
            return _bytes(memory.cpu())
        found = _bytes(memory)
        return found.copy() if holds else found

    def fill(self, memory: Any, content: Array) -> bool:
        """Write bytes into a storage of their size."""
        if memory.device.type == _META:
            return True
        if memory.nbytes() != content.nbytes:
            return False
        if content.nbytes and memory.device.type == "cpu":
            _bytes(memory)[:] = content
        elif content.nbytes:
            memory.copy_(torch.from_numpy(np.ascontiguousarray(content)).untyped_storage())
        return True

    def new_memory(self, content: Array, form: list[Item]) -> object:
        """Return a storage with these bytes, on the device of a form."""
        made = torch.empty(content.nbytes, dtype=torch.uint8, device=form[2]).untyped_storage()
        self.fill(made, content)
        return made

    def put(self, form: list[Item], memory: Any, current: Any) -> object:
        """Return the tensor of a form at a storage."""
        name, dtype, device, offset, shape, strides, requires_grad, graph, is_conj, is_neg = form
        kind = getattr(torch, dtype)
        now = None if current is None else self.look(current)
        if now is not None and now.form[0] == name:
            is_there = now.memory._cdata == memory._cdata and now.form[1:6] == form[1:6] and now.form[7:] == form[7:]
            if is_there or (device == _META and now.form[1:6] == form[1:6]):
                if current.is_leaf and current.requires_grad != requires_grad:
                    current.requires_grad_(requires_grad)
                return current
        if device == _META:
            made = torch.empty_strided(tuple(shape), tuple(strides), dtype=kind, device=_META)
        else:
            made = torch.empty(0, dtype=kind, device=memory.device).set_(memory, offset, tuple(shape), tuple(strides))
            made = made.conj() if is_conj else made
            made = torch._neg_view(made) if is_neg else made
        if graph:
            with torch.enable_grad():
                return Lost.apply(made.requires_grad_())
        if now is not None and now.form[0] == name and current.is_leaf:
            with torch.no_grad():
                current.data = made
            current.requires_grad_(requires_grad)
            return current
        cls: Any = _CLASSES.get(name) or find_class(name, current)
        if cls is torch.nn.Parameter:
            return torch.nn.Parameter(made, requires_grad)
        if cls is not None and cls is not torch.Tensor:
            made = made.as_subclass(cls)
        return made.requires_grad_(requires_grad)

    def set_parts(self, tensor: Any, parts: list[Any]) -> None:
        """Give a tensor the gradient and hooks that it had."""
        grad, backward, accumulated = (*parts, None, None, None)[:3]
        if tensor.is_leaf and tensor.grad is not grad:
            tensor.grad = grad
        if tensor._backward_hooks is not backward:
            tensor._backward_hooks = backward
        if tensor._post_accumulate_grad_hooks is not accumulated:
            tensor._post_accumulate_grad_hooks = accumulated


def _extent(value: torch.Tensor) -> tuple[int, int]:
    """Return the first byte of its storage that a tensor looks at, and that behind the last."""
    start, size = value.storage_offset(), value.element_size()
    if value.numel() == 0 or value.device.type == _META:
        return 0, 0
    last = start + sum((length - 1) * stride for length, stride in zip(value.shape, value.stride(), strict=True))
    return start * size, (last + 1) * size


def _may_go_backward(function: Any) -> bool:
    """Return whether a graph may be gone through: after a `backward`, what it had kept for that has been freed."""
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


def _bytes(storage: Any) -> Array:
    """Return the bytes of a storage in the host's memory, without a copy."""
    found: Array = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
    return found
