"""The norms that the guard watches: one pass over weights, state of optimizers and buffers, on their devices; the
choice of these tensors, and the theoretical bounds on their norms (docs/explanation/guard.md).

Watched are the parameters of optimizers and modules, the state of optimizers, and the buffers of modules. Each look
reads them from their holders again, as a program may put others in their place.
"""

from __future__ import annotations

import gc
import itertools
import math
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from detrain.adapters.api import Watched, adam_constant, bounded
from detrain.adapters.torch.held_memory import shard_of, shards_of, unseen
from detrain.adapters.torch.named_objects import NamedObjects
from detrain.base.digest import Array

_LOOKED_AT_AGAIN: Final = (5, 7, 11)
"""The numbers of looks that search for modules again: by then the objects of a program's first steps exist."""
_HALF: Final = (torch.float16, torch.bfloat16)

_SQUARES: Final = ("sq", "var", "sum", "second")
"""Parts of the names of state and buffers that hold squares."""
_ADAM_LIKE: Final = ("Adam", "AdamW", "NAdam", "RAdam", "SparseAdam")
"""PyTorch's optimizers whose `exp_avg` and `exp_avg_sq` are means of the gradient and of its square."""
_EXACT: Final = (torch.float32, torch.float64)
"""Dtypes for which theory gives a bound: in less exact ones a mean may stand still."""


class Holders:
    """The optimizers and modules of the process, and the dictionaries in which they hold tensors."""

    def __init__(self) -> None:
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._modules: list[weakref.ref[Any]] = []
        self._decays: weakref.WeakKeyDictionary[Any, list[tuple[float, ...]] | None] = weakref.WeakKeyDictionary()
        """The decays of each optimizer's means, by group; None once they have changed."""
        self.has_new = True
        """Whether an optimizer has been seen for the first time since `find`."""
        register_optimizer_step_pre_hook(self._steps)

    def _steps(self, optimizer: Any, _args: object, _kwargs: object) -> None:
        if optimizer not in self._optimizers:
            self._optimizers.add(optimizer)
            self.has_new = True

    def find(self) -> None:
        """Find all live modules and optimizers."""
        found = gc.get_objects()
        self._modules = [weakref.ref(each) for each in found if issubclass(type(each), torch.nn.Module)]
        for each in found:
            if issubclass(type(each), torch.optim.Optimizer) and hasattr(each, "param_groups"):
                self._optimizers.add(each)
        self.has_new = False

    def optimizers(self) -> list[Any]:
        """Return the live optimizers, in an order that is the same in every run: by class, then by the sizes of their
        parameters.
        """
        return sorted(self._optimizers, key=lambda each: (type(each).__name__, _sizes(each)))

    def modules(self) -> list[Any]:
        """Return the live modules."""
        return [module for each in self._modules if (module := each()) is not None]

    def held(self) -> list[object]:
        """Return all objects in the places that hold tensors, and whether each optimizer is steady; they stay the same
        until the program replaces one.
        """
        found: list[object] = []
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                found += group["params"]
            for state in optimizer.state.values():
                found += state.values() if isinstance(state, dict) else ()
            found.append(self.is_steady(optimizer))
        for reference in self._modules:
            module = reference()
            if module is not None:
                own = vars(module)
                found += own.get("_parameters", {}).values()
                found += own.get("_buffers", {}).values()
        return shards_of(found)

    def is_steady(self, optimizer: Any) -> bool:
        """Return whether an optimizer has a bound by theory: it is PyTorch's own, and its decays have not changed since
        they were first seen. (`OneCycleLR` and `CyclicLR` change them in each step.)
        """
        if not _is_of_torch(optimizer):
            return False
        now = [tuple(map(float, group["betas"])) for group in optimizer.param_groups]
        before = self._decays.get(optimizer, now)
        is_steady = before is not None and now[: len(before)] == before  # groups may be added
        self._decays[optimizer] = now if is_steady else None
        return is_steady


def _sizes(optimizer: Any) -> list[int]:
    return [each.numel() for group in optimizer.param_groups for each in group["params"]]


