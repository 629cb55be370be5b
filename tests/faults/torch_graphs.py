"""Steps that PyTorch has compiled, with faults put in by the adapter. Run by test_torch in a process of its own, which
it changes: prints JSON.

AOTAutograd's graphs have the ops of the same steps in eager code: so they are compared with the steps that
`torch_by_hand` computes op after op, and their sites with those of eager code.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch._inductor import config
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from detrain.adapters.torch.faults import compiled as of_compiled
from detrain.base.errors import FaultInvalid
from detrain.faults.drawing import draw_injection
from detrain.faults.models import PUBLISHED, model_named
from detrain.faults.plan import trial_rng
from detrain.faults.sites import Site
from tests.faults import torch_by_hand
from tests.faults.torch_by_hand import (
    Images,
    Step,
    Words,
    adapter,
    follow_compiled,
    image_state,
    image_step,
    image_step_by_hand,
    instruments,
    print_wrong,
    run_by_hand,
    run_program,
    tried,
    word_state,
    word_step,
    word_step_by_hand,
)

follow_compiled()
AOT = {"backend": "aot_eager"}


def words() -> Words:
    """A step whose model is compiled."""
    torch._dynamo.reset()
    it = Words("for")
    it.net.compile(**AOT)
    return it


def images() -> Images:
    """A step with convolutions, one of them with a stride and padding, whose model is compiled."""
    torch._dynamo.reset()
    it = Images(is_plain=True)
    it.run = torch.compile(it.model, **AOT)
    return it


STEPS = {
    "compiled words, AdamW for": Step(words, word_step, word_step_by_hand, word_state),
    "compiled images, SGD": Step(images, image_step, image_step_by_hand, image_state),
}


class Block(nn.Module):
    """A module; the model has several of this class."""

    def __init__(self, *, breaks: bool) -> None:
        super().__init__()
        self.lin, self.norm, self.breaks = nn.Linear(8, 8), nn.LayerNorm(8), breaks

    def forward(self, x: Any) -> Any:
        """Return the same form."""
        x = torch.relu(self.lin(x)) * 2
        if self.breaks:
            torch._dynamo.graph_break()
        return torch.tanh(self.norm(x) * 3)


class Net(nn.Module):
    """A model with blocks, and batch normalisation, which stores."""

    def __init__(self, *, breaks: bool = False) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)
        self.blocks = nn.ModuleList([Block(breaks=breaks) for _ in range(2)])

    def forward(self, x: Any) -> Any:
        """Return scores."""
        x = self.norm(self.first(x))
        for block in self.blocks:
            x = block(x)
        return self.last(x)


class Training:
    """A program in one of several ways."""

    def __init__(self, way: str) -> None:
        torch._dynamo.reset()
        torch.manual_seed(4)
        self.net = Net(breaks=way == "graph breaks")
        self.optimizer: Any = torch.optim.AdamW(self.net.parameters(), 0.01)
        self.x, self.y = torch.randn(8, 6), torch.randint(0, 3, (8,))
        self.loss: Any = self.plain_loss
        self.step: Any = self.optimizer.step
        if way in ("a module", "graph breaks", "any size"):
            self.net.compile(**AOT, dynamic=True if way == "any size" else None)
        elif way == "blocks":
            for block in self.net.blocks:
                block.compile(**AOT)
        elif way == "a loss and a step":
            self.loss, self.step = (torch.compile(each, **AOT) for each in (self.plain_loss, self.optimizer.step))

    def plain_loss(self, x: Any, y: Any) -> Any:
        """Return the loss."""
        return functional.cross_entropy(self.net(x), y)

    def one(self, rows: int = 8) -> None:
        """Train a step."""
        self.optimizer.zero_grad()
        self.loss(self.x[:rows], self.y[:rows]).backward()
        self.step()


def listed(training: Training) -> list[Site]:
    """Return the sites of its next step."""
    instruments.begin_step()
    training.one()
    return list(instruments.sites())


def each_site_fires(way: str) -> None:
    """Each fault fires once, at its site, in a step that without it is the program's own."""
    training = Training(way)
    training.one()
    sites = listed(training)
    assert {site.stage for site in sites} == {"forward", "backward", "optimizer"}, way
    for number, site in enumerate(sites):
        for run in range(site.executions):
            instruments.select(draw_injection(site, model_named("BIT:0"), 0, trial_rng(number, 2)))
            instruments.arm(run)
            training.one()
            instruments.disarm()
            firing = instruments.firing()
            assert firing is not None, site.name
            assert (firing.count, firing.golden != firing.injected) == (1, True), (site.name, firing)
            assert instruments.is_unarmed_equal() in (None, True), site.name


