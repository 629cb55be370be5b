"""The first use of each variable in a compiled step of TensorFlow, as the adapter says and as flipping each bit shows:
run by test_liveness in a process of its own. Argument: the file (JSON) to write.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from detrain.adapters.api import Settings
from detrain.adapters.tensorflow.adapter import TensorFlow
from detrain.adapters.tensorflow.faults.graph_sites import Sites
from detrain.adapters.tensorflow.faults.memory import _access
from detrain.python.process.random_streams import Streams
from tests.faults.brute_force import accesses


def main() -> None:
    """Write both results."""
    TensorFlow(Settings(0, 1), Streams())
    sites = Sites(lambda _name, _replica: [], counts=True)
    start = np.arange(1, 5, dtype=np.float32) / 4
    names = ("weight", "slot", "last", "idle", "both", "one", "turned", "looped", "inner", "count", "eager", "seen")
    held = {name: tf.Variable(5 if name == "count" else start, dtype="int32" if name == "count" else "float32") for name in names}

    @tf.function(autograph=False)
    def inside() -> Any:
        held["inner"].assign(held["weight"] * 3.0)
        return held["inner"].read_value()

    @tf.function(autograph=False)
    def body(x: Any) -> Any:
        v = held
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((x * v["weight"]) ** 2)
        grad = tape.gradient(loss, v["weight"])
        v["slot"].assign(0.9 * v["slot"] + grad)
        v["weight"].assign_sub(0.1 * v["slot"])
        v["last"].assign(x)
        loss += tf.reduce_sum(v["last"] * inside())
        is_big = tf.reduce_sum(x) > 1.0
        tf.cond(is_big, lambda: v["both"].assign(x).op, lambda: v["both"].assign(2.0 * x).op)
        tf.cond(is_big, lambda: v["turned"].assign_add(x).op, tf.no_op)

        def turn(t: Any) -> Any:
            v["looped"].assign(v["looped"] * 0.5 + x)
            return t + 1

        tf.while_loop(lambda t: t < 2, turn, (0,))
        v["count"].assign_add(1)
        v["one"].read_value()  # the value is not used
        v["one"].assign(x)
        return loss

    def program() -> Any:
        held["eager"].assign(start * 2.0)
        return body(held["eager"] + held["seen"])

    def step(before: Any) -> Any:
        for name, variable in held.items():
            variable.assign(before[name])
        said = program().numpy().tobytes()
        return said, {name: np.asarray(variable.numpy()) for name, variable in held.items()}

    program()  # steps after the first take another way through TensorFlow
    initial = {name: np.asarray(variable.numpy()) for name, variable in held.items()}
    sites.begin_step()
    program()
    sites.sites()
    said = {name: _access(variable, sites.accesses()) for name, variable in held.items()}
    found = {name: None if each is None else (each.read, each.overwritten, each.untouched) for name, each in said.items()}
    Path(sys.argv[1]).write_text(json.dumps({"said": found, "brute": accesses(initial, step)}))


main()
