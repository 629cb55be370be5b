"""What else of PyTorch's are leaves of Python objects: values such as dtypes and devices, generators, tensors that are
made of others (sparse, quantised, nested, wrapped), handles of hooks.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from torch.utils.hooks import RemovableHandle

from detrain.adapters.torch.data.loaders import KIND, Loaders
from detrain.adapters.torch.streams import GeneratorStream
from detrain.base.digest import Array
from detrain.python.inspect.names import class_name, find_class

_VALUES: Final = {
    "torch.dtype": torch.dtype,
    "torch.device": torch.device,
    "torch.layout": torch.layout,
    "torch.memory_format": torch.memory_format,
    "torch.qscheme": torch.qscheme,
}
_COMPRESSED: Final = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}


class Leaves:
    """See `detrain.adapters.api.TensorLeaves`."""

    constant_type = None

    def __init__(self, loaders: Loaders) -> None:
        self._loaders = loaders

    def to_array(self, value: object) -> Array | None:
        """Return a tensor's value; of dtypes that NumPy has not (bfloat16) its bytes, of one that is made of others all
        of theirs.
        """
        if not isinstance(value, torch.Tensor):
            return None
        described = self.parts(value)
        if described is not None:
            arrays = [self.to_array(part) for part in described[1] if isinstance(part, torch.Tensor)]
            flat = [array.reshape(-1).view(np.uint8) for array in arrays if array is not None and array.size]
            return np.concatenate(flat) if flat else np.empty(0, np.uint8)
        if value.device.type == "meta":
            return np.empty(0, np.uint8)
        plain = value.detach().cpu().resolve_conj().resolve_neg()
        try:
            return np.asarray(plain.numpy())
        except TypeError:
            return np.asarray(plain.contiguous().view(torch.uint8).numpy())

    def constant(self, _value: object) -> Array | None:
        """No tensor of PyTorch's is immutable."""
        return None

    def make_constant(self, array: Array) -> object:
        """Return a tensor: of a checkpoint that another framework's adapter has taken there may be one."""
        return torch.from_numpy(np.array(array))

    def parts(self, value: Any) -> tuple[str, list[object]] | None:
        """Return the kind of such a value and what it is made of; None for anything else."""
        cls = type(value)
        if cls is torch.Size:
            return "torch.Size", [list(value)]
        for kind, known in _VALUES.items():
            if cls is known:
                return kind, [str(value)]
        if cls is torch.Generator:
            return "torch.Generator", [GeneratorStream(value).pack(), str(value.device)]
        if cls is RemovableHandle:
            return "torch.handle", [value.hooks_dict_ref(), value.id, [reference() for reference in value.extra_dict_ref]]
        if isinstance(value, torch.jit.ScriptModule):
            return "torch.script", [dict(value.named_parameters()), dict(value.named_buffers()), value.training]
        return _tensor_parts(value) if isinstance(value, torch.Tensor) else None

    def parts_of_new(self, value: object) -> tuple[str, list[object]] | None:
        """Return what an iterator over a DataLoader is made of."""
        return self._loaders.parts_of_new(value)

    def remake(self, kind: str, parts: list[Any], current: Any) -> Any:
        """Return what `parts` described."""
        if kind == KIND:
            return self._loaders.remake(parts)
        if kind == "torch.Size":
            return torch.Size(parts[0])
        if kind == "torch.device":
            return torch.device(parts[0])
        if kind in _VALUES:
            return getattr(torch, parts[0].removeprefix("torch."), None)
        if kind == "torch.Generator":
            generator = current if type(current) is torch.Generator else torch.Generator(parts[1])
            GeneratorStream(generator).unpack(parts[0])
            return generator
        if kind == "torch.handle":
            if type(current) is RemovableHandle and current.id == parts[1] and current.hooks_dict_ref() is parts[0]:
                return current
            made = RemovableHandle.__new__(RemovableHandle)
            made.__setstate__((parts[0], parts[1], tuple(parts[2])))
            return made
        if kind == "torch.script":  # its tensors were put back in place
            if isinstance(current, torch.jit.ScriptModule):
                current.train(parts[2])
                return current
            return None
        return _remake_tensor(kind, parts, current)


def _tensor_parts(value: Any) -> tuple[str, list[object]] | None:
    if torch.nn.parameter.is_lazy(value):
        return "torch.lazy", [class_name(type(value)), value.requires_grad]
    if hasattr(type(value), "__tensor_flatten__"):
        names, context = value.__tensor_flatten__()
        held = [getattr(value, name) for name in names]
        return "torch.wrapper", [class_name(type(value)), list(names), held, list(value.shape), list(value.stride()), context]
    if value.is_nested:
        return "torch.nested", list(value.unbind())
    if value.layout is torch.sparse_coo:
        return "torch.sparse_coo", [value._indices(), value._values(), list(value.shape), value.is_coalesced()]
    if value.layout in _COMPRESSED:
        inner = [getattr(value, name)() for name in _COMPRESSED[value.layout]]
        return "torch.compressed", [str(value.layout), *inner, value.values(), list(value.shape)]
    if value.is_quantized and value.qscheme() is torch.per_tensor_affine:
        return "torch.quantized", [value.int_repr(), value.q_scale(), value.q_zero_point(), str(value.dtype)]
    if value.is_quantized:
        per_channel = [value.q_per_channel_scales(), value.q_per_channel_zero_points(), value.q_per_channel_axis()]
        return "torch.quantized channels", [value.int_repr(), *per_channel, str(value.dtype)]
    return None


def _remake_tensor(kind: str, parts: list[Any], current: Any) -> Any:
    if kind == "torch.lazy":
        if isinstance(current, torch.Tensor) and torch.nn.parameter.is_lazy(current):
            return current
        lazy: Any = {class_name(cls): cls for cls in (torch.nn.UninitializedParameter, torch.nn.UninitializedBuffer)}.get(parts[0])
        return None if lazy is None else lazy(requires_grad=parts[1])
    if kind == "torch.wrapper":
        cls: Any = find_class(parts[0], current) or (type(current) if class_name(type(current)) == parts[0] else None)
        held = dict(zip(parts[1], parts[2], strict=True))
        return None if cls is None else cls.__tensor_unflatten__(held, parts[5], torch.Size(parts[3]), tuple(parts[4]))
    if kind == "torch.nested":
        return torch.nested.nested_tensor(parts)
    if kind == "torch.sparse_coo":
        return torch.sparse_coo_tensor(parts[0], parts[1], parts[2])._coalesced_(parts[3])
    if kind == "torch.compressed":
        layout = getattr(torch, parts[0].removeprefix("torch."))
        return torch.sparse_compressed_tensor(*parts[1:4], size=parts[4], layout=layout)
    if kind == "torch.quantized":
        return torch._make_per_tensor_quantized_tensor(*parts[:3])
    if kind == "torch.quantized channels":
        return torch._make_per_channel_quantized_tensor(*parts[:4])
    return None
