"""Hits eager ops and prints the results as JSON: run by test_eager in a process of its own, which it changes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from detrain.adapters.api import Settings
from detrain.adapters.tensorflow.adapter import TensorFlow
from detrain.adapters.tensorflow.faults.eager_sites import EagerInjector
from detrain.adapters.tensorflow.faults.graph_sites import Sites
from detrain.adapters.tensorflow.faults.injector import TensorFlowInjectionPoint
from detrain.faults.experiment import BITS, Injection
from detrain.python.process.random_streams import Streams

INJECTORS: list[TensorFlowInjectionPoint] = []
A = np.arange(-6, 6, dtype=np.float32).reshape(3, 4)
B = np.array([[1, -2, 3], [4, 5, -6], [-7, 8, 9], [2, 2, 2]], np.float32)
IMAGE = np.arange(64, dtype=np.float32).reshape(1, 4, 4, 4) % 7 - 3
LABELS = np.array([0, 3, 1])

OPS: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "MatMul of a variable": ("MatMul", lambda a, b: a @ b),
    "BatchMatMulV2 that repeats": ("BatchMatMulV2", lambda a, b: tf.stack([a, a]) @ b),
    "Einsum": ("Einsum", lambda a, b: tf.einsum("ij,jk->ki", a, b)),
    "AddV2 that repeats": ("AddV2", lambda a, b: a + b[:, 0]),
    "Mul by a variable": ("Mul", lambda a, b: tf.raw_ops.Mul(x=tf.transpose(a), y=b)),
    "ConcatV2 of several": ("ConcatV2", lambda a, b: tf.concat([a, tf.transpose(b), a], 0)),
    "Sum along an axis": ("Mean", lambda a, b: tf.reduce_mean(a, axis=1) * b[0]),
    "Pack": ("Pack", lambda a, b: tf.stack([a, tf.transpose(b)])),
    "Relu": ("Relu", lambda a, b: tf.nn.relu(a @ b)),
    "Tanh": ("Tanh", lambda a, b: tf.tanh(a @ b)),
    "Sigmoid": ("Sigmoid", lambda a, b: tf.sigmoid(a @ b)),
    "several outputs": (
        "FusedBatchNormV3",
        lambda a, b: tf.compat.v1.nn.fused_batch_norm(IMAGE * a[0], b[:, 0], b[:, 1])[0],
    ),
    "ResourceGather": ("GatherV2", lambda a, b: tf.gather(b * 2, [0, 2, 2]) * a[:, :3]),
    "Conv2D": ("Conv2D", lambda a, b: tf.nn.conv2d(IMAGE, tf.reshape(b, [1, 1, 4, 3]), [1, 2, 2, 1], "SAME") * a[0, 1]),
    "MaxPool": ("MaxPool", lambda a, b: tf.nn.max_pool2d(IMAGE * a[0, 0] * b[0, 0], 2, 2, "VALID")),
    "Cast": ("Mul", lambda a, b: tf.cast(a @ b, tf.bfloat16) * tf.constant(2, tf.bfloat16)),
    "Select": ("SelectV2", lambda a, b: tf.where(a > 0, a, tf.transpose(b))),
}  # fmt: skip


def injection(site: str, shape: tuple[int, ...], dtype: str, positions: list[int], values: list[int] | None) -> Injection:
    """Return an injection that sets bit patterns at positions of the output; without values it keeps the patterns."""
    kind = BITS[dtype]
    places = np.array(positions, np.int64)
    keep, flip = (np.full(len(places), -1, kind), np.zeros(len(places), kind))
    if values is not None:
        keep, flip = np.zeros(len(places), kind), np.array(values, np.int64).astype(kind)
    return Injection(
        site=site, operand="output", worker=0, dtype=dtype, shape=shape,
        positions=places.tobytes(), sources=places.tobytes(), keep=keep.tobytes(), flip=flip.tobytes(),
    )  # fmt: skip


def results(function: Callable[[Any, Any], Any], variables: list[Any]) -> list[str]:
    """Return the value of a function, and its gradients, as bytes."""
    with tf.GradientTape() as tape:
        value = function(*variables)
        loss = tf.reduce_sum(tf.cast(value, tf.float32) ** 2)
    return [np.asarray(tf.convert_to_tensor(each)).tobytes().hex() for each in (value, *tape.gradient(loss, variables))]


def main() -> None:
    """Hit all ops, and print the results."""
    TensorFlow(Settings(0, 1), Streams())
    sites = Sites(lambda name, replica: [each for each in INJECTORS if each.fits(name, replica)], counts=False)  # type: ignore[misc]
    eager, variables = sites.eager, [tf.Variable(A), tf.Variable(B)]
    found: dict[str, Any] = {}
    for name, (kind, function) in OPS.items():
        plain = results(function, variables)
        eager.begin(notes=True)
        results(function, variables)
        listed = [site for site in eager.sites() if site.stage == "forward"]
        site = next((site for site in listed if site.op == kind), None)
        assert site is not None, f"{name}: {kind} is not among {[site.op for site in listed]}"
        output = site.operands["output"]
        hit = injection(site.name, output.shape, output.dtype, [0], None)
        injector = eager.injector = EagerInjector([hit])
        eager.begin()
        injector.arm(0)
        changed_nothing = results(function, variables)
        eager.end()
        firing = injector.firing()
        found[name] = {"same": changed_nothing == plain, "count": firing.count if firing else 0}
    # A fault has the same effect on the backward pass as in a compiled function: the op's own gradient sees it.
    one = tf.constant(7, tf.float32).numpy().view(np.int32).item()
    for kind, compiled_name, (_type, function) in (
        ("Relu", "compiled/forward/Relu", OPS["Relu"]),
        ("Tanh", "compiled.1/forward/Tanh", OPS["Tanh"]),
        ("MatMul", "compiled.2/forward/matmul/MatMul", OPS["MatMul of a variable"]),
    ):
        names = (f"eager/forward/{kind}", compiled_name)
        hits = [injection(name, (3, 3), "float32", [1, 5], [one, one]) for name in names]
        eager.injector = EagerInjector(hits[:1])
        eager.begin()
        eager.injector.arm(0)
        faulty = results(function, variables)
        eager.end()
        INJECTORS[:] = [TensorFlowInjectionPoint(hits[1:])]

        @tf.function
        def compiled(function: Any = function) -> Any:
            with tf.GradientTape() as tape:
                value = function(*variables)
                loss = tf.reduce_sum(value**2)
            return (value, *tape.gradient(loss, variables))

        compiled()
        INJECTORS[0].arm(0)
        other = [each.numpy().tobytes().hex() for each in compiled()]
        found[f"{kind} as in a compiled function"] = {"same": faulty == other, "count": INJECTORS[0].firing().count}  # type: ignore[union-attr]
    # Ops of another thread do not belong to the step.
    eager.injector = None
    eager.begin(notes=True)
    thread = threading.Thread(target=lambda: results(OPS["Einsum"][1], variables))
    thread.start()
    thread.join()
    results(OPS["Relu"][1], variables)
    listed = [site.name for site in eager.sites()]
    found["names"] = [name for name in listed if "MatMul" in name or "Relu" in name or "Einsum" in name]
    print(json.dumps(found))


main()
