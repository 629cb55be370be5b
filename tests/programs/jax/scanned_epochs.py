"""A whole epoch in one compiled function: the loop over epochs is then the one over batches."""
import jax
import jax.numpy as jnp
import numpy as np
import optax

x = jnp.asarray(np.random.default_rng(0).normal(size=(48, 5)), jnp.float32)
y = (x.sum(1) > 0).astype(jnp.float32)
optimizer = optax.sgd(0.1, momentum=0.9)


def step(carry, rows):
    params, opt_state = carry
    loss, grads = jax.value_and_grad(lambda p: optax.sigmoid_binary_cross_entropy(x[rows] @ p["w"] + p["b"], y[rows]).mean())(params)
    updates, opt_state = optimizer.update(grads, opt_state)
    return (optax.apply_updates(params, updates), opt_state), loss


@jax.jit
def train_epoch(params, opt_state, key):
    order = jax.random.permutation(key, 48).reshape(6, 8)
    (params, opt_state), losses = jax.lax.scan(step, (params, opt_state), order)
    return params, opt_state, losses.mean()


params = {"w": jnp.zeros(5), "b": 0.0}
opt_state, key = optimizer.init(params), jax.random.key(0)
for epoch in range(10):  # <- batch loop
    key, sub = jax.random.split(key)  # <- load
    params, opt_state, loss = train_epoch(params, opt_state, sub)  # <- update
    print(epoch, float(loss))
print(float(optax.global_norm(params)))
