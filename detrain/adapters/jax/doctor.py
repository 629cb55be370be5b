"""Which computations JAX repeats bit for bit (see `detrain.adapters.repeated_cases`).

Each is compiled, as in a step. Where there are several devices, some go over all of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from detrain.adapters import repeated_cases
from detrain.adapters.repeated_cases import RNG, Case
from detrain.base.framework_names import JAX


def _settle() -> None:
    """Set the options that a run adds, before JAX is imported."""
    for name, option in JAX.options:
        if option not in os.environ.get(name, ""):
            os.environ[name] = f"{os.environ.get(name, '')} {option}".strip()


def cases() -> dict[str, Case]:
    """Return the computations by name. Their sizes make JAX split the work among threads."""
    import jax
    import jax.numpy as jnp
    from jax import lax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    def normal(*shape: int) -> Any:
        return jnp.asarray(repeated_cases.normal(*shape))

    def gradients(function: Callable[..., Any], *inputs: Any) -> Case:
        compiled = jax.jit(jax.grad(lambda *given: (function(*given) ** 2).sum(), tuple(range(len(inputs)))))
        return lambda: compiled(*inputs)

    def compiled(function: Callable[..., Any], *inputs: Any) -> Case:
        step = jax.jit(function)
        return lambda: step(*inputs)

    left, right = normal(384, 512), normal(512, 256)
    images, filters = normal(8, 16, 32, 32), normal(32, 16, 3, 3)
    rows, where = normal(20_000, 16), jnp.asarray(RNG.integers(0, 50, 20_000))
    heads, sequence, weights = normal(4, 64, 4, 32), normal(20, 16, 8), normal(8, 8) / 3

    def convolve(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, (1, 1), "SAME")

    def recur(w: Any, steps: Any) -> Any:
        return lax.scan(lambda state, step: (jnp.tanh(state @ w + step), None), jnp.zeros((16, 8)), steps)[0]

    found = {
        "matmul": compiled(jnp.matmul, left, right),
        "matmul, bfloat16": compiled(
            lambda a, b: (a.astype(jnp.bfloat16) @ b.astype(jnp.bfloat16)).astype(np.float32), left, right
        ),
        "matmul, gradients": gradients(jnp.matmul, left, right),
        "convolution": compiled(convolve, images, filters),
        "convolution, gradients": gradients(convolve, images, filters),
        "max pooling, gradient": gradients(
            lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 3, 3), (1, 1, 2, 2), "SAME"), images
        ),
        "sum over all": compiled(jnp.sum, rows),
        "mean over rows": compiled(lambda x: x.mean(0), rows),
        "running sum": compiled(lambda x: x.cumsum(0), rows),
        "softmax cross-entropy, gradient": gradients(
            lambda x: -jnp.take_along_axis(jax.nn.log_softmax(x), where[:, None] % 16, 1), rows
        ),
        "indexing, gradient": gradients(lambda table: table[where], rows[:50]),
        "scatter, added": compiled(jnp.zeros((50, 16)).at[where].add, rows),
        "segment sum": compiled(lambda x: jax.ops.segment_sum(x, where, 50), rows),
        "attention, gradients": gradients(jax.nn.dot_product_attention, heads, heads + 1, heads - 1),
        "steps of a scan, gradients": gradients(recur, weights, sequence),
        "sorting": compiled(lambda x: jnp.sort(x, 0), rows),
        "numbers of a key": compiled(lambda: jax.random.normal(jax.random.key(1), (20_000,))),
    }
    devices = jax.devices()
    if len(devices) > 1:
        over_all = NamedSharding(Mesh(np.array(devices), ("devices",)), PartitionSpec("devices"))
        parts = jax.device_put(normal(len(devices) * 64, 512), over_all)
        on_all = jax.device_put(right, NamedSharding(over_all.mesh, PartitionSpec()))
        found[f"mean over {len(devices)} devices"] = compiled(lambda x: x.mean(0), parts)
        found[f"matmul over {len(devices)} devices, gradients"] = gradients(jnp.matmul, parts, on_all)
    return found


def main() -> None:
    """Run the computations as the command's arguments say, on the devices that JAX takes by itself."""
    is_deterministic, repeats = repeated_cases.asked()
    if is_deterministic:
        _settle()
    import jax

    found = repeated_cases.repeated(
        cases(), repeats, lambda result: map(np.asarray, jax.tree.leaves(result)), RuntimeError, NotImplementedError
    )
    repeated_cases.say(jax.__version__, {jax.devices()[0].platform.upper(): found})


if __name__ == "__main__":
    main()
