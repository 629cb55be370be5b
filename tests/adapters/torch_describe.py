"""Descriptions of PyTorch objects as lines of text, to compare two runs by: each bit of each tensor, its view of its
memory, which names lead to one object and which tensors to one memory. This module does not use the codec.
"""

from __future__ import annotations

import ctypes
import re
import types
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import torch

_PLAIN = (type(None), bool, int, str, bytes, complex, range, torch.dtype, torch.device, torch.layout, torch.Size)
_COUNTED = (
    "__wrapped__",
    "_size",
    "_strides",
    "_torchdynamo_wrapper_id",
    "dynamo_ctx",
    "_torchdynamo_orig_backend",
    "_inner_convert",
)


_ADDRESS: Final = re.compile(r"\b\d{13,15}\b")


def describe(names: Mapping[str, Any], *, of_graphs: bool = True) -> list[str]:
    """Return the lines for all objects that names lead to; without `of_graphs`, without the tensors' functions."""
    look = _Look(of_graphs=of_graphs)
    for name, value in names.items():
        look.at(value, name)
    look.at_arrays()
    return [_ADDRESS.sub(look.known, line) for line in look.lines]


class _Look:
    def __init__(self, *, of_graphs: bool) -> None:
        self.lines: list[str] = []
        self._of_graphs = of_graphs
        self._seen: dict[int, int] = {}
        self._memories: dict[int, int] = {}
        self._alive: list[object] = []
        self._spans: list[tuple[str, int, int]] = []
        self._arrays: list[tuple[str, Any]] = []

    def at(self, value: Any, path: str) -> None:
        cls = type(value)
        if isinstance(value, _PLAIN):
            return self._say(path, f"{cls.__name__} {value!r}")
        if cls is float:
            return self._say(path, f"float {value.hex()}")
        if cls.__name__ == "DeviceMesh":  # chance decides which of several equal ones it is (PyTorch caches parts of one)
            groups = [value.get_group(dimension).group_name for dimension in range(value.ndim)]
            return self._say(path, f"{value} {groups}")
        if id(value) in self._seen:
            return self._say(path, f"is #{self._seen[id(value)]}")
        self._seen[id(value)] = len(self._seen)
        self._alive.append(value)
        self._say(path, f"#{self._seen[id(value)]} {cls.__module__}.{cls.__qualname__}")
        for step, part in self._parts(value, path):
            self.at(part, f"{path}{step}")
        return None

    def known(self, found: re.Match[str]) -> str:
        """Return the number of the object at an address; the address itself if there is none."""
        number = self._seen.get(int(found[0]))
        return found[0] if number is None else f"#{number}"

    def at_arrays(self) -> None:
        """Add lines that say which arrays of NumPy lie in which tensor's memory, and where."""
        for path, array in self._arrays:
            start = array.__array_interface__["data"][0]
            for other, begin, size in self._spans:
                if array.nbytes and begin <= start < begin + size:
                    self._say(path, f"lies in {other} at {start - begin}")

    def _say(self, path: str, what: str) -> None:
        self.lines.append(f"{path}: {what}")

    def _parts(self, value: Any, path: str) -> Iterator[tuple[str, object]]:
        if isinstance(value, torch.Tensor):
            yield from self._of_tensor(value, path)
        elif isinstance(value, torch.jit.ScriptModule):
            yield from ((f"<{name}>", each) for name, each in value.named_parameters())
            yield from ((f"<{name}>", each) for name, each in value.named_buffers())
            yield from ((f"<{name}>.training", each.training) for name, each in value.named_modules())
            yield from _of_script(value._c, "")
        elif isinstance(value, np.ndarray):
            self._say(path, f"{value.dtype} {value.shape} {value.strides if value.size else ()} {value.tobytes().hex()}")
            self._arrays.append((path, value))
        elif isinstance(value, torch.Generator):
            self._say(path, value.get_state().numpy().tobytes().hex())
        elif isinstance(value, weakref.ref):
            yield "()", value()
        elif isinstance(value, types.FunctionType):
            self._say(path, value.__qualname__)
            for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
                yield f".<{name}>", _contents(cell)
            yield ".__dict__", {key: item for key, item in vars(value).items() if key not in _COUNTED}
        elif isinstance(value, types.MethodType):
            yield ".__self__", value.__self__
            yield ".__func__", value.__func__
        elif not isinstance(value, type | types.ModuleType | types.BuiltinFunctionType):
            yield from _content(value)
            own = getattr(value, "__dict__", None) or {}
            yield from ((f".{key}", item) for key, item in own.items() if key not in _COUNTED)

    def _of_tensor(self, value: Any, path: str) -> Iterator[tuple[str, object]]:
        if torch.nn.parameter.is_lazy(value):
            return self._say(path, f"{value.dtype} {value.device} {value.requires_grad}")
        self._say(path, f"{value.dtype} {list(value.shape) if not value.is_nested else ''} {value.device} {value.layout}")
        function = _function(value)
        self._say(path, f"requires_grad {value.requires_grad} leaf {function is None}")
        if self._of_graphs and function is not None:
            self._say(path, function.name())
        if type(value).__name__ == "Closed":
            return
        if hasattr(type(value), "__tensor_flatten__"):
            names, context = value.__tensor_flatten__()
            if "device_mesh" in names:
                self._say(path, f"{context} {list(value.stride())}")
            yield from ((f".{name}", getattr(value, name)) for name in names)
        elif value.is_nested:
            yield "<values>", value.values()
        elif value.layout is torch.sparse_coo:
            self._say(path, f"coalesced {value.is_coalesced()}")
            yield from (("<indices>", value._indices()), ("<values>", value._values()))
        elif value.layout in (torch.sparse_csr, torch.sparse_bsr):
            yield from (("<rows>", value.crow_indices()), ("<columns>", value.col_indices()), ("<values>", value.values()))
        elif value.is_quantized:
            self._say(path, f"{value.qscheme()} {value.int_repr().numpy().tobytes().hex()} {value.dequantize().tolist()}")
        else:
            self._of_memory(value, path)
        yield "._base", value._base if function is None and value._is_view() else None
        yield ".grad", value.grad if function is None else None
        yield "._backward_hooks", value._backward_hooks
        yield "._post_accumulate_grad_hooks", value._post_accumulate_grad_hooks
        # Counts that jagged tensors and compiled code keep for the process are not the program's.
        yield ".__dict__", {key: item for key, item in value.__dict__.items() if key not in _COUNTED}

    def _of_memory(self, value: Any, path: str) -> None:
        storage = value.untyped_storage()
        number = self._memories.setdefault(storage._cdata, len(self._memories))
        self._say(path, f"memory {number} {value.storage_offset()} {list(value.stride())} {value.is_conj()} {value.is_neg()}")
        if storage.device.type == "meta" or value.numel() == 0 or storage.nbytes() == 0:
            return
        start = value.storage_offset() * value.element_size()
        steps = sum((count - 1) * stride for count, stride in zip(value.shape, value.stride(), strict=True))
        size = (steps + 1) * value.element_size()  # bytes that no tensor views are no state
        self._spans.append((path, storage.data_ptr() + start, size))
        self._say(path, ctypes.string_at(storage.data_ptr() + start, size).hex())


def _function(tensor: Any) -> Any:
    """Return the function that computed a tensor; None for a view for which PyTorch raises an error."""
    try:
        return tensor.grad_fn
    except RuntimeError:
        return None


def _contents(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        return "nothing"


def _content(value: Any) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        for index, (key, item) in enumerate(list(value.items())):
            yield f"<key {index}>", key
            yield f"[{key if isinstance(key, str | int) else index}]", item
    elif isinstance(value, list | tuple | deque | set | frozenset):
        yield from ((f"[{index}]", item) for index, item in enumerate(list(value)))


def _of_script(module: Any, path: str) -> Iterator[tuple[str, object]]:
    """Yield the attributes of a scripted module that are no modules, and those of its parts."""
    for name, held in torch._C._jit_debug_module_iterators(module)["named_attributes"]:
        if not isinstance(held, torch._C.ScriptObject | torch._C.ScriptModule):
            yield f"{path}<{name}>", held