def ways() -> None:
    for way in ("a module", "graph breaks", "blocks", "any size", "a loss and a step"):
        each_site_fires(way)


def names_are_those_of_eager_code() -> None:
    """Sites have the names of eager code if the op is the same: not batch normalisation and compiled optimizers."""
    training = Training("eager")
    training.one()
    eager = listed(training)
    del training
    for way in ("a module", "blocks"):
        training = Training(way)
        training.one()
        sites = {site.name: site for site in listed(training)}
        del training  # or the next one would have another name
        assert not [site.name for site in eager if site.name not in sites and site.layer != "training.net.norm"]
        for site in eager:
            if site.name in sites and site.is_contraction:
                assert sites[site.name].role == site.role, site.name
                assert sites[site.name].operands == site.operands, site.name


def several_at_once() -> None:
    """Several faults at once, in different tensors and stages, in graphs and beside them, act as computed by hand."""
    step, counts = STEPS["compiled words, AdamW for"], Counter[str]()
    it = step.make()
    instruments.begin_step()
    step.program(it)
    sites = [site for site in instruments.sites() if site.op not in ("load", "copy_", "_local_scalar_dense")]
    del it  # or the next one would have another name
    for number in range(12):
        rng = trial_rng(number, 9)
        chosen = [sites[int(index)] for index in rng.permutation(len(sites)) if ":" not in sites[int(index)].name][:3]
        models = [("RD", "INPUT", "WT_16")[int(rng.integers(3))] if site.is_contraction else "RD" for site in chosen]
        injections = [draw_injection(site, PUBLISHED[model], 0, rng) for site, model in zip(chosen, models, strict=True)]
        found, (expected, _op) = run_program(step, *injections), run_by_hand(step, *injections)
        assert found == expected, ([each.site for each in injections], [key for key in found if found[key] != expected[key]])
        assert instruments.firing().count == 1
        assert instruments.is_unarmed_equal() in (None, True)
        counts.update(site.stage for site in chosen)
    assert min(counts[stage] for stage in ("forward", "backward", "optimizer")) > 4, counts


def another_size() -> None:
    """A fault fires in a smaller last batch, for which all is compiled again; one for another size does not."""
    training = Training("a module")
    training.one()
    site = next(site for site in listed(training) if site.name.endswith("net.first/addmm"))
    instruments.select(draw_injection(site, PUBLISHED["RD"], 0, trial_rng(0, 0)))
    instruments.arm(0)
    training.one(rows=5)
    instruments.disarm()
    assert (instruments.firing().count, instruments.firing().misfits) == (0, 1)
    instruments.begin_step()
    training.one(rows=5)
    site = next(site for site in instruments.sites() if site.name.endswith("net.first/addmm"))
    assert site.operands["output"].shape == (5, 8)
    instruments.select(draw_injection(site, PUBLISHED["RD"], 0, trial_rng(0, 0)))
    instruments.arm(0)
    training.one(rows=5)
    instruments.disarm()
    assert instruments.firing().count == 1


