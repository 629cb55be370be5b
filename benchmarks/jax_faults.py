"""What faults in JAX cost: the step of the digits example (`examples/digits/jax_train.py`) in a process with an
experiment, and the one step that is hit, beside the bare step.

    python benchmarks/jax_faults.py [--batch 256] [--steps 60] [--rounds 7]

Bare is JAX's own function, which C calls; the others are the same function as the program has it. Within a round they
alternate. Ratios are of a round's medians, with quartiles over rounds.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples" / "digits"))


class Trial:
    """The experiment of the process."""

    def __init__(self, plans: Any) -> None:
        self.plans = plans

    def attach(self, instruments: Any) -> None:
        """Take the adapter's side."""
        self.instruments = instruments

    def ends_with(self, _loss: object) -> bool:
        """Return that no trial ends."""
        return False


def quartiles(values: list[float]) -> str:
    """Return median [lower quartile, upper quartile]."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.3f} [{low:.3f}, {high:.3f}]"


def main() -> None:
    """Print the ratios."""
    parser = argparse.ArgumentParser()
    for name, default in (("--batch", 256), ("--steps", 60), ("--rounds", 7)):
        parser.add_argument(name, type=int, default=default)
    args = parser.parse_args()

    import jax

    from detrain.adapters.api import Settings
    from detrain.adapters.jax.adapter import Jax
    from detrain.adapters.jax.faults.injector import InjectionPoint
    from detrain.faults.drawing import draw_injection
    from detrain.faults.experiment import Experiment
    from detrain.faults.models import model_named
    from detrain.faults.plan import trial_rng
    from detrain.python.process.random_streams import Streams

    plain_jit = jax.jit
    trial = Trial([Experiment(log="")])
    Jax(Settings(0, threads=1, experiment=trial), Streams())
    instruments = trial.instruments

    import jax_train
    import numpy as np
    import optax

    optimizer = optax.adamw(1e-6)

    def step(params: Any, state: Any, key: Any, images: Any, labels: Any) -> Any:
        def loss_of(params: Any) -> Any:
            logits = jax_train.forward(params, images, key)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        loss, grads = jax.value_and_grad(loss_of)(params)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    rng = np.random.default_rng(0)
    images, labels = rng.normal(size=(args.batch, 8, 8, 1)).astype(np.float32), rng.integers(0, 10, args.batch)
    params = jax_train.init(jax.random.key(0))
    given = params, optimizer.init(params), jax.random.key(1), images, labels

    watched = jax.jit(functools.partial(step))
    compiled = plain_jit(functools.partial(step)).lower(*given).compile()
    instruments.begin_step()
    watched(*given)
    sites = [site for site in instruments.sites() if site.stage == "backward" and site.is_contraction]
    injection = draw_injection(sites[0], model_named("BIT:0"), 0, trial_rng(0, 0))
    instruments._points.append(InjectionPoint([injection]))
    instruments.select(injection)

    def hit() -> None:
        instruments.arm(0)
        jax.block_until_ready(watched(*given))
        instruments.disarm()

    ways: dict[str, Callable[[], Any]] = {
        "bare": lambda: jax.block_until_ready(compiled(*given)),
        "of an experiment": lambda: (jax.block_until_ready(watched(*given)), instruments.series()),
        "that is hit": hit,
    }
    for way in ways.values():
        way()
    ratios: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(args.rounds):
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(args.steps):
            for name, way in ways.items():
                began = time.perf_counter()
                way()
                times[name].append(time.perf_counter() - began)
        medians = {name: statistics.median(each) for name, each in times.items()}
        for name, median in medians.items():
            ratios[name].append(median / medians["bare"] if name != "bare" else median * 1e3)
    print(f"bare step, ms: {quartiles(ratios.pop('bare'))}; {len(sites)} products of the backward pass, {sites[0].name} is hit")
    for name, values in ratios.items():
        print(f"step {name} / bare: {quartiles(values)}")


if __name__ == "__main__":
    main()
