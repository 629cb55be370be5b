"""Forward passes of whole models without gradients: the steps of a program, or a part of one, that evaluates."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, Final

import torch
from torch.nn import Module

from detrain.base.digest import Array

_OF_PICTURES: Final = 4
"""Dimensions from which on axis 1 is the class (of pixels), not the last."""


class ForwardPasses:
    """Hears of each call of a module that is in no other one's call, while no gradients are taken.

    `Module.__call__` is replaced: a hook for all modules would be a part of what `torch.compile` compiles. What is
    compiled and called in another way is heard of by `note`.
    """

    def __init__(self, on_pass: Callable[[int], None]) -> None:
        """`on_pass` is called behind each, with a number that tells one module from another."""
        self._on_pass = on_pass
        self._inside = threading.local()
        self._outputs: list[Any] = []
        self.count = 0
        """How many there have been."""
        original: Any = Module.__call__

        def call(module: Any, *args: Any, **named: Any) -> Any:
            if torch.compiler.is_compiling() or self.is_inside:
                return original(module, *args, **named)
            self._inside.is_inside = True
            try:
                result = original(module, *args, **named)
            finally:
                self._inside.is_inside = False
            self.note(result, id(module))
            return result

        # PyTorch's compiler decides by the file of a function whether it looks inside: here as in what this stands for.
        call.__code__ = call.__code__.replace(co_filename=original.__code__.co_filename)
        Module.__call__ = functools.update_wrapper(call, original)

    @property
    def is_inside(self) -> bool:
        """Whether a module runs in this thread."""
        return getattr(self._inside, "is_inside", False)

    def note(self, result: Any, number: int) -> None:
        """A module has been called, or what calls one, and has given a result; `number` tells it from others."""
        is_traced = torch._guards.TracingContext.try_get() is not None  # the compiler calls what it has made, with no values
        if torch.is_grad_enabled() or self.is_inside or is_traced:
            return
        self._outputs.append(result)
        self.count += 1
        self._on_pass(number)

    def outputs(self) -> list[Array]:
        """Return what passes have given since the last call: scores, the class on the last axis."""
        given, self._outputs = self._outputs, []
        return [scores for each in given for scores in scores_of(each)]


def scores_of(given: Any) -> list[Array]:
    """Return the scores in what a model gives, the class on the last axis; none, if it gives no number with a point."""
    return [_scores(tensor) for tensor in _tensors(given)]


def _tensors(given: Any) -> list[torch.Tensor]:
    """Return the scores in what a model gives: a tensor, what it calls `logits`, or the first of several."""
    if isinstance(given, torch.Tensor):
        return [given] if given.is_floating_point() else []
    if hasattr(given, "logits") or (isinstance(given, dict) and "logits" in given):
        return _tensors(given["logits"] if isinstance(given, dict) else given.logits)
    items = list(given.values()) if isinstance(given, dict) else list(given) if isinstance(given, tuple | list) else []
    return next((found for each in items if (found := _tensors(each))), [])


def _scores(tensor: torch.Tensor) -> Array:
    plain = tensor.detach().float().cpu()
    scores: Array = (plain.movedim(1, -1) if plain.dim() >= _OF_PICTURES else plain).contiguous().numpy().copy()
    return scores
