"""A small golden run, made by hand: sites of two kinds of steps, with shapes that can be counted."""

from __future__ import annotations

from pathlib import Path

from detrain.base.cursor import Address
from detrain.faults.exchange.kernels import Kernels
from detrain.faults.exchange.listed import ListedPlan
from detrain.faults.exchange.lists import parse_name, plan_of_lines, read_list
from detrain.faults.population.profile import Profile, profile_of
from detrain.faults.sites import OperandShape, Role, Site, Stage, memory_site


def site(
    op: str,
    shape: tuple[int, ...],
    *,
    stage: Stage = "forward",
    dtype: str = "float32",
    layer: str = "net",
    executions: int = 1,
    is_alive: bool = True,
    role: Role = "",
    replicas: int = 1,
    attributes: dict[str, list[int] | str | bool] | None = None,
    **operands: tuple[int, ...],
) -> Site:
    """Return a site whose output has a shape, with other operands by name."""
    shapes = {name: OperandShape(index, each, dtype) for index, (name, each) in enumerate(operands.items())}
    return Site(
        name=f"{stage}/{layer}/{op}",
        layer=layer,
        op=op,
        stage=stage,
        role=role,
        operands=shapes | {"output": OperandShape(0, shape, dtype)},
        executions=executions,
        is_alive=is_alive,
        replicas=replicas,
        attributes=attributes or {},
        signature=f"{op}-{stage}",
    )


def sites(batch: int) -> list[Site]:
    """Return the sites of a step with a batch of a size."""
    return [
        site("addmm", (batch, 6), input=(batch, 5), weight=(5, 6)),
        site("relu", (batch, 6)),
        site("eq", (batch,), dtype="bool"),
        site("cat", (batch, 12), executions=3),
        site("mm", (5, 6), stage="backward", role="grad_wt", input=(5, batch), weight=(batch, 6)),
        site("add_", (5, 6), stage="optimizer"),
        site("add_", (), stage="optimizer", dtype="int64", layer="steps"),
        site("exp", (batch, 100), is_alive=False),
        memory_site("net.weight", "weight", (5, 6), "float32"),
        memory_site("steps", "slot", (), "int64"),
    ]


STEPS: list[Address] = [(0, epoch, batch) for epoch in range(3) for batch in range(4)]
"""Three epochs of four batches; the last of each is a short one."""


def profile() -> Profile:
    """Return the profile of the run."""
    whole = [step for step in STEPS if step[2] < 3]
    short = [step for step in STEPS if step[2] == 3]
    return profile_of("toy", (), [((0, 0, 0), sites(8), whole), ((0, 0, 3), sites(3), short)])


def plan_of_list(path: Path, kernels: Kernels, after: int | None = None) -> ListedPlan:
    """Return the list in a file as a plan, against the profile."""
    name = parse_name(path)
    return plan_of_lines(name, read_list(path), kernels, profile().digest, group=name.group, after=after, path=path)
