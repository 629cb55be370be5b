"""Two processes of JAX with two devices each, by `jax.pmap`: parameters whole on each device, means over all four, keys
of each device's own."""
import functools
import hashlib
import jax
import jax.numpy as jnp
import numpy as np
import optax

jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.config.update("jax_num_cpu_devices", 2)
jax.distributed.initialize(heartbeat_timeout_seconds=10)
rank = jax.process_index()
rng = np.random.default_rng(4 + rank)
x = rng.normal(size=(40, 4)).astype(np.float32)
y = (x.sum(1) > 0).astype(np.float32)
optimizer = optax.adam(0.05)


def loss_of(params, rows, targets, key):
    rows = rows + 0.1 * jax.random.normal(key, rows.shape)
    return optax.sigmoid_binary_cross_entropy(rows @ params["w"], targets).mean()


@functools.partial(jax.pmap, axis_name="batch", donate_argnums=(0, 1))
def train_step(params, opt_state, keys, rows, targets):
    keys, sub = jax.random.split(keys)
    loss, grads = jax.value_and_grad(loss_of)(params, rows, targets, sub)
    updates, opt_state = optimizer.update(jax.lax.pmean(grads, "batch"), opt_state, params)
    return optax.apply_updates(params, updates), opt_state, keys, jax.lax.pmean(loss, "batch")


def replicated(tree):
    return jax.tree.map(lambda leaf: jnp.stack([leaf] * 2), tree)


params = {"w": jnp.zeros(4)}
opt_state, params = replicated(optimizer.init(params)), replicated(params)
keys = jax.random.split(jax.random.key(rank), 2)
for epoch in range(3):  # <- epoch loop
    for rows in rng.permutation(40).reshape(5, 2, 4):  # <- batch loop, load
        params, opt_state, keys, loss = train_step(params, opt_state, keys, x[rows], y[rows])  # <- update
    print("rank", rank, "epoch", epoch, float(loss[0]), flush=True)
digest = hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves((params, opt_state)))).hexdigest()
print("rank", rank, digest, jax.random.key_data(keys).tolist(), flush=True)
