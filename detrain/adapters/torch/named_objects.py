"""The program's own names for its modules, optimizers and tensors, the same in every run.

`model.layer1.0.conv2` is a module, `optimizer` an optimizer, `weights.0` a tensor of which gradients are taken. Names
of the outermost frame come first, in the order of its code, functions last; the first name that leads to an object is
its name.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any, Final

import numpy as np
import torch
from torch.optim.optimizer import Optimizer
from torch.utils.data import DataLoader, Dataset, Sampler

from detrain.adapters import keras_objects
from detrain.adapters.torch.held_memory import shard_of, unseen
from detrain.base.digest import Array
from detrain.faults.sites import MemoryKind
from detrain.python.inspect.frames import user_frames
from detrain.python.inspect.held import walk
from detrain.python.inspect.named import inside, namespaces
from detrain.python.inspect.names import own_attributes

_DEEPEST: Final = 4
"""The depth below a name to which the walk looks for modules."""
_PLAIN: Final = frozenset({bool, bytes, complex, float, int, str, type(None), np.ndarray, torch.device, torch.dtype, torch.Size})

_COMPILED: Final = "_orig_mod"
"""The attribute by which the result of `torch.compile` holds a module: no part of the module's name."""

_WHOLE: Final = (torch.nn.Module, Optimizer, torch.amp.GradScaler, torch.Tensor, Dataset, DataLoader, Sampler, ModuleType, type)
"""Types of objects inside which the walk looks no further."""


class NamedObjects:
    """The objects that names lead to now. Earlier looks do not count: a run resumed in between has not had them."""

    def __init__(self) -> None:
        self._names: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._taken: set[str] = set()
        self._owners: dict[int, tuple[weakref.ref[Any], str]] = {}
        """Each parameter and the name of its module, by the parameter's identity."""

    def look(self) -> None:
        """Look from the program's frames that call this; if there are none any more, keep the objects found before."""
        frames = user_frames(sys._getframe())[::-1]
        if not frames:
            return
        self._names, self._taken, self._owners = {}, set(), {}
        values = [sorted(each.items(), key=lambda item: isinstance(item[1], FunctionType)) for each in namespaces(frames)]
        first = [(name, value, 0) for each in values for name, value in each]
        for name, value, _depth in walk(first, _below, lambda at: None if type(at[1]) in _PLAIN else id(at[1])):
            self._enter(name, value)

    def name(self, value: Any, fallback: str = "") -> str:
        """Return the name of an object; if no name leads to it, return `fallback`, or the name of its class."""
        known = self._names.get(id(value))
        return known[1] if known is not None and known[0]() is value else fallback or type(value).__name__

    def name_at(self, number: int) -> str:
        """Return the name of the object with this identity; empty if no name leads to one."""
        known = self._names.get(number)
        return known[1] if known is not None and known[0]() is not None else ""

    def owner(self, tensor: Any) -> str:
        """Return the name of a parameter's module; empty if it belongs to none."""
        known = self._owners.get(id(tensor))
        return known[1] if known is not None and known[0]() is tensor else ""

    def tensors(self) -> dict[str, Array]:
        """See `detrain.adapters.api.NamedTensors`: the values, as bytes, of parameters and buffers, of the state of
        optimizers and scalers, and of the program's own tensors of which gradients are taken.
        """
        found: dict[str, Array] = {}
        seen: set[int] = set()
        with unseen():
            for reference, name in list(self._names.values()):
                for path, tensor in _held_by(reference()):
                    if id(tensor) not in seen:
                        seen.add(id(tensor))
                        found |= {f"{name}{path}{part}": array for part, array in _arrays(tensor)}
        return found

    def variables(self) -> dict[str, tuple[MemoryKind, Any]]:
        """Return the tensors behind the values of `tensors`, each by its name and with its kind of memory."""
        found: dict[str, tuple[MemoryKind, Any]] = {}
        seen: set[int] = set()
        for reference, name in list(self._names.values()):
            holder = reference()
            for path, tensor in _held_by(holder):
                if id(tensor) not in seen:
                    seen.add(id(tensor))
                    found[f"{name}{path}"] = _kind(holder, path), tensor
        return found

    def _enter(self, name: str, value: Any) -> None:
        is_of_keras = keras_objects.is_layer(value) or keras_objects.is_optimizer(value)
        if is_of_keras:
            self._enter_part(name, value)
        if isinstance(value, torch.nn.Module):
            for path, module in value.named_modules():
                if is_of_keras and path.endswith(keras_objects.PARAMETERS):
                    continue  # each layer has its own
                if id(module) not in self._names and _COMPILED not in vars(module).get("_modules", ()):
                    found = self._give(
                        ".".join(part for part in f"{name}.{path}".split(".") if part not in ("", _COMPILED)), module
                    )
                    for parameter in module._parameters.values():
                        if parameter is not None:
                            self._owners.setdefault(id(parameter), (weakref.ref(parameter), found))
        is_leaf = isinstance(value, torch.Tensor) and value.requires_grad and value.is_leaf
        if isinstance(value, Optimizer | torch.amp.GradScaler) or is_leaf:
            self._give(name, value)

    def _enter_part(self, name: str, value: Any) -> None:
        """Enter a layer or an optimizer of Keras."""
        if id(value) not in self._names:
            found = self._give(name, value)
            for _name, tensor, is_trained in keras_objects.tensors_of(value):
                if is_trained:
                    self._owners.setdefault(id(tensor), (weakref.ref(tensor), found))

    def _give(self, name: str, value: Any) -> str:
        turn, free = 0, name
        while free in self._taken:
            turn += 1
            free = f"{name}_{turn}"
        self._taken.add(free)
        self._names[id(value)] = weakref.ref(value), free
        return free