def find_watched(holders: Holders) -> tuple[list[Watched], list[Any]]:
    """Return the variables to be watched, by the program's names for them, and their tensors [watched]."""
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
                _add_state(holders, optimizer, kind, names.get(id(parameter), "a parameter"), state, found)
    for module in holders.modules():
        own = vars(module)
        for held, is_weight in ((own.get("_parameters", {}), True), (own.get("_buffers", {}), False)):
            for name, tensor in held.items():
                if id(tensor) not in found and tensor is not None and _is_watched(tensor, has_axes=True):
                    power = 1 if is_weight else _power(name)
                    found[id(tensor)] = Watched(names[id(tensor)], "weights" if is_weight else f"buffers {name}", power), tensor
    return [each for each, _tensor in found.values()], shards_of([tensor for _each, tensor in found.values()])


def _add_state(
    holders: Holders, optimizer: Any, kind: str, of: str, state: Mapping[Any, Any], found: dict[int, tuple[Watched, Any]]
) -> None:
    keys = {name: f"{kind}.{name} of {of}" for name in state}
    for name, tensor in state.items():
        if isinstance(tensor, torch.Tensor) and _is_watched(tensor, has_axes=True):
            found[id(tensor)] = Watched(keys[name], f"{kind} {name}", _power(str(name))), tensor
    m, v = state.get("exp_avg"), state.get("exp_avg_sq")
    if not (isinstance(m, torch.Tensor) and isinstance(v, torch.Tensor) and holders.is_steady(optimizer)):
        return
    if id(m) not in found or id(v) not in found or m.dtype not in _EXACT or v.dtype not in _EXACT:
        return
    # The widest bound of all groups: each parameter is in one of them.
    constant = max(adam_constant(*map(float, group["betas"])) for group in optimizer.param_groups)
    if math.isfinite(constant):
        found[id(m)] = bounded(found[id(m)][0], keys["exp_avg_sq"], constant, m.numel()), m


def _is_of_torch(optimizer: Any) -> bool:
    return type(optimizer) in [getattr(torch.optim, name) for name in _ADAM_LIKE]


def _power(name: str) -> int:
    return 2 if any(part in name for part in _SQUARES) else 1


def _is_watched(tensor: Any, *, has_axes: bool) -> bool:
    """Return whether a tensor holds numbers with a norm that can be watched."""
    with unseen():
        tensor = shard_of(tensor)
        if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point() or tensor.layout is not torch.strided:
            return False
        is_plain = not (tensor.is_quantized or tensor.is_nested or torch.nn.parameter.is_lazy(tensor))
        is_plain = is_plain and not hasattr(type(tensor), "__tensor_flatten__") and tensor.device.type != "meta"
        return is_plain and (tensor.dim() > 0 or not has_axes) and tensor.itemsize > 1


def _numbered(name: str, taken: dict[str, int]) -> str:
    taken[name] = taken.get(name, 0) + 1
    return name if taken[name] == 1 else f"{name}_{taken[name]}"


