"""Tensors that are spread over the processes of a job (`DTensor`: FSDP2, tensor parallelism) as leaves of objects.

Each process keeps its own part: its shard, as an ordinary tensor, and, as data, the layout of all shards: the mesh, the
placements, the shape of the whole. No process asks another one. A tensor that the program has is put back in place; its
shard, which has an address, identifies it. A tensor that the loop has made (a moment of Adam) is made anew over a mesh
that the process has.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterable
from typing import Any, Final

import torch

from detrain.adapters.torch.distributed.fully_sharded import FullySharded
from detrain.adapters.torch.held_memory import is_spread

TENSOR: Final = "torch.spread"
MESH: Final = "torch.mesh"
_DRAWN: Final = "what draws random numbers for DTensors on GPUs (made in the loop)"


class SpreadTensors:
    """Describes spread tensors and their meshes, and makes them again."""

    def __init__(self, fully_sharded: FullySharded) -> None:
        self._fully_sharded = fully_sharded
        self._by_shard: dict[int, weakref.ref[Any]] = {}
        """The tensors met so far, by the identity of their shards."""
        self._random: object = None

    def begin_phase(self) -> None:
        """Note that a loop is entered."""
        self._random = _random()

    def uncaptured(self) -> list[str]:
        """Return a description of the object that draws random numbers for spread tensors on GPUs, if the loop has made
        it: when it is made, it takes the random streams of rank 0 for all ranks.
        """
        return [_DRAWN] if _random() is not self._random else []

    def parts(self, value: Any) -> tuple[str, list[object]] | None:
        """Return the kind and parts of a mesh, or of a spread tensor without a graph; None for any other object."""
        mesh = _find("torch.distributed.device_mesh", "DeviceMesh")
        if mesh is not None and type(value) is mesh:
            return MESH, _mesh_parts(value)
        if not is_spread(value) or value.grad_fn is not None:
            return None
        layout = _layout(value)
        if layout is None:
            return None
        self._by_shard[id(value._local_tensor)] = weakref.ref(value)
        held = (value.requires_grad, value.grad, value._backward_hooks, value._post_accumulate_grad_hooks)
        unreduced = self._fully_sharded.unreduced(value)
        return TENSOR, [value._local_tensor, value.device_mesh, layout, *held, unreduced, dict(vars(value))]

    def remake(self, kind: str, parts: list[Any], current: Any) -> object | None:
        """Return the tensor or mesh that `parts` described: the existing one with its old content, else a new one."""
        if kind == MESH:
            return _mesh(parts, current)
        shard, mesh, layout, requires_grad, grad, backward, accumulated, unreduced, attributes = parts
        if shard is None or mesh is None:
            return None
        found = self._there(shard, layout, current)
        if found is None:
            found = _made(shard, mesh, layout)
        if found is None:
            return None
        if found.requires_grad != requires_grad:
            found.requires_grad_(requires_grad)
        if found.grad is not grad:
            found.grad = grad
        if found._backward_hooks is not backward:
            found._backward_hooks = backward
        if found._post_accumulate_grad_hooks is not accumulated:
            found._post_accumulate_grad_hooks = accumulated
        vars(found).update(attributes)
        for gone in vars(found).keys() - attributes.keys():
            del vars(found)[gone]
        return found if self._fully_sharded.set_unreduced(found, unreduced) else None

    def _there(self, shard: Any, layout: list[Any], current: Any) -> Any:
        """Return the process's tensor with this shard and layout, or None."""
        known = self._by_shard.get(id(shard))
        candidates: list[Any] = [current, None if known is None else known()]
        for each in candidates:
            if is_spread(each) and each._local_tensor is shard and _layout(each) == layout:
                return each
        return None


def _layout(value: Any) -> list[object] | None:
    """Return the layout of a tensor's shards, as data; None if detrain does not know how to make it again."""
    placements = [_placement(each) for each in value._spec.placements]
    if None in placements:
        return None
    spec = value._spec
    plain = type(spec)(spec.mesh, spec.placements, tensor_meta=spec.tensor_meta)
    if getattr(spec, "shard_order", None) != getattr(plain, "shard_order", None):
        return None
    return [placements, list(value.shape), list(value.stride())]


def _placement(placement: Any) -> list[object] | None:
    name = type(placement).__name__
    if name == "Shard":
        return [name, placement.dim]
    if name == "_StridedShard":
        return [name, placement.dim, placement.split_factor]
    if name == "Partial":
        return [name, placement.reduce_op]
    return [name] if name == "Replicate" else None


def _made(shard: Any, mesh: Any, layout: list[Any]) -> Any:
    """Return a new tensor of a shard, without asking the other processes."""
    placements, shape, stride = layout
    kinds = sys.modules.get("torch.distributed.tensor.placement_types")
    spec, meta = (_find("torch.distributed.tensor._dtensor_spec", name) for name in ("DTensorSpec", "TensorMeta"))
    cls = _find("torch.distributed.tensor", "DTensor")
    if kinds is None or spec is None or meta is None or cls is None:
        return None
    made: list[Any] = []
    for name, *values in placements:
        factor = {"split_factor": values.pop()} if name == "_StridedShard" else {}
        made.append(getattr(kinds, name)(*values, **factor))
    how = spec(mesh, tuple(made), tensor_meta=meta(torch.Size(shape), tuple(stride), shard.dtype))
    return cls(shard, how, requires_grad=False)


def _mesh_parts(mesh: Any) -> list[object]:
    names = mesh.mesh_dim_names
    return [mesh.device_type, mesh.mesh.tolist(), None if names is None else list(names), _groups(mesh)]


def _groups(mesh: Any) -> list[str]:
    """Return the names of the process groups along a mesh: they follow the order of creation, alike in each run."""
    try:
        return [str(mesh.get_group(dimension).group_name) for dimension in range(mesh.ndim)]
    except RuntimeError:  # this process is not in it
        return []


def _mesh(parts: list[Any], current: Any) -> object | None:
    """Return the process's mesh with a description, or None; names of groups tell it from others of the same kind."""
    cls = _find("torch.distributed.device_mesh", "DeviceMesh")
    if cls is None:
        return None
    live: Iterable[Any] = (each for each in gc.get_objects() if type(each) is cls)
    candidates = [current] if type(current) is cls and _mesh_parts(current) == parts else live
    return next((each for each in candidates if _mesh_parts(each) == parts), None)


def _random() -> object:
    return _find("torch.distributed.tensor._random", "_rng_tracker")


def _find(module: str, name: str) -> Any:
    """Return an attribute of a module that the program has imported, or None."""
    return getattr(sys.modules.get(module), name, None)