def _below(at: tuple[str, Any, int]) -> list[tuple[str, Any, int]]:
    name, value, depth = at
    if keras_objects.is_layer(value):
        return [(f"{name}.{step}", each, depth) for step, each in keras_objects.parts_of(value)]
    if depth == _DEEPEST or type(value) in _PLAIN or isinstance(value, _WHOLE):
        return []
    return [(f"{name}.{step}", each, depth + 1) for (_kind, step), each in inside(value)]


def _held_by(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield (path, tensor) for the tensors of a module without its submodules, of an optimizer or a scaler, or a tensor
    itself.
    """
    if keras_objects.is_layer(value) or keras_objects.is_optimizer(value):
        yield from ((f".{name}", tensor) for name, tensor, _is_trained in keras_objects.tensors_of(value))
    if isinstance(value, torch.nn.Module):
        for held in (value._parameters, value._buffers):
            yield from ((f".{name}", tensor) for name, tensor in held.items() if tensor is not None)
    elif isinstance(value, Optimizer):
        parameters = [parameter for group in value.param_groups for parameter in group["params"]]
        for number, parameter in enumerate(parameters):
            yield f".{number}", parameter
            yield from _tensors(value.state.get(parameter), f".state.{number}")
        yield from _tensors([{name: each for name, each in group.items() if name != "params"} for group in value.param_groups], "")
    elif isinstance(value, torch.Tensor):
        yield "", value
    elif value is not None and not keras_objects.is_optimizer(value):
        yield from _tensors(own_attributes(value), "")


def _kind(holder: Any, path: str) -> MemoryKind:
    """Return the kind of memory of a tensor that `_held_by` has yielded with this path."""
    if isinstance(holder, Optimizer):
        return "weight" if path[1:].isdigit() else "slot"
    if keras_objects.is_optimizer(holder):
        return "slot"
    if keras_objects.is_layer(holder):
        return (
            "weight"
            if any(trained and f".{name}" == path for name, _, trained in keras_objects.tensors_of(holder))
            else "statistic"
        )
    if isinstance(holder, torch.nn.Module):
        return "weight" if path[1:] in holder._parameters else "statistic"
    return "weight" if isinstance(holder, torch.Tensor) else "statistic"


def _tensors(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, dict | list | tuple):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _tensors(each, f"{path}.{key}")


def _arrays(tensor: Any) -> Iterator[tuple[str, Array]]:
    """Yield the bytes of a tensor, row-major, with dtype and shape in the name; for one that is made of others, the
    bytes of its parts.
    """
    if torch.nn.parameter.is_lazy(tensor) or tensor.device.type == "meta":
        return
    tensor = shard_of(tensor).detach()
    if hasattr(type(tensor), "__tensor_flatten__"):
        for name in tensor.__tensor_flatten__()[0]:
            yield from ((f".{name}{part}", array) for part, array in _arrays(getattr(tensor, name)))
    elif tensor.layout is torch.sparse_coo:
        for name, each in (("indices", tensor._indices()), ("values", tensor._values())):
            yield from ((f".{name}{part}", array) for part, array in _arrays(each))
    elif tensor.layout is torch.strided and not tensor.is_nested:
        plain = tensor.int_repr() if tensor.is_quantized else tensor.resolve_conj().resolve_neg()
        data = plain.cpu().contiguous().reshape(-1).view(torch.uint8)
        yield f" {tensor.dtype}{list(tensor.shape)}", data.clone().numpy()
