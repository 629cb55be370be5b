"""A step of JAX with a residual block of convolutions, of flax's linen, with the names of `jax_programs`."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import optax
from flax import linen

OPTIMIZER = optax.sgd(1e-2, momentum=0.9, nesterov=True)
ROWS, SIDE = 3, 6


class Residual(linen.Module):
    """A convolution, two more with batch norms around which the first goes, pools, and a head."""

    @linen.compact
    def __call__(self, images: Any) -> Any:
        first = linen.relu(linen.Conv(4, (3, 3))(images))
        hidden = linen.relu(linen.BatchNorm(use_running_average=False)(linen.Conv(4, (3, 3), use_bias=False)(first)))
        hidden = linen.BatchNorm(use_running_average=False)(linen.Conv(4, (3, 3), use_bias=False)(hidden))
        pooled = linen.max_pool(linen.relu(hidden + first), (2, 2), (2, 2))
        return linen.Dense(5)(linen.avg_pool(pooled, (3, 3)).reshape(ROWS, -1))


NETWORK = Residual()


def given() -> tuple[Any, ...]:
    """Return arguments of the step."""
    images = np.random.default_rng(0).normal(size=(ROWS, SIDE, SIDE, 2)).astype(np.float32)
    held = NETWORK.init(jax.random.key(1), images)
    return held["params"], held["batch_stats"], OPTIMIZER.init(held["params"]), images, np.arange(ROWS, dtype=np.int32) % 5


def compiled(*given_away: int) -> Any:
    """Return the step, to be traced anew; it may reuse the memory of these arguments."""

    def train_step(params: Any, stats: Any, state: Any, images: Any, labels: Any) -> Any:
        def loss_of(params: Any) -> Any:
            scores, held = NETWORK.apply({"params": params, "batch_stats": stats}, images, mutable=["batch_stats"])
            return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean(), held["batch_stats"]

        (loss, moved), gradients = jax.value_and_grad(loss_of, has_aux=True)(params)
        updates, state = OPTIMIZER.update(gradients, state, params)
        return optax.apply_updates(params, updates), moved, state, loss

    return jax.jit(train_step, donate_argnums=given_away)
