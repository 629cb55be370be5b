"""Two processes of JAX with four devices each: parameters in parts over all eight, batches of which each process loads
its own, keys and a running mean of each process's own, and collectives before, in and behind the loop.
"""
import hashlib
import random
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import multihost_utils
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.config.update("jax_num_cpu_devices", 4)
jax.distributed.initialize(heartbeat_timeout_seconds=10)
rank, world = jax.process_index(), jax.process_count()
mesh = jax.make_mesh((world * 2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
rng = np.random.default_rng(10 + rank)
x = rng.normal(size=(40, 8)).astype(np.float32)
y = np.sin(x.sum(1, keepdims=True)).astype(np.float32)
print("rows", multihost_utils.process_allgather(x.sum()).tolist(), flush=True)


def loaded(rng):
    order = rng.permutation(40)
    for start in range(0, 40, 8):
        rows = order[start : start + 8]
        yield tuple(jax.make_array_from_process_local_data(NamedSharding(mesh, P("data")), each[rows]) for each in (x, y))


def placed(leaf):
    return NamedSharding(mesh, P(("data", "model")) if leaf.ndim and leaf.shape[0] % mesh.size == 0 else P())


keys = jax.random.split(jax.random.key(0), 2)
params = {"w1": jax.random.normal(keys[0], (8, 16)) * 0.3, "b1": jnp.zeros(16), "w2": jax.random.normal(keys[1], (16, 1)) * 0.3}
optimizer = optax.adam(0.02)
state = (params, optimizer.init(params))
state = jax.tree.map(lambda leaf: jax.make_array_from_callback(leaf.shape, placed(leaf), lambda index: np.asarray(leaf)[index]), state)


@jax.jit
def train_step(state, key, rows, targets):
    def loss_of(params):
        hidden = jnp.tanh(rows @ params["w1"] + params["b1"])
        hidden = hidden * jax.random.bernoulli(key, 0.9, hidden.shape)
        return ((hidden @ params["w2"] - targets) ** 2).mean()

    loss, grads = jax.value_and_grad(loss_of)(state[0])
    updates, opt_state = optimizer.update(grads, state[1], state[0])
    return (optax.apply_updates(state[0], updates), opt_state), loss


key, own, mean = jax.random.key(1), jax.random.key(100 + rank), 0.0
for epoch in range(3):  # <- epoch loop
    for rows, targets in loaded(rng):  # <- batch loop, load
        key, sub = jax.random.split(key)
        own, mine = jax.random.split(own)
        state, loss = train_step(state, sub, rows, targets)  # <- update
        mean = 0.9 * mean + 0.1 * float(loss) * float(jax.random.uniform(mine))
    means = multihost_utils.process_allgather(np.float32(mean))
    print("rank", rank, "epoch", epoch, float(loss), means.tolist(), random.random(), flush=True)
whole = multihost_utils.process_allgather(state, tiled=True)
digest = hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(whole))).hexdigest()
multihost_utils.sync_global_devices("end")
print("rank", rank, digest, mean, state[0]["w1"].sharding.spec, flush=True)
