"""Puts faults into tensors of each dtype: test_dtypes runs it in a process of its own. Argument: the file (npz) to
write.

Elements are written as the integers that hold their bits.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import tensorflow as tf

from detrain.adapters.api import Settings
from detrain.adapters.tensorflow.adapter import TensorFlow
from detrain.adapters.tensorflow.faults.eager_sites import EagerInjector
from detrain.adapters.tensorflow.faults.graph_sites import Replacer, Sites
from detrain.adapters.tensorflow.faults.injector import InjectionPoint
from detrain.base.errors import FaultInvalid
from detrain.faults.drawing import draw_injection
from detrain.faults.experiment import BITS
from detrain.faults.models import model_named
from detrain.faults.plan import trial_rng
from detrain.faults.sites import select
from detrain.python.process.random_streams import Streams

PLACED: dict[str, InjectionPoint] = {}
SUMS = ("int8", "uint8")
"""Of these there are no products on a CPU."""
MODELS = ("RD", "N16_RD_CORRECT", "STUCK1:5", "SET:3", "INPUT", "WT")


def points(name: str, _replica: int) -> list[Replacer]:
    """The fault of the case, if it is for this site."""
    return [PLACED[key] for key in [name.partition("/")[2]] if key in PLACED]


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
    TensorFlow(Settings(0, 1), Streams())
    sites = Sites(points, counts=True)
    results: dict[str, Any] = {}
    rng = np.random.default_rng(0)
    for dtype in [each for each in BITS if each != "float32"]:  # which the other tests are about
        x, w = (tf.cast(tf.constant(rng.integers(-3, 4, shape), tf.int32), dtype) for shape in ((8, 16), (16, 8)))
        for how in ("graph", "xla", "eager"):
            PLACED.clear()
            sites.begin_step()
            step_of(dtype, how)(x, w)
            site = select(sites.sites(), {"bool": "*Logical*"}.get(dtype, "*AddV2*" if dtype in SUMS else "*MatMul*"))[0]
            for name in MODELS:
                model = model_named(name)
                if model.operand.value not in site.operands:
                    continue
                try:
                    injection = draw_injection(site, model, 0, trial_rng(3, 0))
                except FaultInvalid:  # a bool has one bit
                    continue
                injector: InjectionPoint | EagerInjector
                if how == "eager":
                    injector = sites.eager.injector = EagerInjector([injection])
                else:
                    injector = PLACED[site.name.partition("/")[2]] = InjectionPoint([injection])
                injector.select(injection)
                step, case = step_of(dtype, how), f"{dtype} {how} {name}"
                for label in ("unarmed", "faulty", "after"):
                    if label == "faulty":
                        injector.arm(0)
                    sites.eager.begin()
                    results[f"{case}/{label}"] = bits_of(step(x, w))
                    sites.eager.end()
                    injector.disarm()
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
