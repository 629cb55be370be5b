"""Hits one site of each group of instructions that a program's step has: test_groups_hit runs it in a process of its
own. Arguments: a network of examples/workloads, or `control`; the file (JSON) to write: by group, how many sites it has
and how often a chosen one was hit.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from detrain.faults.drawing import draw_injection
from detrain.faults.models import model_named
from detrain.faults.plan import trial_rng
from detrain.faults.population.groups import Group, groups_of, use_of
from detrain.faults.sites import Site
from tests.faults.tensorflow_bench import Bench, Injector

TRIED = 2
"""The number of sites to hit in each group."""


def network(name: str) -> Any:
    """Return a function that makes a step of one of the six networks, in a small size."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "workloads"))
    import keras
    import train

    make, optimizer_of, rate, _last, _steps = train.MODELS[name]
    model = make(*((0.25, 0.2) if name == "densenet121" else (0.125, 0.5)))
    optimizer = optimizer_of(rate)
    optimizer.build(model.trainable_variables)
    losses_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)
    rng = np.random.default_rng(0)
    images, labels = tf.constant(rng.normal(size=(8, 32, 32, 3)).astype(np.float32)), tf.constant(rng.integers(0, 10, 8))

    def step() -> Any:
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            loss = tf.reduce_mean(losses_of(labels, logits))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True))
        return loss, tf.reduce_sum(tf.cast(tf.argmax(logits, -1) == labels, tf.float32))

    return lambda: tf.function(step)


def control(_name: str) -> Any:
    """Return a function that makes a step with a loop, a branch, and products of integers and of float64."""
    x, w = (tf.Variable(np.arange(1, 7, dtype=np.float64).reshape(shape) / 7) for shape in ((2, 3), (3, 2)))
    i = tf.Variable(np.arange(6, dtype=np.int32).reshape(2, 3))

    def step() -> Any:
        with tf.GradientTape() as tape:
            y = tf.while_loop(lambda t, _y: t < 3, lambda t, y: (t + 1, y * 0.5), (0, x @ w), maximum_iterations=4)[1]
            y = tf.cond(tf.reduce_sum(y) > 0, lambda: y * 2, lambda: y * 3)
            loss = tf.reduce_sum(tf.tanh(tf.concat([y, y[:1]], 0)) ** 2)
        w.assign_sub(0.1 * tape.gradient(loss, w))
        i.assign_add(tf.matmul(i, i, transpose_b=True) @ i)
        return tf.cast(loss, tf.float32)

    return lambda: tf.function(step, autograph=False)


def hits(function: Any) -> Any:
    """Return a function that runs a step with a fault and returns how often the fault changed a value."""

    def hit(injector: Injector) -> int:
        injector.arm(0)
        with contextlib.suppress(tf.errors.OpError):
            function()
        injector.disarm()
        firing = injector.firing()
        return firing.count if firing is not None and firing.golden != firing.injected else 0

    return hit


def main() -> None:
    """Do all groups."""
    name = sys.argv[1]
    bench = Bench()
    if name != "control":
        bench.sites.on_keras()
    made = (control if name == "control" else network)(name)
    of_group: dict[Group, list[Site]] = {}
    for site in bench.listed(made()):
        if site.is_alive and site.executions:
            for group in groups_of(site.op, site.operands["output"].dtype, use_of(site)):
                of_group.setdefault(group, []).append(site)
    chosen: dict[Group, list[Injector]] = {}
    for group, found in of_group.items():
        # A fault in a shape or an index may end the step before it is noted: sites of floats come first.
        found.sort(key=lambda site: "float" not in site.operands["output"].dtype)
        for site in found[:: max(len(found) // TRIED, 1)][:TRIED]:
            injection = draw_injection(site, model_named("FLIP:1"), 0, trial_rng(int(group), 0))
            chosen.setdefault(group, []).append(bench.place(site, injection))
    function = made()
    function()
    said = {group.label: (len(of_group[group]), max(map(hits(function), each))) for group, each in chosen.items()}
    Path(sys.argv[2]).write_text(json.dumps(said))


main()
