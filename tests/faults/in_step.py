"""Puts faults into steps, compiled and eager, and writes the results: test_injector runs it in a process of its
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

from detrain.faults.drawing import draw_injection
from detrain.faults.models import model_named
from detrain.faults.plan import trial_rng
from detrain.faults.sites import Site, select
from tests.faults.tensorflow_bench import Bench


def step_of(op: str, stride: int, how: str) -> Any:
    """Return a new function (x, w, c) -> (y, dx, dw) of the loss sum(y * c)."""

    def step(x: Any, w: Any, c: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([x, w])
            y = x @ w if op == "dense" else tf.nn.conv2d(x, w, stride, "SAME")
            loss = tf.reduce_sum(y * c)
        return (y, *tape.gradient(loss, [x, w]))

    return step if how == "eager" else tf.function(step, jit_compile=how == "xla")


def main() -> None:
    """Do all cases."""
    bench = Bench()
    results: dict[str, np.ndarray] = {}
    known: dict[tuple[str, int, str], list[Site]] = {}
    for name, op, stride, pattern, stage, model, seed, how in json.loads(sys.argv[2]):
        rng = np.random.default_rng(int(seed))
        shapes = {
            "dense": ((4, 96), (96, 32), (4, 32)),
            "conv": ((2, 6, 6, 8), (3, 3, 8, 32), (2, -(-6 // stride), -(-6 // stride), 32)),
        }
        tensors = [tf.constant(rng.integers(-4, 5, shape).astype(np.float32)) for shape in shapes[op]]
        bench.clear()
        kind = model_named(model)
        if (op, stride, how) not in known:
            known[op, stride, how] = bench.listed(step_of(op, stride, how), *tensors)
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
        injector = bench.place(site, *others, injection, how=how)
        step = step_of(op, stride, how)
        unarmed, faulty, after = bench.run(step, *tensors), bench.hit(injector, step, *tensors), bench.run(step, *tensors)
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
