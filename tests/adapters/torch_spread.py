"""Trainings with tensors spread over the processes of a job, as one of six ranks has them: no data are sent."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.adapters.cut_world import Training, cases

CASES, case = cases()

WORLD, RANK = 6, 4


def start() -> None:
    """Make this process one of six ranks that has just started."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=RANK, world_size=WORLD)


def mesh() -> DeviceMesh:
    start()
    return init_device_mesh("cpu", (2, 3), mesh_dim_names=("outer", "inner"))


def spread(over: DeviceMesh, placements: list[Placement], *shape: int, seed: int = 1) -> DTensor:
    """Return a tensor whose shard here has this shape."""
    shard = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return DTensor.from_local(shard, over, placements, run_check=False)


def descend(w: Any, turn: int) -> None:
    """One step of `w.optimizer`, by gradients that are drawn."""
    for number, parameter in enumerate(w.optimizer.param_groups[0]["params"]):
        shard = parameter.to_local()
        drawn = torch.randn(shard.shape, generator=torch.Generator().manual_seed(10 * turn + number))
        parameter.grad = DTensor.from_local(
            drawn, parameter.device_mesh, parameter.placements, run_check=False, shape=parameter.shape, stride=parameter.stride()
        )
    w.optimizer.step()


def weights(w: Any) -> dict[str, DTensor]:
    w.mesh = mesh()
    inner = w.mesh["inner"]
    return {
        "rows": spread(inner, [Shard(0)], 3, 4),
        "columns": spread(inner, [Shard(1)], 4, 2, seed=2),
        "both": spread(w.mesh, [Shard(0), Shard(1)], 2, 3, seed=3),
        "strided": spread(w.mesh, [_StridedShard(0, split_factor=3), Shard(0)], 2, 3, seed=4),
        "hybrid": spread(w.mesh, [Replicate(), Shard(0)], 2, seed=5),
        "empty": spread(inner, [Shard(0)], 0, 2, seed=6),
    }


@case()
def an_optimizer_that_is_met_before_its_weights(w: Any) -> Training:
    held = {name: torch.nn.Parameter(each) for name, each in weights(w).items()}
    w.optimizer = torch.optim.AdamW(held.values(), 0.1)
    w.optimizer.state.update({held["rows"]: {}})
    w.held = held
    while True:
        descend(w, (yield))


@case()
def weights_that_share_their_memory(w: Any) -> Training:
    w.mesh = mesh()
    padded = torch.zeros(4, 3)  # as FSDP2 pads the last shard of an uneven division
    parts = padded.narrow(0, 0, 3)
    w.padded = padded.view(-1)
    w.weight = torch.nn.Parameter(DTensor.from_local(parts, w.mesh["inner"], [Shard(0)], run_check=False))
    w.alias = w.weight
    w.optimizer = torch.optim.SGD([w.weight], 0.1, momentum=0.9)
    while True:
        descend(w, (yield))


@case()
def copies_that_the_loop_makes(w: Any) -> Training:
    w.weights = weights(w)
    w.average, w.norms = {}, []
    w.total = spread(w.mesh["inner"], [Partial("sum")], 1)
    while True:
        turn = yield
        for name, each in w.weights.items():
            each.add_(0.5 * (turn + 1))
            w.average[name] = w.average[name].lerp(each, 0.1) if name in w.average else each.clone()
            w.weights[name].seen = turn
        w.total = w.total * 2
        w.norms.append(w.weights["rows"].to_local().norm())


@case()
def weights_that_are_frozen_and_hooked(w: Any) -> Training:
    w.weight = torch.nn.Parameter(spread(mesh(), [Replicate(), Shard(0)], 2, 3))
    w.calls = []
    calls = w.calls
    w.handle = w.weight.register_post_accumulate_grad_hook(lambda _parameter: calls.append(1))
    while True:
        turn = yield
        w.weight.requires_grad_(turn % 2 == 1)
        if turn == 4:
            w.handle.remove()


@case(lost=("loss",), is_refused=True)
def what_was_computed(w: Any) -> Training:
    w.weight = torch.nn.Parameter(spread(mesh(), [Replicate(), Shard(0)], 2, 3))
    w.loss = None
    while True:
        turn = yield
        w.loss = w.weight * turn
