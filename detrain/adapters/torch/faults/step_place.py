"""The place of a thread in a step: the module or optimizer that runs, and the stage: forward, backward or optimizer.

The stage is backward while autograd runs one of its functions, optimizer inside an optimizer's `step`, else forward.
The innermost call counts: a module that is called in the backward pass (a block that is computed again) is forward. An
op of the backward pass belongs to the module that ran the matching op of the forward pass: autograd numbers its
functions in the order in which ops make them.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import msgspec
import torch
from torch.nn import Module
from torch.nn.modules import module as modules
from torch.optim import Optimizer
from torch.optim import optimizer as optimizers

from detrain.adapters.torch.named_objects import NamedObjects
from detrain.faults.sites import Stage

_KEY: Final = -1
"""The key of detrain's hooks among those of all modules: `register_…_hook` numbers its hooks from 0, and their count is
state."""
_Reference = weakref.ref[Any]


class OpPlace(msgspec.Struct, frozen=True):
    """The place of an op in a step."""

    stage: Stage
    layer: str
    call: Hashable
    """The call of the module around the op: the calls of a step are counted; 0 outside of all calls."""


class OfNode(msgspec.Struct):
    """The node of a graph for which an op is run."""

    number: Hashable
    """The number of autograd's function for the node."""
    given: list[tuple[str, str]]
    """The names and signatures that the node got in the forward pass, without those already used."""
    names: list[tuple[str, str]] = []
    """The names and signatures that the node gets now."""

    def known(self, base: str) -> tuple[str, str] | None:
        """Return the next name and signature from the forward pass; None if there is none."""
        if self.given and self.given[0][0].partition("#")[0] == base:
            return self.given.pop(0)
        return None


class _Running(msgspec.Struct, frozen=True):
    """A running call of a module or an optimizer."""

    value: Any
    layer: str
    call: Hashable
    node: Any
    """The function that autograd ran when the call began."""
    stage: Stage

    @property
    def may_have_graph(self) -> bool:
        """Whether it is an optimizer through which gradients are taken."""
        return any(group.get("differentiable") for group in self.value.param_groups)


