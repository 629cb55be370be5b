"""Two processes of JAX with a device each: parameters and moments that `device_put` copies to both, and batches of
which each process loads its own half.
"""
import hashlib
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec as P

jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(heartbeat_timeout_seconds=10)
rank = jax.process_index()
mesh = jax.make_mesh((jax.device_count(),), ("data",))
everywhere, in_parts = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
rng = np.random.default_rng(10 + rank)
x = rng.normal(size=(20, 8)).astype(np.float32)
optimizer = optax.adam(0.02)
params = {"w": jax.random.normal(jax.random.key(0), (8, 4)) * 0.3, "b": jnp.zeros(4)}
(params, slots), key = jax.device_put((params, optimizer.init(params)), everywhere), jax.random.key(1)


@jax.jit
def train_step(params, slots, key, rows):
    def loss_of(params):
        hidden = jnp.tanh(rows @ params["w"] + params["b"])
        return (jnp.where(jax.random.bernoulli(key, 0.9, hidden.shape), hidden, 0) ** 2).mean() - hidden.mean()

    loss, grads = jax.value_and_grad(loss_of)(params)
    updates, slots = optimizer.update(grads, slots, params)
    return optax.apply_updates(params, updates), slots, loss


for epoch in range(3):  # <- epoch loop
    order = rng.permutation(20)
    for start in range(0, 20, 4):  # <- batch loop
        rows = jax.make_array_from_process_local_data(in_parts, x[order[start : start + 4]])
        key, sub = jax.random.split(key)
        params, slots, loss = train_step(params, slots, sub, rows)  # <- update
    print("rank", rank, epoch, float(loss).hex(), flush=True)
digest = hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves((params, slots))))
print("rank", rank, digest.hexdigest(), jax.random.key_data(key).tolist(), flush=True)
