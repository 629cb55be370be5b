"""Puts faults into values that a step of PyTorch reads from tensors that outlive it, stores there or hands to Python:
run by test_torch_stores in a process of its own, which it changes. Prints the cases as JSON.

The oracle is one function that does the same as the step, and whose values can be struck by name.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import nn

from detrain.faults.drawing import draw_injection
from detrain.faults.models import model_named
from detrain.faults.plan import trial_rng
from detrain.faults.population.groups import Group, groups_of, use_of
from tests.faults.torch_by_hand import instruments

GROUPS = {Group.CC, Group.STORE_OP, Group.LD_OP}
X, ROWS = torch.tensor([[1.0, 2.0], [3.0, -1.0], [0.5, 0.25]]), torch.tensor([1, 4, 1])
PLACES = {
    "forward/model/load": "x",
    "forward/model/load#1": "w",
    "forward/model/add_": "store mean",
    "forward/model/load#2": "seen",
    "forward/model/copy_": "store seen",
    "forward/model/load#3": "table",
    "forward/model/load#4": "indices",
    "forward/model/embedding": "rows",
    "forward/model/_local_scalar_dense": "branch",
    "backward/model/load": "indices again",
    "backward/model/load#1": "x again",
    "optimizer/optimizer/add_": "store w",
    "optimizer/optimizer/add_#1": "store table",
}


class Model(nn.Module):
    """A model with a product, a table, a moving mean, a count, and a branch in Python."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(1.0, 7.0).reshape(2, 3) / 7)
        self.table = nn.Parameter(torch.arange(12.0).reshape(6, 2) / 5)
        self.register_buffer("mean", torch.full((3,), 0.25))
        self.register_buffer("seen", torch.tensor(5.0))

    def forward(self, x: Any, indices: Any) -> Any:
        """Return a loss."""
        h = torch.mm(x, self.weight)
        self.mean.add_(h.detach().sum(0))
        self.seen.copy_(self.seen + 1)
        rows = torch.nn.functional.embedding(indices, self.table)
        factor = 2.0 if h.detach().sum() > 0 else 3.0
        return (h * factor).square().sum() + rows.square().sum()


def program(model: Any, optimizer: Any) -> Any:
    """Run the step as programs write it."""
    optimizer.zero_grad()
    loss = model(X, ROWS)
    loss.backward()
    optimizer.step()
    return loss


def oracle(place: str = "", position: int = 0) -> dict[str, Any]:
    """Run the step by hand, with a 2 (for a bool, the other value) at one place."""

    def struck(here: str, value: Any) -> Any:
        value = value.clone().contiguous()
        if here == place:
            value.view(-1)[position] = 2
        return value

    held = {name: each.detach() for name, each in Model().state_dict().items()}
    h = struck("x", X) @ struck("w", held["weight"])
    mean = struck("store mean", held["mean"] + h.sum(0))
    seen = struck("store seen", struck("seen", held["seen"]) + 1)
    rows = struck("rows", struck("table", held["table"])[struck("rows index", struck("indices", ROWS))])
    factor = 3.0 if (place == "branch") == bool(h.sum() > 0) else 2.0
    loss = (h * factor).square().sum() + rows.square().sum()
    to_table = torch.zeros_like(held["table"]).index_add_(0, struck("indices again", ROWS), 2 * rows)
    weight = struck("store w", held["weight"] - 0.1 * (struck("x again", X).t() @ (2 * h * factor * factor)))
    table = struck("store table", held["table"] - 0.1 * to_table)
    return {"loss": loss, "weight": weight, "table": table, "mean": mean, "seen": seen}


def run(injection: Any = None) -> dict[str, Any]:
    """Return the state after the program."""
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, foreach=False)
    if injection is not None:
        instruments.select(injection)
        instruments.arm(0)
    loss = program(model, optimizer)
    if injection is not None:
        instruments.disarm()
    return {"loss": loss.detach()} | {name: each.detach() for name, each in model.state_dict().items()}


def loads_of_calls() -> dict[str, int]:
    """Return how often each load runs in a step that calls a layer with its batch, then with a value of the step."""
    layer, batch = nn.Linear(3, 3, bias=False), torch.ones(3, 3)
    instruments.begin_step()
    layer(layer(batch)).sum().backward()
    return {site.name: site.executions for site in instruments.sites() if site.op == "load" and site.stage == "forward"}


def main() -> None:
    """Do all cases."""
    wrong, seen = [], []
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, foreach=False)
    instruments.begin_step()
    program(model, optimizer)
    sites = instruments.sites()
    del model, optimizer  # or the next ones would have other names
    for site, operand in [(each, operand) for each in sites for operand in each.operands if operand in ("output", "index")]:
        dtype = site.operands["output"].dtype
        if not GROUPS & groups_of(site.op, dtype, use_of(site)):
            continue
        place = PLACES[site.name] + (" index" if operand == "index" else "")
        seen.append(place)
        model = model_named("FLIP:1" if dtype == "bool" else f"SET:2@{operand}")
        injection = draw_injection(site, model, 0, trial_rng(len(seen), 0))
        found, expected = run(injection), oracle(place, int(injection.array("positions")[0]))
        firing = instruments.firing()
        if firing is None or firing.count != 1:
            wrong.append(f"{site.name}: did not fire")
        wrong += [f"{site.name}: {name}" for name in found if not torch.allclose(found[name], expected[name], rtol=1e-5)]
        if all(torch.equal(found[name], each) for name, each in run().items()):
            wrong.append(f"{site.name}: nothing has come of it")
    wrong += [f"no {place}" for place in (*PLACES.values(), "rows index") if place not in seen]
    if (loads := loads_of_calls()) != {"forward/layer/load": 1, "forward/layer/load#1": 1}:
        wrong.append(f"the second call's first load is the weight's, not the batch's: {loads}")
    print(json.dumps({"wrong": wrong}))


if __name__ == "__main__":
    main()
