"""Tensor parallelism over a mesh of 4 x 2 with explicit axes, which `jax.set_mesh` sets: columns, then rows."""
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec as P

jax.config.update("jax_num_cpu_devices", 8)
jax.set_mesh(jax.make_mesh((4, 2), ("data", "model")))
rng = np.random.default_rng(2)
x = rng.normal(size=(64, 4)).astype(np.float32)
y = (x.prod(1) > 0).astype(np.int32)


def init(key):
    one, two = jax.random.split(key)
    return {
        "columns": jax.device_put(jax.random.normal(one, (4, 16)) * 0.5, P(None, "model")),
        "rows": jax.device_put(jax.random.normal(two, (16, 2)) * 0.5, P("model", None)),
        "bias": jax.device_put(jnp.zeros(2), P()),
    }


def forward(params, rows, key):
    hidden = jnp.tanh(rows @ params["columns"])
    hidden = hidden * jax.random.bernoulli(key, 0.9, hidden.shape, out_sharding=P("data", "model"))
    return jnp.einsum("bh,ho->bo", hidden, params["rows"], out_sharding=P("data", None)) + params["bias"]


@jax.jit
def train_step(params, opt_state, key, rows, labels):
    def loss_of(params):
        logits = forward(params, rows, key)
        return -(jax.nn.log_softmax(logits) * jax.nn.one_hot(labels, 2)).sum(1).mean()

    loss, grads = jax.value_and_grad(loss_of)(params)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


optimizer = optax.adam(0.02)
key, sub = jax.random.split(jax.random.key(3))
params = init(sub)
opt_state = optimizer.init(params)
for epoch in range(3):  # <- epoch loop
    for rows in rng.permutation(64).reshape(4, 16):  # <- batch loop, load
        key, sub = jax.random.split(key)
        batch = jax.device_put((x[rows], y[rows]), (P("data", None), P("data")))
        params, opt_state, loss = train_step(params, opt_state, sub, *batch)  # <- update
    print(epoch, float(loss), jax.typeof(params["columns"]))
print([float(jnp.abs(leaf).sum()) for leaf in jax.tree.leaves(params)])