class TorchNorms:
    """See `detrain.adapters.api.Norms`."""

    reads_ranks = True

    def __init__(self) -> None:
        self._holders = Holders()
        self._held: list[object] = []
        self._watched: list[Watched] = []
        self._groups: list[list[Any]] = []
        """The tensors of each device and dtype."""
        self._order: list[int] = []
        """The indices in `_watched` of the groups' tensors, one after another."""
        self._masks: dict[str, bool] = {}
        self._looks = 0
        self._gradients: dict[int, tuple[str, Any]] | None = None
        self._together: tuple[object, list[Watched]] = (None, [])

    def watch_gradients(self) -> None:
        """Watch also the norm of all gradients that each optimizer is given."""
        if self._gradients is None:
            self._gradients = {}
            register_optimizer_step_pre_hook(self._note_gradients)

    def norms(self) -> tuple[Sequence[Watched], Array]:
        """Return the variables watched for hardware faults, and their Euclidean norms [tensor]."""
        self._looks += 1
        with unseen(), torch.no_grad():
            if self._looks == 1 or self._looks in _LOOKED_AT_AGAIN or self._holders.has_new:
                self._holders.find()
            held = self._holders.held()
            if len(held) != len(self._held) or any(one is not other for one, other in zip(held, self._held, strict=True)):
                self._held = held
                self._find()
            found = np.zeros(len(self._watched))
            found[self._order] = _norms(self._groups)
            if not self._gradients:
                return self._watched, found
            return self._with_gradients(found)

    def value(self, key: str) -> Array | None:
        """Return the value of a watched tensor, in float64; None for gradients, or if the tensor is gone."""
        places = {
            self._watched[place].key: tensor for place, tensor in zip(self._order, itertools.chain(*self._groups), strict=True)
        }
        tensor = places.get(key)
        return None if tensor is None else np.asarray(tensor.detach().cpu().to(torch.float64).numpy())

    def _find(self) -> None:
        watched, tensors = find_watched(self._holders)
        chosen = [index for index, each in enumerate(watched) if not self._is_mask(each, tensors[index])]
        new = [watched[index] for index in chosen]
        groups: dict[tuple[object, object], list[int]] = {}
        for place, index in enumerate(chosen):
            groups.setdefault((tensors[index].device, tensors[index].dtype), []).append(place)
        self._groups = [[tensors[chosen[place]] for place in places] for places in groups.values()]
        self._order = [place for places in groups.values() for place in places]
        if new != self._watched:
            self._watched = new

    def _is_mask(self, watched: Watched, tensor: Any) -> bool:
        """Return whether a tensor held infinities at its first look: before the first step they are meant. NaNs are
        never meant, nor are infinities in a weight that was made later: a faulty step may have made it.
        """
        if watched.key not in self._masks:
            is_late_weight = self._looks > 1 and watched.group == "weights"
            is_infinite = not is_late_weight and bool(tensor.isinf().any() and not tensor.isnan().any())
            self._masks[watched.key] = is_infinite
        return self._masks[watched.key]

    def _note_gradients(self, optimizer: Any, _args: object, _kwargs: object) -> None:
        with unseen(), torch.no_grad():
            if getattr(optimizer, "found_inf", None) is not None and float(optimizer.found_inf):
                return  # the scaler skips this step
            parts = [shard_of(each.grad) for group in optimizer.param_groups for each in group["params"] if each.grad is not None]
            parts = [part._values() if part.layout is torch.sparse_coo else part for part in parts]
            groups: dict[tuple[object, object], list[Any]] = {}
            for part in parts:
                if _is_watched(part, has_axes=False):
                    groups.setdefault((part.device, part.dtype), []).append(part)
            norm = float(np.linalg.norm(_norms(list(groups.values()))))
            scale = getattr(optimizer, "grad_scale", None)
            assert self._gradients is not None
            name = f"gradients for {type(optimizer).__name__}"
            number = sum(known == name or known.startswith(f"{name}_") for known, _norm in self._gradients.values())
            known = self._gradients.get(id(optimizer))
            name = known[0] if known is not None else name if not number else f"{name}_{number + 1}"
            self._gradients[id(optimizer)] = name, norm / float(scale) if scale is not None else norm

    def _with_gradients(self, found: Array) -> tuple[Sequence[Watched], Array]:
        assert self._gradients is not None
        names = [name for name, _norm in self._gradients.values()]
        if self._together[0] is not self._watched or len(self._together[1]) != len(self._watched) + len(names):
            self._together = self._watched, [*self._watched, *(Watched(name, name, 1) for name in names)]
        return self._together[1], np.concatenate([found, [norm for _name, norm in self._gradients.values()]])


def _norms(groups: list[list[Any]]) -> Array:
    """Return the Euclidean norms of tensors, group by group. Half precision is summed in float32."""
    parts = [_of_group(group) for group in groups]
    return np.concatenate(parts) if parts else np.zeros(0)


def _of_group(group: list[Any]) -> Array:
    wide = {"dtype": torch.float32} if group[0].dtype in _HALF else {}
    return np.asarray(torch.stack(torch._foreach_norm(group, 2, **wide)).to("cpu", torch.float64).numpy())
