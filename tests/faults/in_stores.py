"""Puts faults into values that a step reads from variables, stores in them, or decides by: test_stores runs it in a
process of its own. Argument: the file (JSON) to write.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from detrain.faults.drawing import draw_injection
from detrain.faults.models import model_named
from detrain.faults.plan import trial_rng
from detrain.faults.population.groups import Group, own_group, use_of
from tests.faults.tensorflow_bench import Bench, fired, without_function

GROUPS = (Group.CC, Group.STORE_OP, Group.LD_OP)
X, ROWS = np.array([[1.0, 2.0], [3.0, -1.0]], np.float32), np.array([1, 4, 1], np.int32)
INITIAL = {
    "w": np.arange(1, 7, dtype=np.float32).reshape(2, 3) / 7,
    "m": np.full((2, 3), 0.25, np.float32),
    "n": np.array(5, np.int32),
    "table": np.arange(12, dtype=np.float32).reshape(6, 2) / 5,
}


class Program:
    """A step, and the variables that it trains."""

    def __init__(self) -> None:
        self.variables = {name: tf.Variable(value) for name, value in INITIAL.items()}

    def step(self, x: Any, i: Any) -> Any:
        """Read, loop, branch, and store."""
        w, m, n, table = self.variables.values()
        with tf.GradientTape() as tape:
            h = tf.while_loop(lambda t, _h: t < 3, lambda t, h: (t + 1, h * 0.5), (0, x @ w), maximum_iterations=4)[1]
            h = tf.cond(tf.reduce_sum(x) > 0.0, lambda: h * 2.0, lambda: h * 3.0)
            loss = tf.reduce_sum(h**2) + tf.reduce_sum(tf.gather(table, i) ** 2)
        g, sparse = tape.gradient(loss, [w, table])
        m.assign(0.9 * m + g)
        w.assign_sub(0.1 * m)
        table.scatter_sub(tf.IndexedSlices(0.5 * sparse.values, sparse.indices))
        n.assign_add(1)
        return loss

    def run(self, function: Any, run: Callable[..., Any] = lambda step, *given: step(*given)) -> dict[str, Any]:
        """Return the loss of a step from the initial values, and the variables after it; `run` runs the step."""
        for name, variable in self.variables.items():
            variable.assign(INITIAL[name])
        loss = run(function, tf.constant(X), tf.constant(ROWS))
        return {"loss": loss.numpy().tolist()} | {name: each.numpy().tolist() for name, each in self.variables.items()}


def main() -> None:
    """Do all cases."""
    bench = Bench()
    program = Program()
    cases = []
    for how in ("graph", "xla", "eager"):

        def made(how: str = how) -> Any:
            return program.step if how == "eager" else tf.function(program.step, jit_compile=how == "xla", autograph=False)

        bench.clear()
        bare = program.run(made())
        found = bench.listed(made(), tf.constant(X), tf.constant(ROWS))
        listed = [site for site in found if site.name.startswith("eager/") == (how == "eager")]
        kept = [
            site
            for site in listed
            if own_group(site.op, site.operands["output"].dtype, use_of(site)) in GROUPS and site.stage != "backward"
        ]
        for site, operand in [(each, operand) for each in kept for operand in each.operands]:
            model = model_named("FLIP:1" if site.operands[operand].dtype == "bool" else f"SET:2@{operand}")
            injection = draw_injection(site, model, 0, trial_rng(len(cases), 0))
            bench.clear()
            injector, function = bench.place(site, injection, how=how), made()
            unarmed = bare if how == "eager" else program.run(function)
            faulty = program.run(function, functools.partial(bench.hit, injector))
            cases.append(
                {
                    "how": how,
                    "site": without_function(site.name),
                    "operand": operand,
                    "executions": site.executions,
                    "position": int(injection.array("positions")[0]),
                    "fired": fired(injector),
                    "bare": bare,
                    "unarmed": unarmed,
                    "faulty": faulty,
                }
            )
    Path(sys.argv[1]).write_text(json.dumps(cases))


main()
