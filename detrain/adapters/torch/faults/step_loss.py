"""The loss of a step: the tensor on which `backward` is called. No program is changed."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import torch
from torch._C import _functorch as functorch
from torch._guards import TracingContext
from torch.autograd import graph

from detrain.adapters.torch.held_memory import unseen
from detrain.base.in_place import in_place_of


class TorchLosses:
    """Notes losses. The losses of several `backward` calls in a step are added up.

    A tensor is no loss if `torch.autograd.grad` takes its gradient with `create_graph` (for a penalty), or if its
    gradient is taken inside another gradient; the tensor of the outermost `torch.func.grad` is a loss. For a loss that
    a `GradScaler` has scaled, the unscaled loss counts.
    """

    def __init__(self, ends_with: Callable[[Callable[[], float]], bool]) -> None:
        self._losses: list[float] = []
        self._has_any = False
        self._scaled: dict[int, tuple[weakref.ref[Any], Any]] = {}
        """Each scaled loss and the unscaled one, by the identity of the scaled one."""
        original: Any = graph._engine_run_backward

        @wraps(original)
        def run_backward(tensors: Any, *arguments: Any, **named: Any) -> Any:
            if TracingContext.try_get() is not None:  # a graph is traced: nothing is computed
                return original(tensors, *arguments, **named)
            is_inner = len(arguments) > 2 and arguments[2] and not any(map(_is_of_function, tensors))
            if (named.get("accumulate_grad") or not is_inner) and torch._C._current_autograd_node() is None:
                self._note(tensors)
            result = original(tensors, *arguments, **named)
            if ends_with(lambda: sum(self._losses)):
                self._make_finite(tensors)
            return result

        graph._engine_run_backward = run_backward
        torch.autograd._engine_run_backward = run_backward
        self._watch(torch.amp.GradScaler)

    def _watch(self, scaler: Any) -> None:
        original = scaler.scale

        @in_place_of(scaler, "scale")
        def scale(this: Any, outputs: Any) -> Any:
            result = original(this, outputs)
            if isinstance(outputs, torch.Tensor) and isinstance(result, torch.Tensor) and result is not outputs:
                number = id(result)
                self._scaled[number] = weakref.ref(result, lambda _gone: self._scaled.pop(number, None)), outputs.detach()
            return result

    def _note(self, tensors: Iterable[Any]) -> None:
        with unseen(), torch.no_grad():
            total = [self._value(each) for each in tensors if isinstance(each, torch.Tensor) and each.is_floating_point()]
        if total:
            self._losses.append(sum(total))

    def _make_finite(self, tensors: Iterable[Any]) -> None:
        """Replace NaNs and infinities in losses by 0: the trial ends with this step, and the rest of its body runs."""
        with unseen(), torch.no_grad():
            for each in tensors:
                known = self._scaled.get(id(each))
                for loss in (each, *(known[1:] if known is not None else ())):
                    if isinstance(loss, torch.Tensor) and not functorch.is_functorch_wrapped_tensor(loss):
                        loss.detach().nan_to_num_(0.0, 0.0, 0.0)

    def _value(self, tensor: Any) -> float:
        known = self._scaled.get(id(tensor))
        if known is not None and known[0]() is tensor:
            tensor = known[1]
        with torch._C._DisableFuncTorch():
            while functorch.is_functorch_wrapped_tensor(tensor):
                tensor = functorch.get_unwrapped(tensor)
            return float(tensor.detach().double().sum().item())

    def has_loss(self) -> bool:
        """Return whether a gradient has been taken since the last call of `read`, or none was ever taken."""
        return bool(self._losses) or not self._has_any

    def read(self) -> dict[str, float]:
        """Return the loss of the step that has ended; a step that takes no gradient has none."""
        losses, self._losses = self._losses, []
        self._has_any |= bool(losses)
        return {"loss": float(sum(losses))} if losses else {}


def _is_of_function(tensor: Any) -> bool:
    """Return whether a tensor is the one of which the outermost `torch.func.grad` takes the gradient."""
    return bool(functorch.is_gradtrackingtensor(tensor)) and functorch.maybe_get_level(tensor) == 1
