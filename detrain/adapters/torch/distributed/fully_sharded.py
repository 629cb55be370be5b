"""Modules under FSDP2 (`fully_shard`): the state that it keeps besides the shards of weights, where no name leads.

Between two steps a module's weights are usually sharded. They may be whole instead: after a forward without a backward
(a validation), the root module's weights are, and those of modules for which the program has asked this. Whole weights
are no state, as they are made from the shards: for a checkpoint the module has its shards, and a resumed process
gathers the weights that the first run had gathered, all ranks together. Gradients that are still to be reduced
(accumulation without communication) are state, and so are the switches that the program has set.

Source: torch/distributed/fsdp/_fully_shard (`_fsdp_state.py`, `_fsdp_param_group.py`, `_fsdp_param.py`).
"""

from __future__ import annotations

import gc
import importlib
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch.distributed

from detrain.base.errors import Diverged

_SWITCHES: Final = (
    *("reduce_grads", "all_reduce_grads", "reshard_after_backward", "unshard_in_backward", "gradient_divide_factor"),
    *("reduce_scatter_unused_params", "force_sum_reduction_for_comms", "unshard_async_op"),
)
_SHARDED: Final = "SHARDED"
_POST_FORWARD: Final = "SHARDED_POST_FORWARD"
STALE: Final = "weights of FSDP2 (gathered before they changed)"
_LATE: Final = "modules of FSDP2 (the loop has called `fully_shard`)"


