"""Puts faults into steps, compiled and eager, and writes what came of them: test_injector runs it in a process of its
own.

Arguments: the file (npz) to write, and the cases as JSON: [name, op, stride, site pattern, stage, model, seed, how the
step runs].
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import tensorflow as tf

from detrain.adapters.api import Settings
from detrain.adapters.tensorflow.adapter import TensorFlow
from detrain.adapters.tensorflow.faults.eager_sites import EagerInjector
from detrain.adapters.tensorflow.faults.graph_sites import Replacer, Sites
from detrain.adapters.tensorflow.faults.injector import InjectionPoint
from detrain.faults.drawing import draw_injection
from detrain.faults.models import model_named
from detrain.faults.plan import trial_rng
from detrain.faults.sites import Site, select
from detrain.python.process.random_streams import Streams

PLACED: dict[str, InjectionPoint] = {}
"""The fault of the case by its site, without the name of the function: each case has a function of its own."""


def points(name: str, _replica: int) -> list[Replacer]:
    """The fault of the case, if it is for this op."""
    return [PLACED[key] for key in [name.partition("/")[2]] if key in PLACED]


def step_of(op: str, stride: int, how: str) -> Any:
    """Return a new function (x, w, c) -> (y, dx, dw) of the loss sum(y * c)."""

    def step(x: Any, w: Any, c: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([x, w])
            y = x @ w if op == "dense" else tf.nn.conv2d(x, w, stride, "SAME")
            loss = tf.reduce_sum(y * c)
        return (y, *tape.gradient(loss, [x, w]))

    return step if how == "eager" else tf.function(step, jit_compile=how == "xla")


def listed(sites: Sites, step: Any, tensors: list[Any]) -> list[Site]:
    """Return the sites of a step."""
    sites.begin_step()
    step(*tensors)
    return sites.sites()


def stepped(sites: Sites, step: Any, tensors: list[Any]) -> Any:
    """Run a step, and say so."""
    sites.eager.begin()
    results = step(*tensors)
    sites.eager.end()
    return results


def main() -> None:
    """Do all cases."""
    TensorFlow(Settings(0, 1), Streams())
    sites = Sites(points, counts=True)
    results: dict[str, np.ndarray] = {}
    known: dict[tuple[str, int, str], list[Site]] = {}
    for name, op, stride, pattern, stage, model, seed, how in json.loads(sys.argv[2]):
        rng = np.random.default_rng(int(seed))
        shapes = {
            "dense": ((4, 96), (96, 32), (4, 32)),
            "conv": ((2, 6, 6, 8), (3, 3, 8, 32), (2, -(-6 // stride), -(-6 // stride), 32)),
        }
        tensors = [tf.constant(rng.integers(-4, 5, shape).astype(np.float32)) for shape in shapes[op]]
        PLACED.clear()
        kind = model_named(model)
        if (op, stride, how) not in known:
            known[op, stride, how] = listed(sites, step_of(op, stride, how), tensors)
        found = known[op, stride, how]
        is_forward = stage == "forward"
        site = select(
            found,
            pattern,
            stage="forward" if is_forward else "backward",
            operand=kind.operand.value,
            role=None if is_forward else stage,
        )[0]
        injection = draw_injection(site, kind, 0, trial_rng(int(seed), 0))
        drawn = [draw_injection(site, kind, 0, trial_rng(int(seed), number)) for number in range(1, 6)]
        others = [other for other in drawn if other.place == injection.place]  # of one point: the longest sets its size
        injector: InjectionPoint | EagerInjector
        if how == "eager":
            injector = sites.eager.injector = EagerInjector([*others, injection])
        else:
            injector = PLACED[site.name.partition("/")[2]] = InjectionPoint([*others, injection])
        injector.select(injection)
        step = step_of(op, stride, how)
        unarmed = stepped(sites, step, tensors)
        injector.arm(0)
        faulty = stepped(sites, step, tensors)
        injector.disarm()
        after = stepped(sites, step, tensors)
        firing = injector.firing()
        assert firing is not None
        for label, values in (("unarmed", unarmed), ("faulty", faulty), ("after", after), ("given", tensors)):
            for which, value in zip("yxw" if label != "given" else "xwc", values, strict=True):
                results[f"{name}/{label}/{which}"] = value.numpy()
        for part in ("positions", "sources", "keep", "flip", "limited"):
            results[f"{name}/{part}"] = injection.array(part)
        results[f"{name}/golden"] = np.frombuffer(firing.golden, np.uint32)
        results[f"{name}/injected"] = np.frombuffer(firing.injected, np.uint32)
        results[f"{name}/count"] = np.array(firing.count)
    np.savez(sys.argv[1], **results)


main()
