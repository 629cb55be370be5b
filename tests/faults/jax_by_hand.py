"""Faults of the adapter in a step of JAX, compared with the same faults in the function itself. Run by test_jax in a
process of its own, which it changes: `sites` prints the step's sites, `faults` reads them and prints the differences.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import jax
import msgspec
import numpy as np

from detrain.adapters.api import Settings
from detrain.adapters.jax.adapter import Jax
from detrain.adapters.jax.faults.injector import InjectionPoint
from detrain.adapters.jax.faults.instruments import name_layers
from detrain.base.errors import FaultInvalid
from detrain.faults.drawing import draw_injection
from detrain.faults.experiment import UNARMED, Experiment
from detrain.faults.models import PUBLISHED
from detrain.faults.plan import trial_rng
from detrain.faults.sites import Site
from detrain.python.process.random_streams import Streams
from tests.adapters.trial import PROFILE, Trial

PLACES: dict[str, tuple[str, str, int]] = {
    "first product": ("forward/first/dot_general@0", "output", 0),
    "input of first product": ("forward/first/dot_general@0", "input", 0),
    "weight of first product": ("forward/first/dot_general@0", "weight", 0),
    "product in scan": ("forward/dot_general@9.0", "output", 2),
    "sin in scan": ("forward/sin@9.1", "output", 1),
    "sin in cond": ("forward/sin@14.1.0", "output", 0),
    "mul in while": ("forward/mul@16.1.0", "output", 1),
    "logits": ("forward/add@21", "output", 0),
    "dY of last": ("backward/add_any@74.5", "output", 0),
    "dY in scan": ("backward/mul@77.0", "output", 0),
    "dY of first": ("backward/first/add_any@81", "output", 0),
    "dW of first": ("backward/first/transpose@86", "output", 0),
    "update of loop": ("optimizer/mul@180", "output", 0),
    "last weight": ("optimizer/add@184", "output", 0),
}
"""The taps, each with its site, the operand that is hit, and the number of the run that is hit."""
if jax.__version_info__ >= (0, 12):  # which differentiates `tanh` with fewer equations
    PLACES |= {
        "dY of last": ("backward/mul@72.3", "output", 0),
        "dY in scan": ("backward/mul@75.0", "output", 0),
        "dY of first": ("backward/first/mul@77", "output", 0),
        "dW of first": ("backward/first/transpose@82", "output", 0),
        "update of loop": ("optimizer/mul@162", "output", 0),
        "last weight": ("optimizer/add@166", "output", 0),
    }
TURNS = {"product in scan": 2, "sin in scan": 1, "mul in while": 1, "dY in scan": 2}  # `dY`: the loop goes backward


def begin(plans: Sequence[Experiment]) -> Any:
    """Make the adapter of the process, and return its instruments."""
    trial = Trial(plans)
    Jax(Settings(seed=1, threads=1, experiment=trial), Streams())
    return trial.instruments


def program_named() -> Any:
    """Import the program, as an adapter is there, and have its layers run under their names, as a run does."""
    program = import_module(f"tests.faults.{os.environ.get('PROGRAM', 'jax_programs')}")
    name_layers()
    return program


def sites() -> list[Site]:
    instruments = begin([PROFILE])
    program = program_named()
    instruments.begin_step()
    program.compiled(0, 1)(*program.given())
    return list(instruments.sites())


def faults(known: list[Site], every: int) -> dict[str, Any]:
    """Put faults in, and the same ones into the function itself; return the differences, and the number of faults.

    A place where XLA fuses the function with the hand's text otherwise cannot be compared: there the step has other
    bits than the plain one already if the hand changes nothing (`apart`).
    """
    from tests.faults import jax_programs

    instruments = begin([Experiment(log="")])
    by_name = {site.name.partition("/")[2]: site for site in known}
    step = jax_programs.compiled(0, 1)
    plain, wrong, apart, tried, unarmed = jax_programs.run(step), [], [], 0, 0
    for number, (place, (name, operand, occurrence)) in enumerate(PLACES.items()):
        site = by_name[name]
        models = [each for each in PUBLISHED if PUBLISHED[each].operand.value == operand and not PUBLISHED[each].is_limited]
        some = [models[number % len(models)]] if number % every == 0 else []
        if (some or every == 1) and not same(jax_programs.run(step, hand=idle_hand(place)), plain):
            apart.append(place)
        for model in models if every == 1 else some:
            try:
                injection = draw_injection(site, PUBLISHED[model], 0, trial_rng(number, 3))
            except FaultInvalid:
                continue
            tried += 1
            instruments._points[:] = [InjectionPoint([injection])]
            instruments.select(injection)
            found = jax_programs.run(step, lambda occurrence=occurrence: instruments.arm(occurrence), instruments.disarm)  # type: ignore[misc]
            firing, is_equal = instruments.firing(), instruments.is_unarmed_equal()
            unarmed += is_equal
            if same(jax_programs.run(step, lambda: instruments.arm(UNARMED), instruments.disarm), plain) != is_equal:
                wrong.append(f"{place} {model}: unarmed, the step is not said to be what it is")
            instruments._points.clear()
            arrays = {name: injection.array(name) for name in ("positions", "sources", "keep", "flip")}
            patterns = {name: jax.numpy.asarray(arrays[name].view(np.uint32)) for name in ("keep", "flip")}
            hand = jax_programs.Hand(place, arrays["positions"], arrays["sources"], turn=TURNS.get(place, 0), **patterns)
            if place not in apart and not same(found, jax_programs.run(step, hand=hand)):
                wrong.append(f"{place} {model}: another state than by hand")
            if same(found, plain) and firing is not None and firing.golden != firing.injected and "ZERO" not in model:
                wrong.append(f"{place} {model}: the fault has changed nothing")
            if firing is None or firing.count != 1:
                wrong.append(f"{place} {model}: done {0 if firing is None else firing.count} times")
    return {"wrong": wrong, "apart": apart, "tried": tried, "unarmed": unarmed}


def idle_hand(place: str) -> Any:
    """Return a hand that keeps each bit."""
    from tests.faults import jax_programs

    keep, flip = jax.numpy.full(1, 0xFFFFFFFF, np.uint32), jax.numpy.zeros(1, np.uint32)
    return jax_programs.Hand(place, np.zeros(1, int), np.zeros(1, int), keep, flip, turn=TURNS.get(place, 0))


def same(one: list[Any], other: list[Any]) -> bool:
    """Return True if arrays are equal to the bit."""
    return [each.tobytes() for each in one] == [each.tobytes() for each in other]


def main(what: str, every: str = "1") -> None:
    """Print the sites, or the differences."""
    if what == "sites":
        print(msgspec.json.encode(sites()).decode())
    else:
        print(json.dumps(faults(msgspec.json.decode(sys.stdin.read(), type=list[Site]), int(every))))


if __name__ == "__main__":
    main(*sys.argv[1:])