class FullySharded:
    """The state that FSDP2 keeps in this process."""

    def __init__(self) -> None:
        if torch.distributed.is_available():
            _name_alike()
        self._wanted: list[tuple[Any, str]] = []
        """The groups of weights that are to be gathered, each with the form that its weights had."""
        self._known: dict[int, tuple[weakref.ref[Any], weakref.ref[Any]]] = {}
        """The group and FSDP2's parameter object of each sharded weight, by the weight's identity."""
        self._at_phase: list[weakref.ref[Any]] = []
        """The states that existed when the loop was entered."""

    def states(self) -> list[Any]:
        """Return FSDP2's states, in the order in which the program called `fully_shard`."""
        known = sys.modules.get("torch.distributed.fsdp._fully_shard._fsdp_state")
        if known is None:
            return []
        mapping = sys.modules["torch.distributed._composable_state"]._module_state_mapping
        found = [reference() for reference in mapping.values()]
        return list({id(each): each for each in found if isinstance(each, known.FSDPState)}.values())

    def is_newer(self) -> bool:
        """Return whether the program has modules under a newer FSDP2 than detrain knows, which keeps gradients that are
        still to be reduced in another layout (`_partial_reduce_output_layout`).
        """
        return any(hasattr(group, "_partial_reduce_output_layout") for group in self._groups())

    def begin_phase(self) -> None:
        """Note that a loop is entered. Do now the part of the first forward's work that needs no communication, so that
        its tensors and hooks exist, and stay.
        """
        if self.states():
            gc.collect()  # modules under FSDP2 hold each other: those that the program has dropped are no state
        self._at_phase = [weakref.ref(state) for state in self.states()]
        for group in self._groups():
            if group.is_sharded and not group._reset_sharded_params:
                for parameter in group.fsdp_params:
                    parameter.reset_sharded_param()  # pads shards
            group._register_state_dict_hooks()
            _number(group)

    def state(self) -> list[dict[str, Any] | None]:
        """Return, as data, for each state that existed when the loop was entered: its role (root or not), its switches,
        and the form of its weights; None for a state that is gone.
        """
        return [
            state
            and {
                "root": state._is_root,
                "last": state._state_ctx.is_last_backward,
                "groups": [
                    {
                        "form": group._sharded_state.name,
                        "gathered": any(hasattr(each, "_unsharded_param") for each in group.fsdp_params),
                        "frees": group.post_forward_mesh_info is not None,
                        "switches": {name: getattr(group, name) for name in _SWITCHES if hasattr(group, name)},
                    }
                    for group in _groups(state)
                ],
            }
            for state in self._kept()
        ]

    def restore(self, was: list[dict[str, Any] | None]) -> None:
        """Set roles and switches, and shard all weights, to be filled. All ranks do this together.

        Raises Diverged if the program has other modules under FSDP2.
        """
        states = self._kept()
        both = [(state, held) for state, held in zip(states, was, strict=False) if state is not None and held is not None]
        if len(states) != len(was) or any(len(_groups(state)) != len(held["groups"]) for state, held in both):
            raise Diverged(
                f"the program has called `fully_shard` for {len(states)} modules, where the first run had {len(was)}",
                "call it for the same modules before the loop, or start anew with --fresh",
            )
        self._wanted, self._known = [], self._parameters()
        for state, held in both:
            if held["root"] and state._is_root is None:
                state._lazy_init()
        for state, held in both:
            state._state_ctx.is_last_backward = held["last"]
            for group, before in zip(_groups(state), held["groups"], strict=True):
                if before["gathered"] and not all(hasattr(each, "_unsharded_param") for each in group.fsdp_params):
                    _gather(group)
                group._to_sharded()
                for name, value in before["switches"].items():
                    setattr(group, name, value)
                if before["frees"] != (group.post_forward_mesh_info is not None):
                    group.post_forward_mesh_info = group.mesh_info if before["frees"] else None
                if before["form"] != _SHARDED:
                    self._wanted.append((group, before["form"]))

    def build_made(self) -> None:
        """Gather the weights that were gathered, now that the shards are restored. All ranks do this together.

        Raises Diverged if a weight was made anew: FSDP2 would go on with the one that it knows.
        """
        for group, parameter in [(each, parameter) for each in self._groups() for parameter in each.fsdp_params]:
            for holder, name in _places(parameter):
                if group.is_sharded and holder[name] is not parameter.sharded_param:
                    raise Diverged(
                        f"the shard of the weight {parameter._param_fqn or name!r} cannot be put back in place",
                        "plain tensors as weights come back; start anew with --fresh, or run it with --bare",
                    )
        wanted, self._wanted = self._wanted, []
        for group, form in wanted:
            _gather(group)
            if form == _POST_FORWARD:
                group._to_sharded_post_forward()

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """Inside, names lead to the shards of weights that are gathered."""
        before: list[tuple[dict[str, Any], str, Any]] = []
        self._known = self._parameters()
        for group in self._groups():
            for parameter in group.fsdp_params if not group.is_sharded else ():
                for holder, name in _places(parameter):
                    before.append((holder, name, holder[name]))
                    holder[name] = parameter.sharded_param
        try:
            yield
        finally:
            for held, name, value in before:
                held[name] = value

    def unreduced(self, tensor: Any) -> list[Any] | None:
        """Return a sharded weight's gradients that are still to be reduced: as they came, in the dtype of the
        reduction, and, for the first weight of a group, the group's sums over shards alone; None if there are none.
        """
        found = self._find(tensor)
        if found is None:
            return None
        group, parameter = found
        whole = getattr(parameter, "_unsharded_param", None)
        partial = group._partial_reduce_output if group.fsdp_params[0] is parameter else None
        held = [None if whole is None else whole.grad, parameter.unsharded_accumulated_grad, partial]
        return held if any(each is not None for each in held) else None

    def set_unreduced(self, tensor: Any, held: list[Any] | None) -> bool:
        """Set the gradients that `unreduced` returned; return whether that could be done."""
        found = self._find(tensor)
        if found is None:
            return held is None
        group, parameter = found
        grad, accumulated, partial = held or (None, None, None)
        whole = getattr(parameter, "_unsharded_param", None)
        if whole is None and grad is not None:
            return False
        if whole is not None and whole.grad is not grad:
            whole.grad = grad
        if parameter.unsharded_accumulated_grad is not accumulated:  # from PyTorch 2.15 on it is the gradient itself
            parameter.unsharded_accumulated_grad = accumulated
        if group.fsdp_params[0] is parameter:
            group._partial_reduce_output = partial
        return True

    def kept_of(self, tensor: Any) -> Any:
        """Return the sharded weight of a whole one, whose memory may be gone; return any other tensor itself."""
        parameters = (each for group in self._groups() for each in group.fsdp_params)
        return next((each.sharded_param for each in parameters if vars(each).get("_unsharded_param") is tensor), tensor)

    def uncaptured(self) -> list[str]:
        """Return a description of each part of FSDP2's state that would differ in a resumed run."""
        found = [STALE] if any(map(_is_stale, self._groups())) else []
        before = self._kept()
        return found if all(any(each is other for other in before) for each in self.states()) else [*found, _LATE]

    def unknown(self) -> list[str]:
        """Return a description of each used part of FSDP2 that is not known to be exact."""
        groups = list(self._groups())
        found = {"a hook of FSDP2's for all_reduce" for group in groups if getattr(group, "_all_reduce_hook", None) is not None}
        for name, default in (("_all_gather_comm", "DefaultAllGather"), ("_reduce_scatter_comm", "DefaultReduceScatter")):
            for group in groups:
                kind = type(getattr(group, name, None)).__name__
                if kind not in (default, "NoneType"):
                    found.add(f"communication of FSDP2's by {kind}")
        return sorted(found)

    def _groups(self) -> Iterator[Any]:
        for state in self.states():
            yield from _groups(state)

    def _kept(self) -> list[Any]:
        return [reference() for reference in self._at_phase]

    def _parameters(self) -> dict[int, tuple[weakref.ref[Any], weakref.ref[Any]]]:
        pairs = [(group, each) for group in self._groups() for each in group.fsdp_params]
        return {id(each.sharded_param): (weakref.ref(group), weakref.ref(each)) for group, each in pairs}

    def _find(self, tensor: Any) -> tuple[Any, Any] | None:
        group, parameter = (reference() for reference in self._known.get(id(tensor), (_nothing, _nothing)))
        return (group, parameter) if parameter is not None and parameter.sharded_param is tensor else None


