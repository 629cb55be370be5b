"""The buckets in which DistributedDataParallel (DDP) sums gradients: a resumed run gets the buckets of the first run.

In the first iteration DDP has buckets by the order in which parameters were registered; after it, DDP makes new ones by
the order in which gradients arrived. With three or more processes, a gradient's place in its bucket decides the order
in which the ring of all_reduce adds it up, and so its bits. detrain notes the order of arrival, and a resumed process
lets the same gradients arrive in this order once, by a graph that computes nothing.

This is not needed with `find_unused_parameters`: there DDP keeps its first buckets. Source:
torch/csrc/distributed/c10d/reducer.cpp (`rebuild_buckets`), torch/nn/parallel/distributed.py (`_pre_forward`).
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from detrain.adapters.torch.held_memory import start_of, unseen

_FAR: Final = 1 << 60
"""The first number of hooks that are not the program's."""


class Buckets:
    """Watches all models that are wrapped in DDP, from the import of PyTorch on."""

    def __init__(self) -> None:
        self._orders: dict[int, _ArrivalOrder] = {}
        """The order of each model, by the model's number: the count of models wrapped before it."""
        self._optimizers: list[weakref.ref[Any]] = []
        """The optimizers, in the order of their first steps."""
        register_optimizer_step_post_hook(self._stepped)
        made: Any = DistributedDataParallel._ddp_init_helper
        before_forward: Any = DistributedDataParallel._pre_forward
        of_model: weakref.WeakKeyDictionary[Any, _ArrivalOrder] = weakref.WeakKeyDictionary()

        def init(model: Any, *arguments: Any, **named: Any) -> None:
            made(model, *arguments, **named)  # called inside `__init__`: warnings name the caller of that
            of_model[model] = self._orders[len(self._orders)] = _ArrivalOrder(model)

        def pre_forward(model: Any, *inputs: Any, **named: Any) -> Any:
            order = of_model.get(model)
            result = before_forward(model, *inputs, **named)
            if order is not None and torch.is_grad_enabled():
                order.begin(model)
            return result

        DistributedDataParallel._ddp_init_helper = init
        DistributedDataParallel._pre_forward = pre_forward

    def state(self) -> list[tuple[int, list[int]]]:
        """Return for each model the number of iterations that DDP has seen on the way to its final buckets, and the
        order in which gradients arrived in the last of them.
        """
        return [(order.turns, order.arrived) for order in self._orders.values()]

    def moved_on(self) -> list[object]:
        """Return, for each model, its progress to the final buckets; two such lists are equal if no model has gained on
        them in between. With two processes buckets do not matter: each sum has two terms.
        """
        if torch.distributed.is_initialized() and torch.distributed.get_world_size() <= 2:
            return []
        return [order.progress for order in self._orders.values()]

    def unknown_hooks(self) -> list[str]:
        """Return a description of each communication hook of a model that keeps a state of its own."""
        models = [order.model() for order in self._orders.values()]
        hooks = [hook for model in models if model is not None for hook in model._comm_hooks]
        groups = (type(None), torch.distributed.ProcessGroup)
        return [
            f"the communication hook {getattr(hook, '__name__', hook)}" for hook, state in hooks if not isinstance(state, groups)
        ]

    def addresses(self) -> dict[int, str]:
        """See `detrain.adapters.api.Replicas`: the models' parameters, the state that optimizers keep for each, and
        gradients if the last ones were summed.
        """
        models = self._orders.items()
        names = {id(each): f"{number}.{place}" for number, order in models for place, each in order.parameters()}
        summed = {id(each): order.is_summing for _number, order in models for _place, each in order.parameters()}
        found: dict[int, str] = {}
        for number, reference in enumerate(self._optimizers):
            optimizer = reference()
            groups = optimizer.param_groups if optimizer is not None else ()
            for parameter in [each for group in groups for each in group["params"] if id(each) in names]:
                name = names[id(parameter)]
                held = {name: parameter} | ({f"{name} gradient": parameter.grad} if summed[id(parameter)] else {})
                if optimizer is not None:
                    held |= {f"{name} {number}.{key}": each for key, each in optimizer.state.get(parameter, {}).items()}
                tensors = {key: each for key, each in held.items() if isinstance(each, torch.Tensor) and each.device.type == "cpu"}
                found |= {start_of(each): key for key, each in tensors.items()}
        return found

    def _stepped(self, optimizer: Any, _arguments: object, _named: object) -> None:
        if all(reference() is not optimizer for reference in self._optimizers):
            self._optimizers.append(weakref.ref(optimizer))

    def restore(self, state: list[tuple[int, list[int]]]) -> None:
        """Let gradients arrive in these orders. All ranks do this together: it communicates."""
        for number, (turns, arrived) in enumerate(state):
            order = self._orders.get(number)
            if order is not None and arrived:
                order.repeat(turns, arrived)


