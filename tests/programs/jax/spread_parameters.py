"""Parameters and the moments of Adam in parts on eight devices (as FSDP has them), taken and given back by a compiled
step; the best of them are kept, and the weights of the epoch before, which the step takes away."""
import functools
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

jax.config.update("jax_num_cpu_devices", 8)
mesh = jax.make_mesh((8,), ("fsdp",), axis_types=(AxisType.Auto,))
rng = np.random.default_rng(1)
x = rng.normal(size=(96, 8)).astype(np.float32)
y = np.sin(x.sum(1, keepdims=True)).astype(np.float32)


def placed(leaf):
    return NamedSharding(mesh, P("fsdp") if leaf.ndim and leaf.shape[0] % 8 == 0 else P())


keys = jax.random.split(jax.random.key(0), 2)
params = {"w1": jax.random.normal(keys[0], (8, 32)) * 0.3, "b1": jnp.zeros(32), "w2": jax.random.normal(keys[1], (32, 1)) * 0.3}
optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(optax.cosine_decay_schedule(0.02, 40)))
opt_state = optimizer.init(params)
state = jax.tree.map(lambda leaf: jax.device_put(leaf, placed(leaf)), (params, opt_state))
shardings = jax.tree.map(lambda leaf: leaf.sharding, state)


def loss_of(params, rows, targets):
    return ((jnp.tanh(rows @ params["w1"] + params["b1"]) @ params["w2"] - targets) ** 2).mean()


@functools.partial(jax.jit, donate_argnums=0, out_shardings=(shardings, None))
def train_step(state, rows, targets):
    params, opt_state = state
    loss, grads = jax.value_and_grad(loss_of)(params, rows, targets)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return (optax.apply_updates(params, updates), opt_state), loss


best, kept = 9e9, None
for epoch in range(4):  # <- epoch loop
    total, start = 0.0, state  # taken away by the first step
    for rows in rng.permutation(96).reshape(6, 16):  # <- batch loop, load
        batch = jax.device_put((x[rows], y[rows]), NamedSharding(mesh, P("fsdp")))
        state, loss = train_step(state, *batch)  # <- update
        total += float(loss)
    if total < best:
        best, kept = total, jax.tree.map(jnp.copy, state[0])
    print(epoch, total, start[0]["w1"].is_deleted())
print(best, [float(jnp.abs(leaf).sum()) for leaf in jax.tree.leaves((state, kept))], state[0]["w1"].sharding)
