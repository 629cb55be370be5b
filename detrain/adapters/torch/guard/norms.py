"""The norms of what the guard looks at: one pass over weights, state of optimizers and buffers, where they lie."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from detrain.adapters.api import Watched
from detrain.adapters.torch.guard.watched_tensors import Holders, find_watched
from detrain.adapters.torch.held_memory import unseen
from detrain.base.digest import Array

_LOOKED_AT_AGAIN: Final = (5, 7, 11)
"""Looks at which modules are looked for again: by then what a program makes in its first steps is there."""
_HALF: Final = (torch.float16, torch.bfloat16)


class TorchNorms:
    """See `detrain.adapters.api.Norms`."""

    def __init__(self) -> None:
        self._holders = Holders()
        self._held: list[object] = []
        self._watched: list[Watched] = []
        self._groups: list[list[Any]] = []
        """The tensors of each device and dtype."""
        self._order: list[int] = []
        """Where in `_watched` the tensors of the groups are, one after another."""
        self._masks: dict[str, bool] = {}
        self._looks = 0
        self._gradients: dict[int, tuple[str, Any]] | None = None
        self._together: tuple[object, list[Watched]] = (None, [])

    def watch_gradients(self) -> None:
        """Have the norm of all gradients that an optimizer is given among what is watched."""
        if self._gradients is None:
            self._gradients = {}
            register_optimizer_step_pre_hook(self._note_gradients)

    def norms(self) -> tuple[Sequence[Watched], Array]:
        """Return what is watched for hardware faults, and the Euclidean norms [tensor]."""
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
        """Return the value of what is watched, in float64; None for what has none, or is no more there."""
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
        """Return whether a tensor was infinite when it was first looked at: by intent, if that was before the first
        step. What is no number is by no one's intent, nor is a weight that was made later: a faulty step may have made
        it.
        """
        if watched.key not in self._masks:
            is_late_weight = self._looks > 1 and watched.group == "weights"
            is_infinite = not is_late_weight and bool(tensor.isinf().any() and not tensor.isnan().any())
            self._masks[watched.key] = is_infinite
        return self._masks[watched.key]

    def _note_gradients(self, optimizer: Any, _args: object, _kwargs: object) -> None:
        with unseen(), torch.no_grad():
            if getattr(optimizer, "found_inf", None) is not None and float(optimizer.found_inf):
                return  # the scaler has this step left out
            parts = [each.grad for group in optimizer.param_groups for each in group["params"] if each.grad is not None]
            parts = [part._values() if part.layout is torch.sparse_coo else part for part in parts]
            groups: dict[tuple[object, object], list[Any]] = {}
            for part in parts:
                if part.layout is torch.strided and part.is_floating_point():
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
