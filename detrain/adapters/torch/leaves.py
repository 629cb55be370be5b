"""PyTorch's leaves of Python objects, besides plain tensors: values (dtypes, devices, …), generators, tensors made of
other tensors (sparse, quantised, nested, wrapped), handles of hooks.
"""

from __future__ import annotations

import sys
from types import FunctionType
from typing import Any, Final

import numpy as np
import torch
from torch.nested._internal.nested_tensor import NestedTensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils.hooks import RemovableHandle

from detrain.adapters.torch import wrapped_steps
from detrain.adapters.torch.data.loaders import KINDS, TorchLoaders
from detrain.adapters.torch.devices import TorchDevices
from detrain.adapters.torch.distributed.spread_tensors import MESH, TENSOR, SpreadTensors
from detrain.adapters.torch.held_memory import is_spread, shard_of, unseen
from detrain.adapters.torch.streams import GeneratorStream
from detrain.adapters.torch.tensors import grad_function
from detrain.base.digest import Array
from detrain.python.inspect.hooks import TensorLeaves
from detrain.python.inspect.names import at_name, class_name, find_class, is_own_class
from detrain.python.inspect.object_graph import ABSENT, Item

_VALUES: Final = {
    "torch.dtype": torch.dtype,
    "torch.device": torch.device,
    "torch.layout": torch.layout,
    "torch.memory_format": torch.memory_format,
    "torch.qscheme": torch.qscheme,
}
_NUMBERS: Final = {"finfo": torch.finfo, "iinfo": torch.iinfo}
_RETURNED: Final = "torch.return_types"
_OF_TENSORS: Final = frozenset(
    f"torch.{name}" for name in ("wrapper", "nested", "sparse_coo", "compressed", "quantized", "quantized channels")
)
_COMPILED: Final = "torch._dynamo.eval_frame:OptimizedModule"
_QUANTIZED: Final = (torch.qint8, torch.quint8, torch.qint32)
_JAGGED: Final = {class_name(NestedTensor): NestedTensor}
_COMPRESSED: Final = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}


