"""Puts faults into tensors of each dtype: test_dtypes runs it in a process of its own. Argument: the file (npz) to
write.

Elements are written as the integers that hold their bits.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import tensorflow as tf

from detrain.adapters.tensorflow.faults.graph_ops import _DTYPES
from detrain.base.errors import FaultInvalid
from detrain.faults.drawing import draw_injection
from detrain.faults.experiment import BITS
from detrain.faults.models import model_named
from detrain.faults.plan import trial_rng
from detrain.faults.sites import select
from tests.faults.tensorflow_bench import Bench

SUMS = ("int8", "uint8")
"""Dtypes without products on a CPU."""
MODELS = ("RD", "N16_RD_CORRECT", "STUCK1:5", "SET:3", "INPUT", "WT")


def bits_of(tensor: Any) -> np.ndarray:
    """Return the bit patterns of a tensor."""
    return tensor.numpy().view(BITS[tensor.dtype.name])


def step_of(dtype: str, how: str) -> Any:
    """Return a new step, which multiplies two matrices."""

    def step(x: Any, w: Any) -> Any:
        some = tf.constant(2.0)
        with tf.GradientTape() as tape:  # or an eager step would be none
            tape.watch(some)
            square = some * some
        tape.gradient(square, some)
        if dtype == "bool":
            return tf.logical_or(x[:, :8], w[:8])
        return x[:, :8] + w[:8] if dtype in SUMS else x @ w

    return step if how == "eager" else tf.function(step, jit_compile=how == "xla")


def main() -> None:
    """Do all cases."""
    bench = Bench()
    results: dict[str, Any] = {}
    rng = np.random.default_rng(0)
    for dtype in [each.name for each in _DTYPES if each != tf.float32]:  # which the other tests are about
        x, w = (tf.cast(tf.constant(rng.integers(-3, 4, shape), tf.int32), dtype) for shape in ((8, 16), (16, 8)))
        for how in ("graph", "xla", "eager"):
            listed = bench.listed(step_of(dtype, how), x, w)
            site = select(listed, {"bool": "*Logical*"}.get(dtype, "*AddV2*" if dtype in SUMS else "*MatMul*"))[0]
            for name in MODELS:
                model = model_named(name)
                if model.operand.value not in site.operands:
                    continue
                try:
                    injection = draw_injection(site, model, 0, trial_rng(3, 0))
                except FaultInvalid:  # a bool has one bit
                    continue
                bench.clear()
                injector = bench.place(site, injection, how=how)
                step, case = step_of(dtype, how), f"{dtype} {how} {name}"
                results[f"{case}/unarmed"] = bits_of(bench.run(step, x, w))
                results[f"{case}/faulty"] = bits_of(bench.hit(injector, step, x, w))
                results[f"{case}/after"] = bits_of(bench.run(step, x, w))
                firing = injector.firing()
                assert firing is not None
                assert firing.count == 1
                given = {"input": x, "weight": w}.get(injection.operand)
                results[f"{case}/target"] = results[f"{case}/unarmed"] if given is None else bits_of(given)
                results[f"{case}/operand"] = injection.operand
                for part in ("positions", "sources", "keep", "flip"):
                    results[f"{case}/{part}"] = injection.array(part)
                results[f"{case}/golden"] = np.frombuffer(firing.golden, BITS[dtype])
                results[f"{case}/injected"] = np.frombuffer(firing.injected, BITS[dtype])
        results[f"{dtype}/x"], results[f"{dtype}/w"] = bits_of(x), bits_of(w)
    np.savez(sys.argv[1], **results)


main()
