"""Which tensors of PyTorch hold a training's history, and what theory says of their size (docs/explanation/guard.md).

Watched are the parameters of optimizers and modules, the state of optimizers, and the buffers of modules. Who holds
them is looked up again at each look, as a program may put others in their place.
"""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from detrain.adapters.api import Watched, adam_constant, bounded
from detrain.adapters.torch.held_memory import unseen
from detrain.adapters.torch.named_objects import NamedObjects

_SQUARES: Final = ("sq", "var", "sum", "second")
"""Parts of the names of state and buffers that hold squares."""
_ADAM_LIKE: Final = ("Adam", "AdamW", "NAdam", "RAdam", "SparseAdam")
"""PyTorch's optimizers whose `exp_avg` and `exp_avg_sq` are means of the gradient and of its square."""
_EXACT: Final = (torch.float32, torch.float64)
"""In what is less exact a mean may stand still: no bound follows from theory."""


class Holders:
    """The optimizers and modules of the process, and the dictionaries in which they hold tensors."""

    def __init__(self) -> None:
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._modules: list[weakref.ref[Any]] = []
        self.has_new = True
        """Whether an optimizer has been seen for the first time since `find`."""
        register_optimizer_step_pre_hook(self._steps)

    def _steps(self, optimizer: Any, _args: object, _kwargs: object) -> None:
        if optimizer not in self._optimizers:
            self._optimizers.add(optimizer)
            self.has_new = True

    def find(self) -> None:
        """Look for all modules and optimizers that are alive."""
        found = gc.get_objects()
        self._modules = [weakref.ref(each) for each in found if issubclass(type(each), torch.nn.Module)]
        for each in found:
            if issubclass(type(each), torch.optim.Optimizer) and hasattr(each, "param_groups"):
                self._optimizers.add(each)
        self.has_new = False

    def optimizers(self) -> list[Any]:
        """Return the optimizers alive, in an order that is the same in every run: of their first parameters' sizes
        where classes are equal.
        """
        return sorted(self._optimizers, key=lambda each: (type(each).__name__, _sizes(each)))

    def modules(self) -> list[Any]:
        """Return the modules alive."""
        return [module for each in self._modules if (module := each()) is not None]

    def held(self) -> list[object]:
        """Return all that stands where tensors are held; equal by identity as long as nothing was put in its place."""
        found: list[object] = []
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                found += group["params"]
            for state in optimizer.state.values():
                found += state.values() if isinstance(state, dict) else ()
        for reference in self._modules:
            module = reference()
            if module is not None:
                own = vars(module)
                found += own.get("_parameters", {}).values()
                found += own.get("_buffers", {}).values()
        return found


def _sizes(optimizer: Any) -> list[int]:
    return [each.numel() for group in optimizer.param_groups for each in group["params"]]


def find_watched(holders: Holders) -> tuple[list[Watched], list[Any]]:
    """Return what is to be watched, by the names that the program has for it, and the tensors [watched] that are
    meant.
    """
    found: dict[int, tuple[Watched, Any]] = {}
    program = NamedObjects()
    program.look()
    names: dict[int, str] = {}
    taken: dict[str, int] = {}
    for module in sorted(holders.modules(), key=program.name):
        own, path = vars(module), _numbered(program.name(module), taken)
        for name, tensor in (*own.get("_parameters", {}).items(), *own.get("_buffers", {}).items()):
            names.setdefault(id(tensor), f"{path}.{name}")
    for optimizer in holders.optimizers():
        kind = _numbered(program.name(optimizer), taken)
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        for place, parameter in enumerate(parameters):
            key = names.setdefault(id(parameter), f"{kind} parameter {place}")
            if _is_watched(parameter, has_axes=False):
                found[id(parameter)] = Watched(key, "weights", 1), parameter
        for parameter, state in optimizer.state.items():
            if isinstance(state, dict):
                _add_state(optimizer, kind, names.get(id(parameter), "a parameter"), state, found)
    for module in holders.modules():
        own = vars(module)
        for held, is_weight in ((own.get("_parameters", {}), True), (own.get("_buffers", {}), False)):
            for name, tensor in held.items():
                if id(tensor) not in found and tensor is not None and _is_watched(tensor, has_axes=True):
                    power = 1 if is_weight else _power(name)
                    found[id(tensor)] = Watched(names[id(tensor)], "weights" if is_weight else f"buffers {name}", power), tensor
    return [each for each, _tensor in found.values()], [tensor for _each, tensor in found.values()]


def _add_state(optimizer: Any, kind: str, of: str, state: Mapping[Any, Any], found: dict[int, tuple[Watched, Any]]) -> None:
    keys = {name: f"{kind}.{name} of {of}" for name in state}
    for name, tensor in state.items():
        if isinstance(tensor, torch.Tensor) and _is_watched(tensor, has_axes=True):
            found[id(tensor)] = Watched(keys[name], f"{kind} {name}", _power(str(name))), tensor
    m, v = state.get("exp_avg"), state.get("exp_avg_sq")
    betas = next((group.get("betas") for group in optimizer.param_groups), None)
    if not (_is_of_torch(optimizer) and isinstance(m, torch.Tensor) and isinstance(v, torch.Tensor) and betas):
        return
    if id(m) not in found or id(v) not in found or m.dtype not in _EXACT or v.dtype not in _EXACT:
        return
    # The widest bound of all groups: one parameter is in one of them.
    constant = max(adam_constant(*map(float, group["betas"])) for group in optimizer.param_groups)
    if math.isfinite(constant):
        found[id(m)] = bounded(found[id(m)][0], keys["exp_avg_sq"], constant, m.numel()), m


def _is_of_torch(optimizer: Any) -> bool:
    return type(optimizer) in [getattr(torch.optim, name) for name in _ADAM_LIKE]


def _power(name: str) -> int:
    return 2 if any(part in name for part in _SQUARES) else 1


def _is_watched(tensor: Any, *, has_axes: bool) -> bool:
    """Return whether a tensor holds numbers whose size can be looked at."""
    with unseen():
        if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point() or tensor.layout is not torch.strided:
            return False
        is_plain = not (tensor.is_quantized or tensor.is_nested or torch.nn.parameter.is_lazy(tensor))
        is_plain = is_plain and not hasattr(type(tensor), "__tensor_flatten__") and tensor.device.type != "meta"
        return is_plain and (tensor.dim() > 0 or not has_axes) and tensor.itemsize > 1


def _numbered(name: str, taken: dict[str, int]) -> str:
    taken[name] = taken.get(name, 0) + 1
    return name if taken[name] == 1 else f"{name}_{taken[name]}"