class TorchLeaves(TensorLeaves):
    """See `detrain.python.inspect.hooks.TensorLeaves`."""

    constant_type = None

    def __init__(self, loaders: TorchLoaders, spread: SpreadTensors, devices: TorchDevices) -> None:
        self._loaders, self._spread, self._devices = loaders, spread, devices

    def to_array(self, value: Any) -> Array | None:
        """Return a tensor's value; its bytes if NumPy lacks the dtype (bfloat16), and the bytes of all parts if it is
        made of other tensors.
        """
        if type(value) is torch.Tensor:  # the usual type of batches: this is called for each
            try:
                return value.numpy()  # type: ignore[no-any-return]
            except (RuntimeError, TypeError):  # NumPy has no arrays of this dtype, layout or device
                return self._bytes_of(value)
        return self._bytes_of(value) if isinstance(value, torch.Tensor) else None

    def _bytes_of(self, value: torch.Tensor) -> Array | None:
        if is_spread(value):
            return self.to_array(shard_of(value))
        described = self.parts(value)
        if described is not None:
            inside = [*described[1], *(each for part in described[1] if isinstance(part, list) for each in part)]
            arrays = [self.to_array(part) for part in inside if isinstance(part, torch.Tensor) and part is not value.grad]
            flat = [array.reshape(-1).view(np.uint8) for array in arrays if array is not None and array.size]
            return np.concatenate(flat) if flat else np.empty(0, np.uint8)
        if value.device.type == "meta":
            return np.empty(0, np.uint8)
        plain = value.detach().cpu().resolve_conj().resolve_neg()
        try:
            return np.asarray(plain.numpy())
        except TypeError:
            return np.asarray(plain.contiguous().view(torch.uint8).numpy())

    def make_constant(self, array: Array, form: list[Item] | None = None) -> object | None:
        """Return a tensor for an array without a form, which a checkpoint by another framework's adapter may have."""
        return torch.from_numpy(np.array(array)) if form is None else None

    def parts(self, value: Any) -> tuple[str, list[object]] | None:
        """Return the kind and parts of such a leaf; None for any other object."""
        cls = type(value)
        if cls is FunctionType:
            return wrapped_steps.parts(value)
        if cls is torch.Size:
            return "torch.Size", [list(value)]
        if cls.__module__ == _RETURNED:  # by `max`, `sort` and the like
            return _RETURNED, [cls.__name__, list(value)]
        if cls is PackedSequence:
            return "torch.PackedSequence", [list(value)]
        if cls in _NUMBERS.values():
            return f"torch.{cls.__name__}", [str(value.dtype)]
        for kind, known in _VALUES.items():
            if cls is known:
                return kind, [str(value)]
        if cls is torch.UntypedStorage:
            return "torch.UntypedStorage", [torch.empty(0, dtype=torch.uint8, device=value.device).set_(value)]
        if cls is torch.Generator:
            self._devices.note(str(value.device))
            return "torch.Generator", [GeneratorStream(value).pack(), str(value.device)]
        if cls is RemovableHandle:
            return "torch.handle", [value.hooks_dict_ref(), value.id, [reference() for reference in value.extra_dict_ref]]
        if class_name(cls) == _COMPILED:
            return "torch.compiled", [value.dynamo_ctx, _of_program(value)]
        if isinstance(value, torch.jit.ScriptModule):
            return wrapped_steps.SCRIPTED, wrapped_steps.scripted_parts(value)
        if (spread := self._spread.parts(value)) is not None:
            return spread
        if is_spread(value):
            return "torch.unknown", [Unknown()]
        if isinstance(value, torch.Tensor):
            with unseen():
                return _tensor_parts(value)
        if isinstance(value, torch.nn.Module | torch.optim.Optimizer) and not is_own_class(cls):  # its state is not known
            return "torch.unknown", [Unknown()]
        return self._loaders.parts_of_ended(value)

    def parts_of_new(self, value: object) -> tuple[str, list[object]] | None:
        """Return the kind and parts of an iterator over a DataLoader; None for any other object."""
        return self._loaders.parts_of_new(value)

    def remake(self, kind: str, parts: list[Any], current: Any) -> Any:
        """Return the object that `parts` described: `current` if it is that or can become it, else a new one."""
        if kind in KINDS:
            return self._loaders.remake(kind, parts, current)
        if kind == "torch.Size":
            return torch.Size(parts[0])
        if kind == _RETURNED:
            return getattr(torch.return_types, parts[0])(parts[1])
        if kind == "torch.PackedSequence":
            return PackedSequence(*parts[0])
        if kind.removeprefix("torch.") in _NUMBERS:
            return _NUMBERS[kind.removeprefix("torch.")](getattr(torch, parts[0]))
        if kind in ("torch.scheduled", "torch.hooked") or kind.startswith("torch.metric "):
            return wrapped_steps.remake(kind, parts, current)
        if kind == "torch.device":
            return torch.device(parts[0])
        if kind in _VALUES:
            return getattr(torch, parts[0].removeprefix("torch."), None)
        if kind == "torch.Generator":
            generator = current if type(current) is torch.Generator else torch.Generator(parts[1])
            GeneratorStream(generator).unpack(parts[0])
            return generator
        if kind == "torch.UntypedStorage":
            return parts[0].untyped_storage()
        if kind == "torch.handle":
            if type(current) is RemovableHandle and current.id == parts[1] and current.hooks_dict_ref() is parts[0]:
                return current
            made = RemovableHandle.__new__(RemovableHandle)
            made.__setstate__((parts[0], parts[1], tuple(parts[2])))
            return made
        if kind == "torch.compiled":
            return _remake_compiled(parts, current)
        if kind == wrapped_steps.SCRIPTED:
            return wrapped_steps.remade_scripted(parts, current)
        if kind in (TENSOR, MESH):
            with unseen():
                return self._spread.remake(kind, parts, current)
        if kind == "torch.unknown":
            return None if current is ABSENT else current
        with unseen(), torch.inference_mode(mode=False):
            return _remake_tensor(kind, parts, current)


def _of_program(module: Any) -> dict[str, object]:
    """Return the attributes of a compiled module without the compiler's own, which are addresses and functions."""
    return {name: item for name, item in vars(module).items() if name not in type(module)._opt_mod_attributes}


def _remake_compiled(parts: list[Any], current: Any) -> object | None:
    if current is ABSENT or class_name(type(current)) != _COMPILED or current.dynamo_ctx is not parts[0]:
        return None
    own = vars(current)
    for gone in _of_program(current).keys() - parts[1].keys():
        del own[gone]
    own.update(parts[1])
    return current  # type: ignore[no-any-return]


class Unknown:
    """A stand-in for unreadable state: no checkpoint can hold it, so the codec reports it."""


def _tensor_parts(value: Any) -> tuple[str, list[object]] | None:
    """Return the kind and parts of a tensor that is not plain; its class, gradient, hooks, attributes come last."""
    if torch.nn.parameter.is_lazy(value):
        return "torch.lazy", [class_name(type(value)), value.requires_grad, str(value.dtype), str(value.device)]
    is_wrapper = hasattr(type(value), "__tensor_flatten__")
    if value.layout is torch.strided and not (is_wrapper or value.is_nested or value.is_quantized):
        return None
    if grad_function(value) is not None:  # the graph behind it cannot be captured, and these kinds have no stand-in
        return "torch.unknown", [Unknown()]
    parts = _wrapper_parts(value) if is_wrapper else _inner_parts(value)
    if parts is None:
        return "torch.unknown", [Unknown()]
    held = (value.requires_grad, value.grad, value._backward_hooks, value._post_accumulate_grad_hooks)
    return parts[0], [*parts[1], [class_name(type(value)), *held, _attributes(value)]]


