"""A stand-in for the graph behind a tensor that was computed before a checkpoint, as checkpoints hold no graphs: the
tensor's value is exact, and a gradient through it ends the run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NoReturn

import torch

from detrain.base.errors import DetrainError, NotCapturable
from detrain.python.inspect.held import walk

_WHAT: Final = "a gradient goes through a tensor that was computed before the checkpoint, which does not hold the graph behind it"
_NAME: Final = "detrain"
_TODO: Final = "compute it again, or take checkpoints where no graph goes on (--every 1)"
_fail: list[Callable[[DetrainError], NoReturn]] = []
"""The function that ends the process, if there is one: the program must not catch the error and go on."""


def fail_by(fail: Callable[[DetrainError], NoReturn]) -> None:
    """Call `fail` from now on when a gradient goes through a lost graph."""
    _fail[:] = [fail]


def _refuse() -> NoReturn:
    error = NotCapturable(_WHAT, _TODO)
    if _fail:
        _fail[0](error)
    raise error


class Lost(torch.autograd.Function):  # type: ignore[misc]
    """The autograd function that stands for a lost graph."""

    @staticmethod
    def forward(_ctx: Any, _reason: torch.Tensor, held: list[torch.Tensor]) -> torch.Tensor:
        """Return the tensor in a list: given by itself, it would come back as a view that forbids writes in place."""
        return held[0]

    @staticmethod
    def backward(_ctx: Any, *_grads: torch.Tensor) -> torch.Tensor:
        """End the run."""
        _refuse()


def stand_in(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """Return a tensor with a stand-in for its lost graph, which ended with the function of that name."""
    if not _watched:
        for module in (torch.autograd, torch.autograd.graph):
            _watched.append(module)
            module._engine_run_backward = _refusing(module._engine_run_backward)
    with torch.enable_grad():
        made: torch.Tensor = Lost.apply(torch.empty(0, requires_grad=True), [tensor])
    _metadata(made.grad_fn)[_NAME] = name
    return made


def name_of(function: Any) -> str:
    """Return the name of a graph's function; of a stand-in that of the one it stands for, so that states with it and
    without it are equal.
    """
    name = type(function).__name__
    return str(_metadata(function).get(_NAME, name)) if type(function) is Lost._backward_cls else name


def _metadata(function: Any) -> dict[str, Any]:
    found: dict[str, Any] = function.metadata
    return found


_watched: Final[list[Any]] = []
"""Modules in which the function that runs backward is replaced: for gradients of given tensors alone, PyTorch skips
functions that lead to none of these, and would leave out the part of a lost graph."""


def _refusing(run: Callable[..., Any]) -> Callable[..., Any]:
    def run_backward(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        inputs = args[3] if len(args) > 3 else kwargs.get("inputs", ())
        if inputs and _leads_to_lost(outputs):
            _refuse()
        return run(outputs, *args, **kwargs)

    return run_backward


def _leads_to_lost(outputs: Any) -> bool:
    first = [each.node if isinstance(each, torch.autograd.graph.GradientEdge) else each.grad_fn for each in outputs]
    return any(isinstance(function, Lost._backward_cls) for function in functions_behind(first, sys.maxsize))


def functions_behind(first: Iterable[Any], most: int) -> Iterator[Any]:
    """Yield the functions of a graph that a `backward` from `first` (which may have Nones) would call, each once, up to
    `most`.
    """

    def below(function: Any) -> list[Any]:
        return [each for each, _number in function.next_functions if each is not None]

    return walk((each for each in first if each is not None), below, id, most=most)
