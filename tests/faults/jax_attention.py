"""A step of JAX with a block of a transformer, of flax's nnx, with the names of `jax_programs`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

OPTIMIZER = optax.sgd(1e-2, momentum=0.9)
"""Without a clip by the global norm: as for AdamW, XLA divides by one number otherwise if it sees that."""
ROWS, TURNS, FEATURES = 3, 4, 8


class Block(nnx.Module):
    """Embeddings, causal attention and a feed-forward layer, each with a residual, and a head."""

    def __init__(self) -> None:
        rngs = nnx.Rngs(2)
        self.words, self.head = nnx.Embed(11, FEATURES, rngs=rngs), nnx.Linear(FEATURES, 5, rngs=rngs)
        self.before, self.behind = nnx.LayerNorm(FEATURES, rngs=rngs), nnx.RMSNorm(FEATURES, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(2, FEATURES, decode=False, rngs=rngs)
        self.wide, self.narrow = nnx.Linear(FEATURES, 12, rngs=rngs), nnx.Linear(12, FEATURES, rngs=rngs)

    def __call__(self, ids: Any) -> Any:
        hidden = self.words(ids)
        hidden = hidden + self.attention(self.before(hidden), mask=nnx.make_causal_mask(ids))
        hidden = hidden + self.narrow(nnx.gelu(self.wide(self.behind(hidden))))
        return self.head(hidden.mean(1))


def given() -> tuple[Any, ...]:
    """Return arguments of the step."""
    params = nnx.state(Block(), nnx.Param)
    ids = np.random.default_rng(0).integers(0, 11, (ROWS, TURNS)).astype(np.int32)
    return params, OPTIMIZER.init(params), ids, np.arange(ROWS, dtype=np.int32) % 5


def compiled(*given_away: int) -> Any:
    """Return the step, to be traced anew; it may reuse the memory of these arguments."""
    graph, _params, rest = nnx.split(Block(), nnx.Param, ...)

    def train_step(params: Any, state: Any, ids: Any, labels: Any) -> Any:
        def loss_of(params: Any) -> Any:
            return optax.softmax_cross_entropy_with_integer_labels(nnx.merge(graph, params, rest)(ids), labels).mean()

        loss, gradients = jax.value_and_grad(loss_of)(params)
        updates, state = OPTIMIZER.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, jnp.asarray(loss)

    return jax.jit(train_step, donate_argnums=given_away)
