"""Programs that Inductor compiles, with faults put in by the adapter; and the same programs, in which a pass of their
own puts an op of their own behind the node that is hit. Run by test_torch in a process of its own, which it changes:
prints JSON.

The node of a site is found here independently: the k-th of its op that a module ran in a pass, in the graph's order.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
from torch import nn
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.nn import functional

from detrain.faults.drawing import draw_injection
from detrain.faults.experiment import Injection
from detrain.faults.models import PUBLISHED
from detrain.faults.plan import trial_rng
from detrain.faults.sites import Site
from tests.faults.torch_by_hand import follow_compiled, instruments

SKIPPED = ("load", "copy_", "_local_scalar_dense")
"""Ops of sites that are no node, or an input of one."""
STEPS, HIT = 4, 2


class Block(nn.Module):
    """A part with a module that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mix, self.drop = nn.LayerNorm(8), nn.Linear(8, 8), nn.Dropout(0.2)

    def forward(self, x: Any) -> Any:
        """Return the same form."""
        x = x + self.drop(functional.gelu(self.mix(self.norm(x))))
        return torch.tanh(self.mix(x))


class Net(nn.Module):
    """A small classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.block, self.last = nn.Linear(6, 8), Block(), nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        """Return scores."""
        return self.last(self.block(torch.relu(self.first(x))))


class Training:
    """A program: some steps, of which one may be hit by hand."""

    def __init__(self, *, has_compiled_step: bool, is_whole: bool) -> None:
        torch._dynamo.reset()
        torch.manual_seed(3)
        self.has_compiled_step, self.is_whole = has_compiled_step, is_whole
        self.net = Net()
        self.optimizer: Any = torch.optim.AdamW(self.net.parameters(), 0.01)
        self.rows, self.labels = torch.randn(STEPS, 8, 6), torch.randint(0, 3, (STEPS, 8))
        self.step = torch.compile(self.optimizer.step) if has_compiled_step else self.optimizer.step
        self.loss: Any = torch.compile(self.plain_loss) if is_whole else self.plain_loss
        if not is_whole:
            self.net.compile()

    def plain_loss(self, x: Any, y: Any) -> Any:
        return functional.cross_entropy(self.net(x), y)

    def one(self, turn: int) -> Any:
        """Train a step; return its loss."""
        self.optimizer.zero_grad()
        loss = self.loss(self.rows[turn], self.labels[turn])
        loss.backward()
        self.step()
        return loss

    def state(self) -> dict[str, bytes]:
        """Return the weights and the optimizer's state as bytes."""
        kept = {f"{k} {n}": v for n, p in self.net.named_parameters() for k, v in self.optimizer.state[p].items()}
        return {name: value.detach().numpy().tobytes() for name, value in {**self.net.state_dict(), **kept}.items()}


End = tuple[str, Any]
"""The losses of a program, and the state that it returns."""


def end_of(training: Any, losses: list[Any]) -> End:
    """Return the end of a program."""
    return repr([loss.item() for loss in losses]), training.state()


# By hand.


INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""The dtypes of integers, by the size of an element in bytes."""


@torch.library.custom_op("by_hand::put", mutates_args=())
def put(value: torch.Tensor) -> torch.Tensor:
    """Return a copy, with the fault in it during the step that is hit."""
    found = value.clone()
    if Hand.is_now and Hand.injection is not None:
        Hand.runs += 1
        injection = Hand.injection
        assert tuple(value.shape) == injection.shape, (injection.site, value.shape)
        whole = value.detach().contiguous().clone()
        bits = whole.reshape(-1).view(INTEGERS[whole.itemsize]).numpy()  # NumPy has no bfloat16
        before = bits.copy()
        arrays = [injection.array(name) for name in ("positions", "sources", "keep", "flip")]
        for position, source, keep, flip in zip(*arrays, strict=True):
            bits[position] = (before[source] & keep) ^ flip
        found.copy_(whole)
    return found


@put.register_fake
def _(value: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(value)


class Hand(CustomGraphPass):
    """A pass that puts the op behind the node of a site, in graphs that Inductor is about to compile."""

    injection: Injection | None = None
    is_now = False
    runs = 0
    done: ClassVar[set[Any]] = set()
    outside = ""
    """The layer of nodes that no module in the graph runs."""

    def begin(self, training: Any) -> None:
        """Take a program, before its first step."""
        Hand.outside = "loss" if training.is_whole else "training.net"

    def uuid(self) -> Any:
        """Return the key by which the cache of kernels distinguishes this pass."""
        return get_hash_for_files((__file__,), Hand.injection.site if Hand.injection is not None else "")

    def __call__(self, graph: Any) -> None:
        """Change a graph."""
        assert Hand.injection is not None
        nodes = list(graph.nodes)
        if not any(
            str(node.meta.get("partitioner_tag")).startswith("is_") for node in nodes
        ):  # Inductor has changed the nodes' order before
            nodes.sort(key=lambda node: int(node.name.rpartition("_")[2]) if node.name[-1].isdigit() else 0)
        is_backward = any(node.name.startswith("tangents") for node in nodes)
        site, _, number = Hand.injection.site.partition(":")
        turns: Counter[tuple[str, str]] = Counter()
        for node in nodes:
            name = str(node.target).split(".")[1] if node.op == "call_function" and "." in str(node.target) else ""
            tag = str(node.meta.get("partitioner_tag")).removeprefix("is_")
            stage = "optimizer" if tag == "None" else tag
            call, layer = self.call_of(node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}, stage)
            if not name or layer is None or (is_backward and stage == "forward"):
                continue
            base = f"{stage}/{layer}/{name}"
            turn = turns[call, base]
            turns[call, base] += 1
            if (f"{base}#{turn}" if turn else base) != site or graph in Hand.done:
                continue
            Hand.done.add(graph)  # a module that is called twice runs the op twice: the first run is hit
            outputs = [user for user in node.users if isinstance(node.meta["val"], tuple) and user.args[1] == int(number or 0)]
            target = outputs[0] if outputs else node
            with graph.inserting_after(target):
                new = graph.call_function(torch.ops.by_hand.put.default, (target,))
            new.meta = dict(target.meta)
            target.replace_all_uses_with(new, delete_user_cb=lambda user, new=new: user is not new)

    def call_of(self, stack: dict[str, tuple[str, Any]], stage: str) -> tuple[str, str | None]:
        """Return the call of the module that ran a node, and the module's name; None: the node is of no site."""
        key, (path, _class) = list(stack.items())[-1] if stack else ("", ("", None))
        layer = path.rpartition("net")[2] if "net" in path else path.partition("']")[2]
        return key, f"training.net{layer}" if stack else "training.optimizer" if stage == "optimizer" else Hand.outside