class _ArrivalOrder:
    """The order in which one model's gradients arrive, until DDP has made its final buckets by it."""

    def __init__(self, model: Any) -> None:
        self.model = weakref.ref(model, self._let_go)
        named = model.module.named_parameters()
        self._parameters = [each for name, each in named if each.requires_grad and name not in model.parameters_to_ignore]
        self._hooks: list[Any] = []
        self._turns_before = 0
        self.is_summing = False
        """Whether the gradients of the last forward are summed: not inside `no_sync`."""
        self.arrived: list[int] = []
        self.is_final = False
        """Whether later gradients no longer change the buckets."""
        self._watch()

    def parameters(self) -> Iterator[tuple[int, Any]]:
        """Return (number, parameter) for each parameter whose gradient is summed; none once the model is gone."""
        return enumerate(self._parameters)

    def _let_go(self, _model: object) -> None:
        """Let the parameters of a model go that is gone."""
        self._unwatch()
        self._parameters = []

    @property
    def turns(self) -> int:
        """The number of iterations seen so far."""
        return self._turns_before + bool(self.arrived)

    @property
    def progress(self) -> tuple[int, bool] | None:
        """The number of iterations seen, and whether DDP has its final buckets; None if it never makes others, or the
        model is gone."""
        model = self.model()
        if model is None or (model.find_unused_parameters and not model.static_graph):
            return None
        return self.turns, model._has_rebuilt_buckets

    def begin(self, model: Any) -> None:
        """Note that a forward has begun: if DDP makes its buckets by earlier gradients, it has made them by now."""
        self.is_summing = model.require_backward_grad_sync
        if self.is_final:
            return
        if model._has_rebuilt_buckets or (model.find_unused_parameters and not model.static_graph):
            self.is_final = True
            self._unwatch()
        elif self.is_summing:
            self._turns_before, self.arrived = self.turns, []

    def repeat(self, turns: int, arrived: list[int]) -> None:
        """Let gradients arrive in this order, in `turns` iterations that compute nothing, unless they already have."""
        model: Any = self.model()
        # They already have if this process ran a forward and a backward between the epoch's start and the cut.
        if model is None or (self.arrived == arrived and (self.is_final or self.turns == turns)):
            return
        self._unwatch()
        self.is_final = True
        with _as_it_was(model, self._parameters):
            for _turn in range(turns):
                _come(model, [self._parameters[number] for number in arrived])
        self._turns_before, self.arrived = turns - 1, arrived
        if turns < (2 if model.static_graph else 1):
            self.is_final = False  # buckets are made by the gradients of the next iteration
            self._watch()

    def _watch(self) -> None:
        """Hook the nodes that add up gradients: no name leads to the hooks, and they take no numbers of the program."""
        number, RemovableHandle.next_id = RemovableHandle.next_id, _FAR
        for place, parameter in enumerate(self._parameters):
            with torch.enable_grad(), unseen():
                node = parameter.view_as(parameter).grad_fn.next_functions[0][0]
            self._hooks.append((node, node.register_hook(_Note(self, place))))
        RemovableHandle.next_id = number

    def _unwatch(self) -> None:
        for _node, hook in self._hooks:
            hook.remove()
        self._hooks = []

    def note(self, place: int) -> None:
        """Note that a gradient has arrived."""
        if self.is_summing:
            self.arrived.append(place)


class _Note:
    """The hook on one parameter's gradient."""

    def __init__(self, order: _ArrivalOrder, place: int) -> None:
        self._order, self._place = order, place

    def __call__(self, *_gradients: Any) -> None:
        self._order.note(self._place)


@contextmanager
def _as_it_was(model: Any, parameters: list[Any]) -> Iterator[None]:
    """Inside, a model has no gradients; afterwards its gradients and buffers are put back."""
    gradients = [parameter.grad for parameter in parameters]
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.module.buffers()]
    for parameter in parameters:
        parameter.grad = None
    try:
        with unseen(), torch.enable_grad():
            yield
    finally:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)


def _come(model: Any, parameters: list[Any]) -> None:
    """Let a model's gradients (zeros) arrive in the order of these parameters."""
    device = parameters[0].device

    def chain() -> Any:
        rest = torch.zeros((), requires_grad=True, device=device)
        for parameter in reversed(parameters):
            rest = _Link.apply(parameter, rest)
        return rest

    own = vars(model.module).get("forward")
    model.module.forward = chain
    try:
        inputs, named = model._pre_forward()
        with model._inside_ddp_forward():
            output = model.module.forward(*inputs, **named)
        model._post_forward(output).backward()
    finally:
        if own is None:
            del model.module.forward
        else:
            model.module.forward = own


class _Link(torch.autograd.Function):  # type: ignore[misc]  # it is Any to mypy
    """A link of a chain: its backward first gives this parameter's gradient, then goes on to the rest of the chain."""

    @staticmethod
    def forward(ctx: Any, parameter: Any, rest: Any) -> Any:
        """Note the parameter's shape."""
        ctx.like = torch.zeros_like(parameter)
        return rest + 0

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """Return zeros."""
        return ctx.like, gradient
