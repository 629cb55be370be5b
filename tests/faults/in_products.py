"""Puts faults into products of matrices and their gradients, and writes the results: for test_products.

Argument: the file (npz) to write; a JSON beside it has the cases.
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

X, W = (5, 3), (3, 40)
PRODUCTS = {
    "plain": (X, W, tf.matmul),
    "weight transposed": (X, W[::-1], lambda x, w: tf.matmul(x, w, transpose_b=True)),
    "input transposed": (X[::-1], W, lambda x, w: tf.matmul(x, w, transpose_a=True)),
    "both transposed": (X[::-1], W[::-1], lambda x, w: tf.matmul(x, w, transpose_a=True, transpose_b=True)),
    "many": ((2, *X), (2, *W[::-1]), lambda x, w: tf.matmul(x, w, transpose_b=True)),
    "sum": ((2, *X), (4, *W), lambda x, w: tf.einsum("abc,hcd->abhd", x, w)),
    "itself": (X, (), lambda x, _w: tf.matmul(x, x, transpose_b=True)),
    "weight first": (X[::-1], W[::-1], lambda x, w: tf.matmul(w, x)),
}
MODELS = ("SET:2@input", "SET:2@weight", "SET:2", "INPUT_16", "WT_16")


def main() -> None:
    """Do all cases."""
    bench = Bench()
    rng = np.random.default_rng(0)
    cases: list[dict[str, Any]] = []
    results: dict[str, Any] = {}
    for product, how in ((product, how) for product in PRODUCTS for how in ("graph", "eager")):
        if product == "weight first" and how == "eager":  # eager ops do not show which tensor is a variable's value
            continue
        x_shape, w_shape, multiply = PRODUCTS[product]
        x, w = (tf.constant(rng.normal(size=shape).astype(np.float32)) for shape in (x_shape, w_shape))
        c = tf.constant(rng.normal(size=multiply(x, w).shape).astype(np.float32))
        for name, value in zip("xwc", (x, w, c), strict=True):
            results[f"{product}/{how}/{name}"] = value.numpy()
        if product == "weight first":
            w = tf.Variable(w)

        def step(x: Any, w: Any, c: Any, multiply: Any = multiply) -> Any:
            with tf.GradientTape() as tape:
                tape.watch([x] if isinstance(w, tf.Variable) else [x, w])
                y = multiply(x, w)
                loss = tf.reduce_sum(y * c)
            return (y, *(0.0 if each is None else each for each in tape.gradient(loss, [x, w])))

        listed = bench.listed(step if how == "eager" else tf.function(step), x, w, c)
        placed: list[tuple[Any, Any, str, Any]] = []
        for site in [found for found in listed if found.is_contraction]:
            for name in MODELS if site.op != "Einsum" else MODELS[:3]:
                injection = draw_injection(site, model_named(name), 0, trial_rng(len(placed), 0))
                placed.append((site, injection, name, bench.place(site, injection, how=how)))
        again = step if how == "eager" else tf.function(step)
        for site, injection, model, injector in placed:
            if how == "eager":
                bench.sites.eager.injector = injector
            unarmed = bench.run(again, x, w, c)
            faulty = bench.hit(injector, again, x, w, c)
            for label, values in (("unarmed", unarmed), ("faulty", faulty)):
                for name, value in zip(("y", "dx", "dw"), values, strict=True):
                    results[f"{len(cases)}/{label}/{name}"] = np.asarray(value)
            firing = injector.firing()
            case = {
                "product": product,
                "how": how,
                "site": site.name,
                "stage": site.stage,
                "role": site.role,
                "model": model,
                "operand": injection.operand,
                "position": int(injection.array("positions")[0]),
                "limited": injection.array("limited").tolist(),
                "fired": fired(injector),
                "injected": float(np.frombuffer(firing.injected, np.float32)[0]) if firing is not None else 0.0,
            }
            cases.append(case)
    Path(sys.argv[1]).with_suffix(".json").write_text(json.dumps(cases))
    np.savez(sys.argv[1], **results)


main()
