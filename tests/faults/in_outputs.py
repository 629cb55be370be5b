"""Puts faults into outputs of ops with several: test_several_outputs runs it in a process of its own.

Arguments: the file (npz) to write, and how the step runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from detrain.faults.drawing import draw_injection
from detrain.faults.models import model_named
from detrain.faults.plan import trial_rng
from detrain.faults.sites import op_and_output, select
from tests.faults.tensorflow_bench import Bench, without_function


def split(x: Any) -> tuple[Any, ...]:
    """Return (both halves, the gradient of each half's factor); this gradient is the half itself."""
    factors = tf.ones([2, 3])
    with tf.GradientTape() as tape:
        tape.watch(factors)
        first, second = tf.split(x, 2, axis=1)
        loss = tf.reduce_sum(first * factors[0]) + tf.reduce_sum(second * factors[1])
    return first, second, tape.gradient(loss, factors)


def second_half(x: Any) -> tuple[Any, ...]:
    """Return the second half, and a gradient."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        _first, second = tf.split(x, 2, axis=1)
        loss = tf.reduce_sum(second)
    return second, tape.gradient(loss, x)


def highest(x: Any) -> tuple[Any, ...]:
    """Return the two highest values of each row, their places, and the gradient of their sum."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        values, places = tf.math.top_k(x, 2)
        loss = tf.reduce_sum(values)
    return values, places, tape.gradient(loss, x)


def normalised(x: Any) -> tuple[Any, ...]:
    """Return a batch's normalisation, its mean, its variance and the gradient; the op has two more
    outputs, kept for the gradient.
    """
    scale, offset = tf.ones([3]), tf.zeros([3])
    batch = tf.reshape(x, [2, 2, 2, 3])
    with tf.GradientTape() as tape:
        tape.watch(batch)
        y, mean, variance = tf.compat.v1.nn.fused_batch_norm(batch, scale, offset)
        loss = tf.reduce_sum(y**2)
    return y, mean, variance, tape.gradient(loss, batch)


CASES: dict[str, tuple[Callable[[Any], tuple[Any, ...]], str, str]] = {
    "split": (split, "*/Split:1", "SET:1024"),
    "second half": (second_half, "*/Split:1", "SET:1024"),
    "highest": (highest, "*/TopKV2:1", "SET:3"),
    "mean": (normalised, "*/forward/*FusedBatchNormV3:1", "SET:1024"),
    "kept for the gradient": (normalised, "*/forward/*FusedBatchNormV3:3", "SET:1024"),
    "first output": (split, "*/Split", "SET:1024"),
}


def main() -> None:
    """Do all cases."""
    bench = Bench(has_digests=True)
    x = tf.constant(np.random.default_rng(0).permutation(24).astype(np.float32).reshape(4, 6))
    results: dict[str, Any] = {}
    how = sys.argv[2]
    for case, (function, pattern, model) in CASES.items():

        def made(function: Any = function) -> Any:
            return function if how == "eager" else tf.function(function, jit_compile=how == "xla")

        found = bench.listed(made(), x)
        site = select(found, pattern)[0]
        injection = draw_injection(site, model_named(model), 0, trial_rng(7, 0))
        injector = bench.place(site, injection, how=how)
        step = made()
        for label in ("unarmed", "faulty", "after"):
            given = bench.hit(injector, step, x) if label == "faulty" else bench.run(step, x)
            # Of the function traced last.
            digests = {without_function(name): digest for name, _replica, digest in bench.sites.digests()}
            results[f"{case}/digest/{label}"] = digests.get(without_function(op_and_output(site.name)[0]), 0)
            for number, value in enumerate(given):
                results[f"{case}/{label}/{number}"] = value.numpy()
        firing = injector.firing()
        assert firing is not None
        results[f"{case}/count"] = firing.count
        results[f"{case}/position"] = injection.array("positions")[0]
        results[f"{case}/injected"] = np.frombuffer(firing.injected, np.dtype(injection.dtype))[0]
        results[f"{case}/alive"] = [without_function(each.name) for each in found if each.is_alive]
    open_step = tf.function(split, input_signature=[tf.TensorSpec([None, 6])], jit_compile=how == "xla")
    open_sites = bench.listed(split if how == "eager" else open_step, x)
    results["shape"] = select(open_sites, "*/Split:1")[0].operands["output"].shape
    np.savez(sys.argv[1], **results)


main()
