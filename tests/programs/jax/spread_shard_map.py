"""`shard_map` with sums over devices, keys of each device's own, and moments that differ from device to device, though
they say that they are whole on each."""
import functools
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

jax.config.update("jax_num_cpu_devices", 8)
mesh = jax.make_mesh((8,), ("i",), axis_types=(AxisType.Auto,))
rng = np.random.default_rng(3)
x = rng.normal(size=(80, 5)).astype(np.float32)
y = x @ np.arange(1.0, 6.0, dtype=np.float32)
optimizer = optax.sgd(0.02)
params = jax.device_put({"w": jnp.zeros(5), "b": jnp.zeros(())}, NamedSharding(mesh, P()))
moments = jax.device_put(jnp.zeros(5), NamedSharding(mesh, P()))
keys = jax.device_put(jax.random.split(jax.random.key(0, impl="rbg"), 8), NamedSharding(mesh, P("i")))


@functools.partial(jax.jit, donate_argnums=(0, 1, 2))
@functools.partial(
    jax.shard_map, mesh=mesh, in_specs=(P(), P(), P("i"), P("i"), P("i")), out_specs=(P(), P(), P("i"), P()), check_vma=False
)
def train_step(params, moments, keys, rows, targets):
    key, sub = jax.random.split(keys[0])
    rows = rows + 0.01 * jax.random.normal(sub, rows.shape)
    loss, grads = jax.value_and_grad(lambda params: ((rows @ params["w"] + params["b"] - targets) ** 2).mean())(params)
    moments = 0.9 * moments + grads["w"]
    grads = jax.lax.pmean({"w": moments, "b": grads["b"]}, "i")
    updates, _ = optimizer.update(grads, optimizer.init(params))
    return optax.apply_updates(params, updates), moments, key[None], jax.lax.pmean(loss, "i")


for epoch in range(3):  # <- epoch loop
    for rows in rng.permutation(80).reshape(5, 16):  # <- batch loop, load
        params, moments, keys, loss = train_step(params, moments, keys, x[rows], y[rows])  # <- update
    print(epoch, float(loss), len({np.asarray(each.data).tobytes() for each in moments.addressable_shards}))
print(params["w"], float(params["b"]), [float(each.data.sum()) for each in moments.addressable_shards])
