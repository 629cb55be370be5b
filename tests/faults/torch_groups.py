"""Hits one site of each group of instructions that a step of PyTorch has: run by test_groups_hit in a process of its
own. Prints as JSON, by group, the number of its sites and how often the chosen one was hit.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from detrain.faults.drawing import draw_injection
from detrain.faults.models import model_named
from detrain.faults.plan import trial_rng
from detrain.faults.population.groups import Group, groups_of, use_of
from detrain.faults.sites import Site
from tests.faults.torch_by_hand import instruments


class Model(nn.Module):
    """A model that computes in floats of both widths and in integers, and branches."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.conv, self.norm = nn.Embedding(9, 4), nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3)
        self.head = nn.Linear(36, 5, dtype=torch.float64)
        self.register_buffer("counts", torch.arange(4))

    def forward(self, indices: Any) -> Any:
        """Return a loss."""
        rows = functional.relu(self.norm(self.conv(torch.cat([self.rows(indices), self.rows(indices)], 1)[:, None])))
        self.counts.add_(torch.mm(self.counts.reshape(2, 2), self.counts.reshape(2, 2)).reshape(-1) % 7)
        y = self.head(rows.reshape(len(rows), -1).double()) + 0.5
        if (y.detach() > 0).any():
            y = y * 2
        return y.square().mean()


INDICES = torch.tensor([[1, 2, 3, 4], [0, 8, 7, 6]])


def program(model: Any, optimizer: Any) -> None:
    """A step."""
    optimizer.zero_grad()
    model(INDICES).backward()
    optimizer.step()


def made() -> tuple[Any, Any]:
    """Return a model and an optimizer that have done a step."""
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    program(model, optimizer)
    return model, optimizer


def main() -> None:
    """Do all groups."""
    model, optimizer = made()
    instruments.begin_step()
    program(model, optimizer)
    of_group: dict[Group, list[Site]] = {}
    for site in instruments.sites():
        for group in groups_of(site.op, site.operands["output"].dtype, use_of(site)):
            of_group.setdefault(group, []).append(site)
    said = {}
    for group, found in of_group.items():
        site = found[len(found) // 2]
        del model, optimizer  # or the next ones would have other names
        model, optimizer = made()
        instruments.select(draw_injection(site, model_named("FLIP:1"), 0, trial_rng(int(group), 0)))
        instruments.arm(0)
        program(model, optimizer)
        instruments.disarm()
        firing = instruments.firing()
        changed = firing is not None and firing.golden != firing.injected
        said[group.label] = (len(found), firing.count if firing is not None and changed else 0)
    print(json.dumps(said))


if __name__ == "__main__":
    main()