def _nothing() -> None:
    """Return None, as a weak reference to a deleted object does."""


def _name_alike() -> None:
    """Give the attributes by which modules hold FSDP2's states the same names in all processes: PyTorch draws the names
    when it is imported.
    """
    module: Any = importlib.import_module("torch.distributed._composable.contract")
    module.STATE_KEY, module.REGISTRY_KEY = (f"__composable_api_state_key_{kind}" for kind in ("state", "registry"))


def _groups(state: Any) -> list[Any]:
    several = getattr(state, "_fsdp_param_groups", None)
    return list(several) if several is not None else [each for each in [state._fsdp_param_group] if each is not None]


def _places(parameter: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield each dictionary that holds a weight, and the weight's name there."""
    info = parameter._module_info
    names = (info.param_name, *info.shared_param_names)
    yield from ((module._parameters, name) for module, name in zip((info.module, *info.shared_modules), names, strict=True))


def _number(group: Any) -> None:
    """Number the hooks of a group in the order of its weights: FSDP2 numbers them in the order of a set of modules,
    which is left to chance.
    """
    modules = dict.fromkeys(each._module_info.module for each in group.fsdp_params)
    held = (group._module_to_pre_save_state_dict_hook_handle, group._module_to_pre_load_state_dict_hook_handle)
    handles = [handles[module] for module in modules for handles in held if module in handles]
    numbers = sorted(handle.id for handle in handles)
    hooks = [handle.hooks_dict_ref().pop(handle.id) for handle in handles]
    for handle, hook, number in zip(handles, hooks, numbers, strict=True):
        handle.hooks_dict_ref()[number], handle.id = hook, number


def _gather(group: Any) -> None:
    if not group._reset_sharded_params:  # else its first forward has run, which fixed its dtypes
        group.lazy_init()
    group.unshard()
    group.wait_for_unshard()


def _is_stale(group: Any) -> bool:
    """Return whether a group's whole weights are not those that gathering now would give, in this process's shards."""
    if group.is_sharded or group._sharded_state.name == _POST_FORWARD:
        return False
    for parameter in group.fsdp_params:
        shards = parameter._sharded_param_data
        if len(parameter.all_gather_outputs) != 1 or not shards.numel():
            continue
        gathered = parameter.all_gather_outputs[0].view(-1, shards.numel())
        rank = getattr(group.mesh_info, "shard_mesh_rank", 0)
        if not gathered[rank].equal(shards.to(gathered.dtype)):
            return True
    return False
