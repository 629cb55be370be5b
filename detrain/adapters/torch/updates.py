"""The places where weights change: an optimizer's step, or, in a program without one, the next gradient after a change;
and forward passes of whole models without gradients: the steps of a program, or a part of one, that evaluates.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
from torch._C import _functorch as functorch
from torch.autograd import graph
from torch.nn import Module
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import _get_current_dispatch_mode

from detrain.adapters.torch.held_memory import look_at, shard_of
from detrain.adapters.torch.lost_graph import functions_behind
from detrain.base.digest import Array, digest_array
from detrain.base.in_place import in_place_of

_MOST_FUNCTIONS: Final = 100_000
_BY_HAND: Final = 1
"""The number that stands for updates without an optimizer."""

_OF_PICTURES: Final = 4
"""From this number of dimensions on, axis 1 is the class (of pixels), not the last axis."""


class TorchUpdates:
    """Reports each update of weights, with a number that tells one updater from another.

    PyTorch calls the hook for all optimizers, also for derived classes, steps in hooks of `backward`, and compiled
    steps (`torch/optim/optimizer.py`, `profile_hook_step`). If a `GradScaler` skips a step, nothing changes.

    A program may change its weights by hand: `w -= lr * w.grad`, `p.data.add_(...)`, new tensors in place of old. As
    long as no optimizer has stepped, the tensors of which gradients were taken are compared when the next gradients are
    taken: if one has changed or is gone, there was an update. A computed tensor is no weight: MAML takes gradients of
    such tensors when it tries a task. A search without gradients sets weights by `vector_to_parameters`: again and
    again, so the first call alone is no update.
    """

    def __init__(self, on_update: Callable[[int], None], kept_of: Callable[[Any], Any] = lambda tensor: tensor) -> None:
        """`kept_of`: returns the tensor that exists between two steps, for one of which gradients are taken."""
        self._on_update, self._kept_of = on_update, kept_of
        self._has_optimizer = self._is_by_hand = self._has_set = False
        self._leaves: list[tuple[weakref.ref[torch.Tensor], tuple[object, ...]]] = []
        register_optimizer_step_post_hook(self._stepped)
        original: Any = graph._engine_run_backward

        def run_backward(tensors: Any, *arguments: Any, **named: Any) -> Any:
            # While a graph is traced for a compiler, nothing is computed.
            if not self._has_optimizer and _get_current_dispatch_mode() is None:
                self._look(tensors, named.get("inputs") or (arguments[3] if len(arguments) > 3 else ()))
            return original(tensors, *arguments, **named)

        convert: Any = torch.nn.utils.convert_parameters
        set_all = convert.vector_to_parameters

        @in_place_of(convert, "vector_to_parameters", torch.nn.utils)
        def vector_to_parameters(*arguments: Any, **named: Any) -> None:
            set_all(*arguments, **named)
            if self._has_set and not self._has_optimizer:
                self._on_update(_BY_HAND)
            self._has_set = True

        graph._engine_run_backward = run_backward
        torch.autograd._engine_run_backward = run_backward

    def _stepped(self, optimizer: Any, _arguments: object, _named: object) -> None:
        self._has_optimizer = True
        self._leaves = []
        self._on_update(id(optimizer))

    def _look(self, tensors: Iterable[Any], inputs: Iterable[Any]) -> None:
        """Report an update, before gradients are taken, if the tensors of the last gradients have changed."""
        if self._is_by_hand:
            self._on_update(_BY_HAND)
            return
        before = self._leaves
        given = [_plain(each) for each in inputs if isinstance(each, torch.Tensor)]
        found = [each for each in given if each.grad_fn is None] or _leaves_behind(tensors)
        leaves = [self._kept_of(each) for each in found]
        self._leaves = [(weakref.ref(leaf), _mark(leaf)) for leaf in leaves]
        if before and any(reference() is None or _mark(reference()) != mark for reference, mark in before):
            self._is_by_hand, self._leaves = True, []
            self._on_update(_BY_HAND)


def _leaves_behind(tensors: Iterable[Any]) -> Iterable[torch.Tensor]:
    """Return the leaf tensors that would get gradients from a `backward` of these tensors."""
    first = (each.grad_fn for each in tensors if isinstance(each, torch.Tensor))
    leaves = (getattr(function, "variable", None) for function in functions_behind(first, _MOST_FUNCTIONS))
    return (leaf for leaf in leaves if isinstance(leaf, torch.Tensor))


def _plain(tensor: Any) -> Any:
    """Return the tensor inside the wrappers of `torch.func`."""
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor


def _mark(tensor: Any) -> tuple[object, ...]:
    """Return a mark that tells whether a tensor has changed: its version, and a digest, as `.data` moves no version."""
    if tensor.layout is not torch.strided or tensor.device.type == "meta":
        return (tensor._version,)
    with torch._C._DisableFuncTorch():
        plain = shard_of(tensor).detach().cpu().contiguous().reshape(-1)
        if type(plain) is torch.Tensor:
            start = plain.storage_offset() * plain.element_size()
            found = look_at(plain.untyped_storage())[start : start + plain.nbytes]
            return tensor._version, digest_array(found)
        # A copy: once a NumPy array has looked at a storage, PyTorch cannot free it (as FSDP2 does).
        return tensor._version, digest_array(plain.view(torch.uint8).clone().numpy())


class ForwardPasses:
    """Notes each outermost call of a module while no gradients are taken.

    `Module.__call__` is replaced: `torch.compile` would compile a hook of all modules, too. Compiled code that is
    called in another way is reported by `note`.
    """

    def __init__(self, on_pass: Callable[[int], None]) -> None:
        """`on_pass` is called after each pass, with a number that tells one module from another."""
        self._on_pass = on_pass
        self._inside = threading.local()
        self._outputs: list[Any] = []
        self.count = 0
        """The number of passes so far."""
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

        # PyTorch's compiler decides by a function's file whether it looks inside: so `call` gets the original's file.
        call.__code__ = call.__code__.replace(co_filename=original.__code__.co_filename)
        Module.__call__ = functools.update_wrapper(call, original)

    @property
    def is_inside(self) -> bool:
        """Whether a module runs in this thread."""
        return getattr(self._inside, "is_inside", False)

    def note(self, result: Any, number: int) -> None:
        """Note the result of a call of a module, or of code that calls one; `number` tells one callee from another."""
        is_traced = torch._guards.TracingContext.try_get() is not None  # the compiler calls its own code, with no values
        if torch.is_grad_enabled() or self.is_inside or is_traced:
            return
        self._outputs.append(result)
        self.count += 1
        self._on_pass(number)

    def outputs(self) -> list[Array]:
        """Return the scores of the passes since the last call, the class on the last axis."""
        given, self._outputs = self._outputs, []
        return [scores for each in given for scores in scores_of(each)]


def scores_of(given: Any) -> list[Array]:
    """Return the scores in a model's output, the class on the last axis; none if it has no floating-point tensor."""
    return [_scores(tensor) for tensor in _tensors(given)]


def _tensors(given: Any) -> list[torch.Tensor]:
    """Return the tensor of scores in a model's output: the output itself, its `logits`, or the first of several."""
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