class StepCalls:
    """Follows the calls of modules and optimizers between `begin` and `end`, in this thread."""

    def __init__(self, names: NamedObjects) -> None:
        self._names = names
        self._running: list[_Running] = []
        self._calls = 0
        self._of_nodes: dict[int, tuple[str, Hashable]] = {}
        """Layer and call of the op that made each of autograd's functions, by the function's number."""
        self._from_gradients: dict[int, _Reference] = {}
        """The storages of values of the backward pass, and of values computed from these, by identity."""

    def begin(self) -> None:
        """Begin to follow a step."""
        self._running, self._calls = [], 0
        self._of_nodes, self._from_gradients = {}, {}
        self._listen()

    def end(self) -> None:
        """Stop following the step."""
        self._ignore()
        self._running, self._of_nodes, self._from_gradients = [], {}, {}

    def _listen(self) -> None:
        modules._global_forward_pre_hooks[_KEY] = self._call_module
        modules._global_forward_hooks[_KEY] = self._leave_module
        modules._global_forward_hooks_always_called[_KEY] = True
        optimizers._global_optimizer_pre_hooks[_KEY] = self._call_optimizer
        optimizers._global_optimizer_post_hooks[_KEY] = self._leave_optimizer

    @staticmethod
    def _ignore() -> None:
        for held in (
            modules._global_forward_pre_hooks,
            modules._global_forward_hooks,
            modules._global_forward_hooks_always_called,
            optimizers._global_optimizer_pre_hooks,
            optimizers._global_optimizer_post_hooks,
        ):
            held.pop(_KEY, None)

    @contextmanager
    def unheard(self) -> Iterator[None]:
        """Inside, calls are not followed."""
        self._ignore()
        try:
            yield
        finally:
            self._listen()

    def enter_compiled(self, owner: Any) -> None:
        """Note the call of a compiled function or method (of the module or optimizer `owner`), and remove detrain's
        hooks: PyTorch's compiler must not meet them.
        """
        self._ignore()
        if isinstance(owner, Optimizer | Module):
            self._push(owner, self._names.name(owner), "optimizer" if isinstance(owner, Optimizer) else "forward")

    def leave_compiled(self, owner: Any) -> None:
        """Note the end of a compiled call, and put detrain's hooks back."""
        self._pop(owner)
        self._listen()

    def layer_at(self, number: int) -> str:
        """Return the name of the module with this identity; empty if no name leads to it."""
        return self._names.name_at(number)

    def renamed(self, pairs: Iterable[tuple[Any, Any]]) -> list[tuple[str, str]]:
        """Return pairs of prefixes of modules' names, for pairs of parameters: the prefix of the module with the first
        parameter, and of the module with the second one in its place.
        """
        found: set[tuple[str, str]] = set()
        for each in pairs:
            old, new = (self._names.owner(parameter).split(".") for parameter in each)
            while old and new and old[-1] == new[-1]:
                del old[-1], new[-1]
            if old and new and "" not in (*old, *new):
                found.add((".".join(old), ".".join(new)))
        return sorted(found, reverse=True)

    def held(self) -> list[Any]:
        """Return the tensors that outlive a step: parameters, buffers and the state of optimizers."""
        return [tensor for _kind, tensor in self._names.variables().values()]

    def place(self, inputs: list[Any]) -> OpPlace:
        """Return the place of an op that is about to run on these tensors."""
        node = torch._C._current_autograd_node()
        top = self._running[-1] if self._running else None
        has_graph = torch.is_grad_enabled() and any(each.requires_grad for each in inputs)
        if top is not None and top.node is node and not (top.stage == "optimizer" and has_graph and not top.may_have_graph):
            found = OpPlace(top.stage, top.layer, top.call)
        elif node is not None:
            found = OpPlace("backward", *self._layer_of(node))
        else:  # an optimizer calls a closure of the program's, too
            is_late = any(map(self._is_from_gradients, inputs)) and not has_graph
            found = OpPlace("optimizer" if is_late else "forward", "", 0)
        self._of_nodes.setdefault(torch.autograd._get_sequence_nr() - 1, (found.layer, found.call))
        return found

    def note(self, place: OpPlace, inputs: list[Any], outputs: list[Any], *, computes: bool) -> None:
        """Note that an op has run at a place. `computes`: the op does not just hand values on, as the backward pass
        does with saved tensors.
        """
        node = torch._C._current_autograd_node()
        is_new = place.stage == "backward" and (computes or (node is not None and _gathers(node)))
        if not is_new and not any(map(self._is_from_gradients, inputs)):
            return
        for each in outputs:
            storage = _storage(each)
            if storage is not None:
                self._from_gradients[id(storage)] = weakref.ref(storage)

    def _is_from_gradients(self, tensor: Any) -> bool:
        storage = _storage(tensor)
        known = self._from_gradients.get(id(storage)) if storage is not None else None
        return known is not None and known() is storage

    def _layer_of(self, node: Any) -> tuple[str, Hashable]:
        if _gathers(node):
            return self._names.owner(node.variable), 0
        return self._of_nodes.get(node._sequence_nr(), ("", 0))

    def _push(self, value: Any, layer: str, stage: Stage) -> None:
        self._calls += 1
        self._running.append(_Running(value, layer, self._calls, torch._C._current_autograd_node(), stage))

    def _pop(self, value: Any) -> None:
        for number in reversed(range(len(self._running))):
            if self._running[number].value is value:
                del self._running[number:]
                break

    def _call_module(self, module: Any, _args: object) -> None:
        self._push(module, self._names.name(module), "forward")

    def _leave_module(self, module: Any, _args: object, _result: object) -> None:
        self._pop(module)

    def _call_optimizer(self, optimizer: Any, _args: object, _kwargs: object) -> None:
        self._push(optimizer, self._names.name(optimizer), "optimizer")

    def _leave_optimizer(self, optimizer: Any, _args: object, _kwargs: object) -> None:
        self._pop(optimizer)


def _gathers(node: Any) -> bool:
    """Return whether a function of autograd adds a gradient to that of a leaf."""
    return bool(node.name() == "torch::autograd::AccumulateGrad")


def _storage(tensor: Any) -> Any:
    """Return the storage of a tensor; None if it has none of its own."""
    if tensor.layout is not torch.strided:
        return None
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None
