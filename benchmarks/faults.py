"""What faults cost: an unarmed site in the compiled step, and the share of a trial that is its steps' own time.

    python benchmarks/faults.py [--steps 150] [--rounds 9] [--trials 4]

Step times: the step of the digits example, traced three times in one process: bare, with one site in place (unarmed), with a site
at every convolution and matrix product. Rounds alternate; the ratios are of the medians of a round, with quartiles over rounds.

Trials: `detrain random` on the same program, one process a trial; a trial's efficiency is the time that its steps take in the
golden run over the time of the whole trial, start of the interpreter and imports included.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
ROOT = Path(__file__).resolve().parent.parent


def quartiles(values: list[float]) -> str:
    """Return median [lower quartile, upper quartile]."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.4f} [{low:.4f}, {high:.4f}]"


def step_times(steps: int, rounds: int) -> None:
    """Print the ratios of step times."""
    import numpy as np
    import tensorflow as tf

    from detrain.faults.drawing import draw_injection
    from detrain.faults.models import model_named
    from detrain.faults.plan import trial_rng
    from detrain.frameworks import Settings
    from detrain.frameworks.tensorflow import TensorFlow
    from detrain.frameworks.tensorflow_injector import Injector
    from detrain.frameworks.tensorflow_sites import Sites
    from detrain.runtime.rng import Streams

    TensorFlow(Settings(0, len(os.sched_getaffinity(0))), Streams())
    placed: dict[str, Any] = {}
    sites = Sites(lambda name, _replica: placed.get(name.partition("/")[2]), counts=False)
    import keras

    sites.on_keras()
    rng = np.random.default_rng(0)
    x = tf.constant(rng.normal(size=(32, 8, 8, 1)).astype(np.float32))
    y = tf.constant(rng.integers(0, 10, 32))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def made() -> Callable[[], Any]:
        keras.utils.set_random_seed(0)
        keras.backend.clear_session()
        layers = keras.layers
        model = keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                layers.Conv2D(32, 3, padding="same", activation="relu"),
                layers.BatchNormalization(),
                layers.MaxPooling2D(),
                layers.Conv2D(64, 3, padding="same", activation="relu"),
                layers.Flatten(),
                layers.Dense(10),
            ]
        )
        optimizer = keras.optimizers.Adam()
        optimizer.build(model.trainable_variables)

        @tf.function
        def step() -> Any:
            with tf.GradientTape() as tape:
                value = loss(y, model(x, training=True))
            optimizer.apply_gradients(zip(tape.gradient(value, model.trainable_variables), model.trainable_variables, strict=True))
            return value

        step()
        return step

    sites._counts = True  # to learn the names, once
    sites.begin_step()
    made()
    known = [site for site in sites.sites() if site.is_contraction and site.is_alive]
    sites._counts = False
    points = {
        site.name.partition("/")[2]: Injector(draw_injection(site, model_named("RD"), 0, trial_rng(0, number)))
        for number, site in enumerate(known)
    }
    bare = made()
    name = next(name for name in points if "backward" in name and "Conv2DBackpropFilter" in name)
    placed[name] = points[name]
    one = made()
    placed.update(points)
    every = made()
    values = [float(run()) for run in (bare, one, every) for _ in (0,)]
    print(f"the three steps have the same loss: {len(set(values)) == 1}")
    ratios: dict[str, list[float]] = {"one site": [], f"all {len(points)} sites": []}
    for _ in range(rounds):
        medians = []
        times: list[list[float]] = [[], [], []]
        for _ in range(steps):
            for index, run in enumerate((bare, one, every)):
                began = time.perf_counter()
                run().numpy()
                times[index].append(time.perf_counter() - began)
        medians = [statistics.median(each) for each in times]
        ratios["one site"].append(medians[1] / medians[0])
        ratios[f"all {len(points)} sites"].append(medians[2] / medians[0])
    print(f"bare step: {medians[0] * 1e3:.3f} ms (median of {steps}; limit: what an empty If costs in TensorFlow's executor)")
    for name, found in ratios.items():
        print(f"unarmed / bare, {name}: {quartiles(found)}")


def trials(count: int) -> None:
    """Print how long trials take, one process each."""
    program = ROOT / "examples" / "digits" / "train.py"
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "detrain", "random", "--ckpt", folder, "--after", "60", "--seed", "3"]
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
        times = []
        for number in (0, count):  # the first call finds the sites and runs the golden run
            began = time.perf_counter()
            subprocess.run([*command, "-n", str(max(number, 1)), str(program)], env=environment, check=True, capture_output=True)
            times.append(time.perf_counter() - began)
        seconds = times[1] / max(count - 1, 1)
    print(f"sites, golden run and a first trial: {times[0]:.1f} s")
    print(f"a trial of 60 steps, one process each: {seconds:.1f} s, {3600 / seconds:.0f} an hour")


def main() -> None:
    """Run both parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--trials", type=int, default=4)
    options = parser.parse_args()
    step_times(options.steps, options.rounds)
    if options.trials:
        trials(options.trials)


if __name__ == "__main__":
    main()
