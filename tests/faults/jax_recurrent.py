"""A step of JAX with recurrent layers of flax and equinox, with the names of `jax_programs`."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen, nnx
from jax import lax

OPTIMIZER = optax.sgd(1e-2, momentum=0.9)
ROWS, TURNS, FEATURES = 4, 3, 6
LSTM = linen.RNN(linen.LSTMCell(FEATURES))


class Cells(eqx.Module):
    """A GRU of equinox, which a loop of the program runs, and a head."""

    gru: eqx.nn.GRUCell
    head: eqx.nn.Linear

    def __call__(self, rows: Any) -> Any:
        last, _ = lax.scan(lambda state, row: (self.gru(row, state), None), jnp.zeros(FEATURES), rows)
        return self.head(last)


def init() -> Any:
    """Return parameters and optimizer state."""
    keys = jax.random.split(jax.random.key(3), 3)
    ours = Cells(eqx.nn.GRUCell(FEATURES, FEATURES, key=keys[0]), eqx.nn.Linear(FEATURES, 5, key=keys[1]))
    params = (LSTM.init(keys[2], given_rows()), nnx.state(nnx_gru(), nnx.Param), eqx.filter(ours, eqx.is_array))
    return params, OPTIMIZER.init(params)


def nnx_gru() -> Any:
    """Return a GRU of nnx."""
    return nnx.RNN(nnx.GRUCell(FEATURES, FEATURES, rngs=nnx.Rngs(1)))


def given_rows() -> Any:
    """Return sequences."""
    return np.random.default_rng(0).normal(size=(ROWS, TURNS, FEATURES)).astype(np.float32)


def given() -> tuple[Any, ...]:
    """Return arguments of the step."""
    return *init(), given_rows(), np.arange(ROWS, dtype=np.int32) % 5


def compiled(*given_away: int) -> Any:
    """Return the step, to be traced anew; it may reuse the memory of these arguments."""
    graph, _params, streams = nnx.split(nnx_gru(), nnx.Param, ...)

    def train_step(params: Any, state: Any, rows: Any, labels: Any) -> Any:
        def loss_of(params: Any) -> Any:
            hidden = nnx.merge(graph, params[1], streams)(LSTM.apply(params[0], rows), initial_carry=jnp.zeros((ROWS, FEATURES)))
            scores = jax.vmap(params[2])(hidden)
            return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()

        loss, gradients = jax.value_and_grad(loss_of)(params)
        updates, state = OPTIMIZER.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    return jax.jit(train_step, donate_argnums=given_away)
