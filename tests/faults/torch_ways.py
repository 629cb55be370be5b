"""Ordinary programs that use `torch.compile`, each in one way, with faults put in by the adapter; and the same ones, in
which a pass of their own puts an op of their own behind the node that is hit. Run by test_torch in a process of its
own, which it changes: prints JSON.

The node of a site is found here independently: the k-th of its op that a module ran in a pass, in the graph's order.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any, ClassVar

from torch._inductor import config

from detrain.faults.drawing import draw_injection
from detrain.faults.experiment import Injection
from detrain.faults.models import model_named
from detrain.faults.plan import trial_rng
from detrain.faults.sites import Site
from tests.faults.compiled_ways import BATCHES, WAYS, Training
from tests.faults.torch_by_hand import follow_compiled, instruments
from tests.faults.torch_inductor import SKIPPED, Hand, put

HIT = 1
MODELS = ("RD", "FLIP:1", "RBFLIP", "BIT:14", "SET:3")


class Pass(Hand):
    """A pass that puts the op behind the node of a site; it knows modules by identity."""

    layers: ClassVar[dict[int, str]] = {}
    """The names of modules."""

    def __call__(self, graph: Any) -> None:
        """Change a graph."""
        assert Hand.injection is not None
        nodes = list(graph.nodes)
        is_backward = any(node.name.startswith("tangents") for node in nodes)
        site, _, number = Hand.injection.site.partition(":")
        turns: Counter[tuple[Any, str]] = Counter()
        for node in nodes:
            name = str(node.target).split(".")[1] if node.op == "call_function" and "." in str(node.target) else ""
            stage = str(node.meta.get("partitioner_tag")).removeprefix("is_")
            stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
            keys = [key for key in reversed(stack) if int(key.partition("@")[0]) in self.layers]
            if not name or not keys or (is_backward and stage == "forward"):
                continue
            base = f"{stage}/{self.layers[int(keys[0].partition('@')[0])]}/{name}"
            turn = turns[keys[0], base]
            turns[keys[0], base] += 1
            if (f"{base}#{turn}" if turn else base) != site or Hand.done:
                continue
            outputs = [user for user in node.users if isinstance(node.meta["val"], tuple) and user.args[1] == int(number or 0)]
            target = outputs[0] if outputs else node
            Hand.done.add(target.name)
            with graph.inserting_after(target):
                new = graph.call_function(put._opoverload, (target,))
            new.meta = dict(target.meta)
            target.replace_all_uses_with(new, delete_user_cb=lambda user, new=new: user is not new)


def by_hand(way: str, injection: Injection) -> tuple[Any, int]:
    """Return the losses and the state with a fault that the program puts in itself, and how often it did."""
    Hand.injection, Hand.runs = injection, 0
    Hand.done.clear()
    with config.patch(post_grad_custom_pre_pass=Pass()):
        training = Training(way)
        models = {"net": training.net, "critic": training.critic}
        Pass.layers = {
            id(module): ".".join(part for part in ("training", root, name.replace("_orig_mod.", "")) if part)
            for root, model in models.items()
            if model is not None
            for name, module in model.named_modules()
        }
        losses = []
        for turn in range(BATCHES):
            Hand.is_now = turn == HIT
            losses.append(training.one(turn).item())
        return (repr(losses), training.state()), Hand.runs


def trained(way: str, injection: Injection | None = None, *, is_listed: bool = False) -> tuple[Any, list[Site]]:
    """Return losses and state, and the sites of the step that is hit."""
    training, losses, sites = Training(way), [], []
    for turn in range(BATCHES):
        if turn == HIT and injection is not None:
            instruments.select(injection)
            instruments.arm(0)
        if turn == HIT and is_listed:
            instruments.begin_step()
        losses.append(training.one(turn))
        if turn == HIT and injection is not None:
            instruments.disarm()
        if turn == HIT and is_listed:
            sites = instruments.sites()
    return (repr([loss.item() for loss in losses]), training.state()), sites


def wrong(way: str, counts: Counter[str]) -> Iterator[str]:
    """Yield the differences at one site of each stage."""
    golden, _none = trained(way)
    listed, sites = trained(way, is_listed=True)
    if listed != golden:
        yield "a step whose ops are watched is another"
    rng = trial_rng(WAYS.index(way), 8)
    for stage in ("forward", "backward", "optimizer"):
        chosen = [site for site in sites if site.stage == stage and site.op not in SKIPPED]
        if not chosen:
            yield f"no site of {stage}"
            continue
        chosen = [site for site in chosen if "training." in site.layer] or chosen
        site, model = chosen[int(rng.integers(len(chosen)))], MODELS[int(rng.integers(len(MODELS)))]
        injection = draw_injection(site, model_named(model), 0, rng)
        found, _none = trained(way, injection)
        firing = instruments.firing()
        if firing is None or firing.count != 1:
            yield f"{site.name} {model}: {firing}"
        counts[stage] += 1
        if instruments.is_unarmed_equal() is not True:  # an eager op, or by hand the site would change bits in all steps
            counts["not compared"] += 1
            continue
        expected, runs = by_hand(way, injection)
        counts["compared" if runs else "not found by hand"] += 1
        if runs > 1 or (runs and found != expected):
            yield f"{site.name} {model}: {found[0]}, by hand {expected[0]} ({runs} times)"


def main(quarter: str) -> None:
    """Try each fourth program, from one of the first four on."""
    follow_compiled()
    counts: Counter[str] = Counter()
    found = {way: list(wrong(way, counts)) for way in WAYS[int(quarter) :: 4]}
    print(json.dumps({"wrong": found, "tried": counts}))


if __name__ == "__main__":
    main(*sys.argv[1:])