def _attributes(value: Any) -> dict[str, object]:
    """Return the attributes of a tensor except the tensors inside."""
    if not hasattr(type(value), "__tensor_flatten__"):
        return dict(vars(value))
    inside = value.__tensor_flatten__()[0]
    return {name: item for name, item in vars(value).items() if name not in inside} if is_own_class(type(value)) else {}


def _wrapper_parts(value: Any) -> tuple[str, list[object]]:
    names, context = value.__tensor_flatten__()
    held = [getattr(value, name) for name in names]
    # A jagged tensor finds its size itself.
    size = [None, None] if value.is_nested else [list(value.shape), list(value.stride())]
    return "torch.wrapper", [class_name(type(value)), list(names), held, *size, context]


def _inner_parts(value: Any) -> tuple[str, list[object]] | None:
    if value.is_nested:
        return "torch.nested", [list(value.detach().unbind())]
    if value.layout is torch.sparse_coo:
        return "torch.sparse_coo", [value._indices(), value._values(), list(value.shape), value.is_coalesced()]
    if value.layout in _COMPRESSED:
        inner = [getattr(value, name)() for name in _COMPRESSED[value.layout]]
        return "torch.compressed", [str(value.layout), *inner, value.detach().values(), list(value.shape)]
    if value.is_quantized and value.dtype in _QUANTIZED and value.qscheme() is torch.per_tensor_affine:
        return "torch.quantized", [value.int_repr(), value.q_scale(), value.q_zero_point()]
    if value.is_quantized and value.dtype in _QUANTIZED and value.qscheme() is torch.per_channel_affine:
        per_channel = [value.q_per_channel_scales(), value.q_per_channel_zero_points(), value.q_per_channel_axis()]
        return "torch.quantized channels", [value.int_repr(), *per_channel]
    return None


def _remake_tensor(kind: str, parts: list[Any], current: Any) -> Any:
    if kind == "torch.lazy":
        if isinstance(current, torch.Tensor) and torch.nn.parameter.is_lazy(current):
            return current
        lazy: Any = {class_name(cls): cls for cls in (torch.nn.UninitializedParameter, torch.nn.UninitializedBuffer)}.get(parts[0])
        dtype = getattr(torch, parts[2].removeprefix("torch."))
        return None if lazy is None else lazy(requires_grad=parts[1], device=parts[3], dtype=dtype)
    if kind not in _OF_TENSORS:
        return None
    *inner, (name, requires_grad, grad, backward, accumulated, attributes) = parts
    made = _make_tensor(kind, inner, current)
    if made is None:
        return None
    if type(made) is torch.Tensor and name != class_name(torch.Tensor):
        cls: Any = torch.nn.Parameter if name == class_name(torch.nn.Parameter) else find_class(name, current)
        if cls is None:
            return None
        made = torch.nn.Parameter(made, requires_grad) if cls is torch.nn.Parameter else made.as_subclass(cls)
    if made.requires_grad != requires_grad:
        made.requires_grad_(requires_grad)
    made.grad, made._backward_hooks, made._post_accumulate_grad_hooks = grad, backward, accumulated
    vars(made).update(attributes)
    return made


def _wrapper_class(name: str, current: Any) -> Any:
    """Return a class of tensors, the program's or a library's, that says how its tensors are made of parts."""
    module, _, qualified = name.partition(":")
    for found in (find_class(name, current), at_name(sys.modules.get(module), qualified), type(current)):
        if isinstance(found, type) and issubclass(found, torch.Tensor) and class_name(found) == name:
            return found if hasattr(found, "__tensor_unflatten__") else None
    return None


def _make_tensor(kind: str, parts: list[Any], current: Any) -> Any:
    if kind == "torch.wrapper":
        cls: Any = _JAGGED.get(parts[0]) or _wrapper_class(parts[0], current)
        held, shape = dict(zip(parts[1], parts[2], strict=True)), parts[3]
        size = (None, None) if shape is None else (torch.Size(shape), tuple(parts[4]))
        return None if cls is None else cls.__tensor_unflatten__(held, parts[5], *size)
    if kind == "torch.nested":
        return torch._nested_tensor_from_tensor_list(parts[0])
    if kind == "torch.sparse_coo":
        return torch.sparse_coo_tensor(*parts[:3], check_invariants=False)._coalesced_(parts[3])
    if kind == "torch.compressed":
        layout = getattr(torch, parts[0].removeprefix("torch."))
        return torch.sparse_compressed_tensor(*parts[1:4], size=parts[4], layout=layout, check_invariants=False)
    if kind == "torch.quantized":
        return torch._make_per_tensor_quantized_tensor(*parts)
    if kind == "torch.quantized channels":
        return torch._make_per_channel_quantized_tensor(*parts)
    return None
