"""`jax.pmap` with replicated parameters, means over devices, a static flag, and keys of which a part is each device's."""
import functools
import jax
import jax.numpy as jnp
import numpy as np
import optax

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_threefry_partitionable", False)
rng = np.random.default_rng(4)
x = rng.normal(size=(80, 4)).astype(np.float32)
y = (x.sum(1) > 0).astype(np.float32)
optimizer = optax.adam(0.05)


def loss_of(params, rows, targets, key, is_noisy):
    noise = 0.1 * jax.random.normal(key, rows.shape) if is_noisy else 0.0
    return optax.sigmoid_binary_cross_entropy((rows + noise) @ params["w"] + params["b"], targets).mean()


@functools.partial(jax.pmap, axis_name="batch", static_broadcasted_argnums=(5,), donate_argnums=(0, 1))
def train_step(params, opt_state, keys, rows, targets, is_noisy):
    keys, sub = jax.random.split(keys)
    loss, grads = jax.value_and_grad(loss_of)(params, rows, targets, sub, is_noisy)
    grads = jax.lax.pmean(grads, "batch")
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, keys, jax.lax.pmean(loss, "batch")


def replicated(tree):
    return jax.tree.map(lambda leaf: jnp.stack([leaf] * 8), tree)


params = {"w": jnp.zeros(4), "b": jnp.zeros(())}
opt_state = replicated(optimizer.init(params))
params, keys = replicated(params), jax.random.split(jax.random.key(1), 8)
for epoch in range(4):  # <- epoch loop
    for rows in rng.permutation(80).reshape(5, 8, 2):  # <- batch loop, load
        params, opt_state, keys, loss = train_step(params, opt_state, keys, x[rows], y[rows], epoch % 2 == 0)  # <- update
    print(epoch, float(loss[0]), type(params["w"].sharding).__name__)
print([np.asarray(leaf)[0].tolist() for leaf in jax.tree.leaves(params)])
