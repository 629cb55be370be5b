"""Puts faults into a recurrent cell in loops, branches and functions of its own, and writes the results: for
test_loops.

Arguments: the file (npz) to write; a JSON beside it has the cases. A cell of a step is z = x W + h U, h = tanh(z), the
loss is sum(h c).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from detrain.faults.drawing import draw_injection
from detrain.faults.models import model_named
from detrain.faults.plan import trial_rng
from tests.faults.tensorflow_bench import Bench, fired

STEPS = 4


def plain(name: str) -> str:
    """Return a site's name without the function's number: faults go into another function than the one listed."""
    function, _, rest = name.partition("/")
    owner, colon, part = function.partition(":")
    return f"{owner.partition('.')[0]}{colon}{part}/{rest}"


def cell(x: Any, h: Any, w: Any, u: Any) -> Any:
    """One step."""
    return tf.tanh(tf.matmul(x, w) + tf.matmul(h, u))


def step_of(how: str) -> Any:
    """Return a new function (x, h, w, u, c) -> (h, dx, dw, du); x is [step, batch, feature]."""

    def looped(x: Any, h: Any, w: Any, u: Any) -> Any:
        def body(t: Any, h: Any) -> Any:
            return t + 1, cell(x[t], h, w, u)

        return tf.while_loop(lambda t, _h: t < STEPS, body, (0, h), maximum_iterations=STEPS)[1]

    inner = tf.function(cell)

    def called(x: Any, h: Any, w: Any, u: Any) -> Any:
        for t in range(STEPS):
            h = inner(x[t], h, w, u)
        return h

    def branched(x: Any, h: Any, w: Any, u: Any) -> Any:
        return tf.cond(tf.reduce_sum(x) < 1e9, lambda: cell(x[0], h, w, u), lambda: h * 2.0)

    forward = {"loop": looped, "xla": looped, "function": called, "branch": branched}[how]

    def step(x: Any, h: Any, w: Any, u: Any, c: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([x, w, u])
            out = forward(x, h, w, u)
            loss = tf.reduce_sum(out * c)
        return (out, *tape.gradient(loss, [x, w, u]))

    return tf.function(step, jit_compile=how == "xla", autograph=False)


def deep(x: Any) -> Any:
    """Return the end of a long chain of ops that are no sites; it also waits for a long chain of no-ops."""
    y, before = tf.cast(x, tf.float64), tf.no_op()
    for _ in range(1200):
        y = y + 1.0
        with tf.control_dependencies([before]):
            before = tf.no_op()
    with tf.control_dependencies([before]):
        return tf.cast(y, tf.float32)


def trained(x: Any, w: Any) -> Any:
    """Train a matrix product by a loop over a data set in a function; return w, and the sum of products from a second
    such loop.
    """
    variable = tf.Variable(w)

    def epoch(rows: Any) -> Any:
        for row in rows:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.matmul(row, variable) ** 2)
            variable.assign_sub(0.01 * tape.gradient(loss, variable))
        total = tf.zeros((2, 4))
        for row in rows:
            total += tf.matmul(row, variable)
        return total

    total = tf.function(epoch)(tf.data.Dataset.from_tensor_slices(x).map(lambda row: row * 2.0))
    return variable, total


def in_data(bench: Bench, x: Any, w: Any, results: dict[str, Any]) -> list[dict[str, Any]]:
    """Put a fault into each product of loops over data, in their second turn."""
    cases = []
    for site in [found for found in bench.listed(trained, x, w) if found.is_alive and found.is_contraction]:
        injection = draw_injection(site, model_named("SET:2@output"), 0, trial_rng(0, 0))
        bench.clear()
        injector = bench.place(site, injection)
        variable, total = bench.hit(injector, trained, x, w, occurrence=1)
        results[f"data/{len(cases)}/w"], results[f"data/{len(cases)}/total"] = variable.numpy(), total.numpy()
        position = int(injection.array("positions")[0])
        cases.append({"site": plain(site.name), "position": position, "fired": fired(injector)})
    return cases


def main() -> None:
    """Do all cases."""
    bench = Bench(plain)
    rng = np.random.default_rng(0)
    shapes = {"x": (STEPS, 2, 3), "h": (2, 4), "w": (3, 4), "u": (4, 4), "c": (2, 4)}
    given = {name: tf.constant(rng.normal(size=shape).astype(np.float32)) for name, shape in shapes.items()}
    results: dict[str, Any] = {f"given/{name}": value.numpy() for name, value in given.items()}
    cases: list[dict[str, Any]] = []
    for how in ("loop", "xla", "function", "branch"):
        step = step_of(how)
        listed, bare = bench.listed(step, *given.values()), step(*given.values())
        placed = []
        for site in [found for found in listed if found.is_alive and (found.is_contraction or "Tanh" in found.op)]:
            for operand in site.operands:
                injection = draw_injection(site, model_named(f"SET:2@{operand}"), 0, trial_rng(len(placed), 0))
                placed.append((site, injection, bench.place(site, injection)))
        step = step_of(how)
        for site, injection, injector in placed:
            for occurrence in range(0, site.executions, 2):
                unarmed = step(*given.values())
                faulty = bench.hit(injector, step, *given.values(), occurrence=occurrence)
                firing = injector.firing()
                injector.select(injection)
                for label, values in (("bare", bare), ("unarmed", unarmed), ("faulty", faulty)):
                    for name, value in zip(("h", "dx", "dw", "du"), values, strict=True):
                        results[f"{len(cases)}/{label}/{name}"] = value.numpy()
                case = {
                    "how": how,
                    "site": site.name,
                    "op": site.op,
                    "stage": site.stage,
                    "operand": injection.operand,
                    "shapes": {name: list(each.shape) for name, each in site.operands.items()},
                    "executions": site.executions,
                    "occurrence": occurrence,
                    "position": int(injection.array("positions")[0]),
                    "fired": firing.count if firing is not None else 0,
                    "golden": float(np.frombuffer(firing.golden, np.float32)[0]) if firing is not None else 0.0,
                }
                cases.append(case)
    data = in_data(bench, given["x"], given["w"], results)
    bench.listed(tf.function(deep, autograph=False), given["x"])
    Path(sys.argv[1]).with_suffix(".json").write_text(json.dumps({"cases": cases, "data": data}))
    np.savez(sys.argv[1], **results)


main()
