"""Ordinary programs that use `torch.compile`, each in one way, with faults put in by the adapter; and the same ones, in
which a pass of their own puts an op of their own behind the node that is hit. Run by test_torch in a process of its
own, which it changes: prints JSON.

The node of a site is found here independently: the k-th of its op that a module ran in a pass, in the graph's order.
"""

from __future__ import annotations

import functools
import json
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any, ClassVar

from detrain.faults.drawing import draw_injection
from detrain.faults.models import model_named
from detrain.faults.plan import trial_rng
from tests.faults.compiled_ways import WAYS, Training
from tests.faults.torch_by_hand import follow_compiled, instruments
from tests.faults.torch_inductor import SKIPPED, Hand, by_hand, trained

HIT = 1
MODELS = ("RD", "FLIP:1", "RBFLIP", "BIT:14", "SET:3")


class Pass(Hand):
    """A pass that puts the op behind the node of a site; it knows modules by identity."""

    layers: ClassVar[dict[int, str]] = {}
    """The names of modules."""

    def begin(self, training: Training) -> None:
        """Take a program, before its first step."""
        models = {"net": training.net, "critic": training.critic}
        Pass.layers = {
            id(module): ".".join(part for part in ("training", root, name.replace("_orig_mod.", "")) if part)
            for root, model in models.items()
            if model is not None
            for name, module in model.named_modules()
        }

    def call_of(self, stack: dict[str, tuple[str, Any]], stage: str) -> tuple[str, str | None]:
        """Return the call of the module that ran a node, and the module's name; None: the node is of no site."""
        key = next((key for key in reversed(stack) if int(key.partition("@")[0]) in self.layers), "")
        return key, self.layers[int(key.partition("@")[0])] if key else None


def wrong(way: str, counts: Counter[str]) -> Iterator[str]:
    """Yield the differences at one site of each stage."""
    make = functools.partial(Training, way)
    golden, _none = trained(make, HIT)
    listed, sites = trained(make, HIT, is_listed=True)
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
        found, _none = trained(make, HIT, injection)
        firing = instruments.firing()
        if firing is None or firing.count != 1:
            yield f"{site.name} {model}: {firing}"
        counts[stage] += 1
        if instruments.is_unarmed_equal() is not True:  # an eager op, or by hand the site would change bits in all steps
            counts["not compared"] += 1
            continue
        expected, runs = by_hand(make, injection, Pass(), HIT)
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
