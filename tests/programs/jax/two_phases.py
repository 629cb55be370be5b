"""Pretraining, then training with another optimizer and frozen layers, functions compiled in each phase; bfloat16."""
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

x = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)


def forward(params, rows, noise=0.0, key=None):
    rows = rows.astype(jnp.bfloat16)
    if key is not None:
        rows = rows + noise * jax.random.normal(key, rows.shape, rows.dtype)
    return jnp.tanh(rows @ params["in"]) @ params["out"]


def train(params, optimizer, noise, epochs, key):
    opt_state = optimizer.init(params)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, opt_state, rows, key):
        loss, grads = jax.value_and_grad(lambda p: ((forward(p, rows, noise, key) - rows) ** 2).mean())(params)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    for epoch in range(epochs):  # <- epoch loop
        for start in range(0, 32, 8):  # <- batch loop
            key, sub = jax.random.split(key)
            params, opt_state, loss = step(params, opt_state, x[start:start + 8], sub)  # <- load, update
        print(epoch, float(loss))
    return params, key


keys = jax.random.split(jax.random.key(0), 3)
params = {"in": jax.random.normal(keys[0], (4, 8), jnp.bfloat16), "out": jax.random.normal(keys[1], (8, 4), jnp.bfloat16)}
params, key = train(params, optax.adam(1e-2), 0.1, 2, keys[2])
frozen = optax.partition({"train": optax.sgd(0.1), "keep": optax.set_to_zero()}, {"in": "keep", "out": "train"})
params, key = train(params, frozen, 0.2, 3, key)
print(float(jnp.abs(params["in"]).sum()), float(jnp.abs(params["out"]).sum()))