def by_hand(make: Callable[[], Any], injection: Injection, by: Hand, hit: int) -> tuple[End, int]:
    """Return the end of the program with a fault that it puts in itself in a step, and how often it did."""
    Hand.injection, Hand.runs = injection, 0
    with config.patch(post_grad_custom_pre_pass=by):
        training = make()
        by.begin(training)
        losses = []
        for turn in range(STEPS):
            Hand.is_now = turn == hit
            losses.append(training.one(turn))
        return end_of(training, losses), Hand.runs


# By the adapter.


def trained(
    make: Callable[[], Any], hit: int, injection: Injection | None = None, *, is_listed: bool = False
) -> tuple[End, list[Site]]:
    """Return the end of the program, and the sites of the step that is hit."""
    training, losses, sites = make(), [], list[Site]()
    for turn in range(STEPS):
        if turn == hit and injection is not None:
            instruments.select(injection)
            instruments.arm(0)
        if turn == hit and is_listed:
            instruments.begin_step()
        losses.append(training.one(turn))
        if turn == hit and injection is not None:
            instruments.disarm()
        if turn == hit and is_listed:
            sites = instruments.sites()
    return end_of(training, losses), sites


def wrong(make: Callable[[], Training], *, every: int, counts: Counter[str]) -> Iterator[str]:
    """Yield the differences at every `every`th site of a program."""
    golden, _none = trained(make, HIT)
    listed, sites = trained(make, HIT, is_listed=True)
    if listed != golden:
        yield "a step whose ops are watched is another"
    chosen = [site for site in sites if site.op not in SKIPPED and "training" in site.layer]
    if not make().has_compiled_step:
        chosen = [site for site in chosen if site.stage != "optimizer"]
    for number, site in list(enumerate(chosen))[::every]:
        injection = draw_injection(site, PUBLISHED["RD" if number % 2 else "RBFLIP"], 0, trial_rng(number, 5))
        expected, runs = by_hand(make, injection, Hand(), HIT)
        if runs != 1:
            yield f"{site.name}: by hand it was done {runs} times"
        found, _none = trained(make, HIT, injection)
        firing = instruments.firing()
        counts[site.stage] += 1
        counts["unarmed equal"] += instruments.is_unarmed_equal() is True
        counts["masked"] += expected == golden
        if firing is None or firing.count != 1:
            yield f"{site.name}: {firing}"
        if found != expected and instruments.is_unarmed_equal():
            yield f"{site.name}: other bits in {[name for name, bits in found[1].items() if bits != expected[1][name]]}"


def main(every: str) -> None:
    """Try all programs."""
    follow_compiled()
    counts: Counter[str] = Counter()
    makes = {
        "a compiled module": lambda: Training(has_compiled_step=False, is_whole=False),
        "a compiled loss and a compiled step": lambda: Training(has_compiled_step=True, is_whole=True),
    }
    found = {name: list(wrong(make, every=int(every), counts=counts)) for name, make in makes.items()}
    print(json.dumps({"wrong": found, "tried": counts}))


if __name__ == "__main__":
    main(*sys.argv[1:])
