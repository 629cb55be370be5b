"""Bounds of the outputs of modules, and outputs that are clipped to their bounds (Ranger: Chen, Li and Pattabiraman, A
Low-cost Fault Corrector for Deep Neural Networks through Range Restriction, DSN 2021).

A module counts if it has no submodules, and gives one tensor of floats. If all values lie inside the bounds nothing is
done, so a run without a fault keeps its bits. A NaN stays as it is: it lies on no side of a bound.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch.nn import Module
from torch.nn.modules import module as modules

from detrain.adapters.torch.compiler.history import has_compiled
from detrain.adapters.torch.held_memory import unseen
from detrain.adapters.torch.named_objects import NamedObjects
from detrain.faults.experiment import Bounds

_KEY: Final = -2
"""The key of detrain's hook among the hooks of all modules (see `step_place`)."""


class Ranges:
    """Hooks the outputs of modules: notes their bounds, or clips them to given bounds."""

    def __init__(self, bounds: Mapping[str, Bounds], made: Callable[[Any], None]) -> None:
        """`bounds`: by the modules' names; if empty, bounds are noted. `made` is called with each clipped tensor."""
        self._bounds = {name: tuple(map(float.fromhex, each)) for name, each in bounds.items()}
        self._made = made
        self._noted: dict[str, tuple[float, float]] = {}
        self._names = NamedObjects()
        self._known: weakref.WeakKeyDictionary[Module, str] = weakref.WeakKeyDictionary()
        modules._global_forward_hooks[_KEY] = self._clip if bounds else self._note

    def noted(self) -> dict[str, Bounds]:
        """Return the lowest and highest output of each module; empty if some are compiled, as hooks do not see them."""
        return {} if has_compiled() else {name: (low.hex(), high.hex()) for name, (low, high) in self._noted.items()}

    def _name(self, module: Module) -> str:
        if module not in self._known:
            self._names.look()
            self._known[module] = self._names.name(module)
        return self._known[module]

    def _note(self, module: Module, _args: Any, output: Any) -> None:
        if not _counts(module, output):
            return
        with unseen():
            numbers = output.detach()[~output.isnan()]
            if numbers.numel():
                name, found = self._name(module), [float(each) for each in numbers.aminmax()]
                low, high = self._noted.get(name, (math.inf, -math.inf))
                self._noted[name] = min(low, found[0]), max(high, found[1])

    def _clip(self, module: Module, _args: Any, output: Any) -> Any:
        if not _counts(module, output) or (bounds := self._bounds.get(self._name(module))) is None:
            return None
        low, high = bounds
        with unseen():
            if not bool(((output < low) | (output > high)).any()):
                return None
        clipped: Any = _Clipped.apply(output, low, high)
        self._made(clipped)
        return clipped


def _counts(module: Module, output: Any) -> bool:
    is_inner = next(module.children(), None) is not None
    return not is_inner and isinstance(output, torch.Tensor) and output.is_floating_point() and output.numel() > 0


class _Clipped(torch.autograd.Function):  # type: ignore[misc]
    """`torch.clamp` by ops that are not the program's: they name no sites, and no fault hits them."""

    @staticmethod
    def forward(ctx: Any, output: Any, low: float, high: float) -> Any:
        """Return an output with no value outside of its bounds."""
        with unseen():
            ctx.save_for_backward((output >= low) & (output <= high))
            return output.clamp(low, high)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """Return the gradient, 0 where a value was clipped."""
        (is_inside,) = ctx.saved_tensors
        with unseen():
            return torch.where(is_inside, gradient, 0), None, None
