"""Faults in an equation with two outputs, which share a copy, compared with NumPy's. Run by test_jax in a process of
its own, which it changes; prints the differences.
"""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np

from detrain.adapters.jax.faults.injector import InjectionPoint
from detrain.faults.drawing import draw_injection
from detrain.faults.experiment import Experiment
from detrain.faults.models import model_named
from detrain.faults.plan import trial_rng
from tests.faults.jax_by_hand import begin


def main() -> None:
    """Hit each output by itself, and print the differences."""
    instruments, wrong = begin([Experiment(log="")]), []
    function = jax.jit(lambda value: [jnp.exp2(each) for each in jnp.split(value, [2])])
    given = np.random.default_rng(0).integers(-4, 4, (5, 8)).astype(np.float32)
    instruments.begin_step()
    function(given)
    sites = [site for site in instruments.sites() if site.op == "split"]
    for number, site in enumerate(sites):
        injection = draw_injection(site, model_named("BIT:31"), 0, trial_rng(number, 1))
        instruments._points[:] = [InjectionPoint([injection])]
        instruments.select(injection)
        instruments.arm(0)
        found = function(given)
        instruments.disarm()
        parts = np.split(given, [2])
        (position,) = injection.array("positions")
        parts[number].reshape(-1)[position] *= -1
        firing = instruments.firing()
        if firing is None or firing.count != 1 or not instruments.is_unarmed_equal():
            wrong.append(f"{site.name}: {firing}")
        if any(np.asarray(mine).tobytes() != np.exp2(its).tobytes() for mine, its in zip(found, parts, strict=True)):
            wrong.append(f"{site.name}: another result than by hand")
    copies = [len(spots) for each in instruments._functions._known.values() for _point, spots in each.copies]
    print(json.dumps({"wrong": wrong, "sites": len(sites), "copies": copies}))


if __name__ == "__main__":
    main()
