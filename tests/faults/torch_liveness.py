"""The first use, in a step of PyTorch, of each tensor that outlives it, as the adapter says and as flipping each bit
shows: run by test_torch in a process of its own. Prints both as JSON.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import nn

from tests.faults.brute_force import accesses
from tests.faults.torch_by_hand import instruments


class Model(nn.Module):
    """A model with variables of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(1.0, 7.0).reshape(2, 3) / 7)
        self.idle = nn.Parameter(torch.ones(2))
        for name, value in (("last", 3), ("part", 5), ("columns", 6), ("mean", 3), ("drawn", 2), ("out", 2), ("count", 1)):
            self.register_buffer(name, torch.arange(float(value)).reshape((2, 3) if name == "columns" else (value,)))
        self.register_buffer("bytes", torch.zeros(3, dtype=torch.uint8))

    def forward(self, x: Any) -> Any:
        """Return a loss; overwrite some variables whole, some in part, and read others first."""
        h = x @ self.weight
        with torch.no_grad():
            self.last.copy_(h[0])
            self.part[1:3] = h[0, :2]
            self.columns[:, 1].fill_(2.0)
            self.mean.mul_(0.9).add_(h.sum(0) + self.last + self.part[2:5].sum() + self.columns.t()[1:].sum())
            self.drawn.normal_(generator=torch.Generator().manual_seed(3))
            torch.mul(self.drawn, 2.0, out=self.out)
            self.count.add_(1)
            self.bytes[0] = 1
        return h.square().sum()


model = Model()
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)


def program() -> float:
    """Run a step; return its loss."""
    optimizer.zero_grad()
    loss = model(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    loss.backward()
    optimizer.step()
    return float(loss)


def variables() -> dict[str, Any]:
    """Return the variables, by the names of sites in memory."""
    held = {f"model.{name}": each for name, each in model.state_dict().items()}
    return held | {"optimizer.state.0.momentum_buffer": optimizer.state[model.weight]["momentum_buffer"]}


def step(before: Any) -> Any:
    """Run a step from other values; return its loss as bits, and the variables after it."""
    for name, each in variables().items():
        each.copy_(torch.from_numpy(before[name]))
    said = torch.tensor(program()).view(torch.int32).item()
    return said, {name: each.detach().numpy().copy() for name, each in variables().items()}


def main() -> None:
    """Print both results."""
    program()  # makes the slots
    initial = {name: each.detach().clone() for name, each in variables().items()}
    instruments.begin_step()
    program()
    instruments.sites()
    said = {site.name.removeprefix("memory/"): site.access for site in instruments.memory()}
    found = {name: None if each is None else (each.read, each.overwritten, each.untouched) for name, each in said.items()}
    print(json.dumps({"said": found, "brute": accesses({name: each.numpy() for name, each in initial.items()}, step)}))


if __name__ == "__main__":
    main()