def another_graph() -> None:
    """A fault at a name that belongs to another op now does not fire."""
    training = Training("a module")
    training.one()
    site = next(site for site in listed(training) if site.name.endswith("net.blocks.0/relu"))
    training.net.blocks[0].forward = lambda x: torch.relu(x.abs() + training.net.blocks[0].lin(x))
    torch._dynamo.reset()
    instruments.select(draw_injection(site, PUBLISHED["RD"], 0, trial_rng(0, 0)))
    instruments.arm(0)
    training.one()
    instruments.disarm()
    assert instruments.firing() is None


def nothing_else_is_changed() -> None:
    """Steps in which sites are listed give the program's own results and random numbers."""

    def trained(*, is_watched: bool) -> tuple[Any, ...]:
        torch._dynamo.reset()
        torch.manual_seed(9)
        net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
        run = torch.compile(net)
        for turn in range(4):
            if is_watched and turn in (0, 2):
                instruments.begin_step()
            loss = run(torch.randn(8, 6)).sum()
            loss.backward()
            if is_watched and turn in (0, 2):
                assert len(instruments.sites()) > 20
        assert not torch._C._len_torch_dispatch_stack()
        assert not torch.nn.modules.module._has_any_global_hook()
        return loss.item(), torch.rand(()).item(), *(each.tolist() for each in (*net.state_dict().values(), net[0].weight.grad))

    assert trained(is_watched=True) == trained(is_watched=False)


def what_is_refused() -> None:
    """Programs whose graphs cannot be watched are refused before the step, with the reason."""

    def refused(*reasons: str) -> None:
        for ask in (instruments.begin_step, lambda: instruments.arm(0)):
            with pytest.raises(FaultInvalid) as found:
                ask()
            assert all(reason in found.value.what for reason in reasons), found.value.what

    watch = instruments._compiled
    for name, why in (("eager", "its backend (eager) is given no graph"), ("mine", "its backend (mine) is given no graph")):

        def mine(graph: Any, _inputs: Any) -> Any:
            return graph.forward

        torch.compile(lambda x: x * 2, backend=mine if name == "mine" else name)(torch.ones(2))
        refused("torch.compile", why)
        watch._obstacle = ""

    with FakeTensorMode(), config.patch({"triton.cudagraphs": True}):
        on_gpu = [torch.empty(2, device="cuda")]
    assert of_compiled._obstacle(torch.fx.symbolic_trace(lambda x: x), on_gpu) == ""
    with config.patch({"triton.cudagraphs": True}):
        assert "CUDA graphs" in of_compiled._obstacle(torch.fx.symbolic_trace(lambda x: x), on_gpu)

    with torch._dynamo.compiled_autograd._enable(lambda graph: graph):
        refused("compiled autograd")

    history, watch._history = watch._history, SimpleNamespace(is_followed=False)
    refused("PyTorch 2.13 to 2.15 alone")
    watch._history, watch._obstacle = history, ""


def going_back() -> None:
    """Going back undoes later compilations: else a later graph for any size would serve a size with its own graph."""

    def state() -> Any:
        return json.loads(json.dumps(adapter._compiled.state()))

    training = Training("a module")
    training.one()
    put_back, before = adapter.rollback.hold(on_host=False), state()
    for rows in (5, 8):
        training.one(rows)
    assert state() != before
    put_back()
    assert state() == before
    training.one()
    assert state() == before


TRIED: list[Callable[[], None]] = [
    names_are_those_of_eager_code,
    several_at_once,
    another_size,
    another_graph,
    going_back,
    what_is_refused,
]
LONG: list[Callable[[], None]] = [ways, nothing_else_is_changed]


def main(what: str) -> None:
    """Try steps by hand, each site with every n-th model for a number n; or the other tests: `short`, `long`."""
    if what.isdecimal():
        wrong = {name: list(tried(name, step, list(PUBLISHED), every=int(what))) for name, step in STEPS.items()}
        print(json.dumps({"wrong": wrong, "tried": torch_by_hand.counts}))
        return
    print_wrong(TRIED if what == "short" else LONG)


if __name__ == "__main__":
    main(*sys.argv[1:])
