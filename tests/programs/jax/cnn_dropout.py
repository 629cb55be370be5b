"""A convolutional network of linen with dropout and batch normalisation, a TrainState, early stopping with the best kept."""
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax.training import train_state
from flax.training.early_stopping import EarlyStopping

x = np.random.default_rng(0).normal(size=(60, 8, 8, 1)).astype(np.float32)
y = (x.mean((1, 2, 3)) > 0).astype(np.int32)


class CNN(nn.Module):
    @nn.compact
    def __call__(self, x, training):
        x = nn.relu(nn.BatchNorm(use_running_average=not training)(nn.Conv(4, (3, 3))(x)))
        x = nn.avg_pool(x, (2, 2), (2, 2)).reshape((x.shape[0], -1))
        return nn.Dense(2)(nn.Dropout(0.4, deterministic=not training)(x))


class State(train_state.TrainState):
    batch_stats: Any


@jax.jit
def train_step(state, key, images, labels):
    def loss_of(params):
        logits, new = state.apply_fn(
            {"params": params, "batch_stats": state.batch_stats}, images, True, mutable=["batch_stats"], rngs={"dropout": key}
        )
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), new

    (loss, new), grads = jax.value_and_grad(loss_of, has_aux=True)(state.params)
    return state.apply_gradients(grads=grads, batch_stats=new["batch_stats"]), loss


@jax.jit
def evaluate(state):
    logits = state.apply_fn({"params": state.params, "batch_stats": state.batch_stats}, x[48:], False)
    return optax.softmax_cross_entropy_with_integer_labels(logits, y[48:]).mean()


def train_epoch(state, key, dropout):
    losses = []
    for rows in np.asarray(jax.random.permutation(key, 48)).reshape(6, 8):  # <- batch loop
        dropout, sub = jax.random.split(dropout)
        state, loss = train_step(state, sub, x[rows], y[rows])  # <- update
        losses.append(float(loss))
    return state, np.mean(losses)


model = CNN()
variables = model.init(jax.random.key(0), x[:1], False)
state = State.create(
    apply_fn=model.apply, params=variables["params"], tx=optax.adamw(3e-3), batch_stats=variables["batch_stats"]
)
stop, best, key = EarlyStopping(min_delta=1e-3, patience=2), (9e9, None), jax.random.key(1)
for epoch in range(6):  # <- epoch loop
    key, order, dropout = jax.random.split(key, 3)
    state, loss = train_epoch(state, order, dropout)
    held_out = float(evaluate(state))
    stop = stop.update(held_out)
    if held_out < best[0]:
        best = held_out, state.params
    print(epoch, loss, held_out)
    if stop.should_stop:
        break
print(best[0], sum(float(jnp.abs(leaf).sum()) for leaf in jax.tree.leaves(best[1])))
