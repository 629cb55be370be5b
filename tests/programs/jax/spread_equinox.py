"""equinox: a model in parts by `filter_shard`, compiled filters, a moving average on the host's memory; a mesh is set in
the loop from the second epoch on."""
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

jax.config.update("jax_num_cpu_devices", 8)
mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
parts, host = NamedSharding(mesh, P("data")), NamedSharding(mesh, P("data"), memory_kind="pinned_host")
rng = np.random.default_rng(6)
x = rng.normal(size=(80, 16)).astype(np.float32)
y = x.max(1)
model = eqx.nn.MLP(16, 8, 16, 2, key=jax.random.key(0))
optimizer = optax.adamw(0.01)
opt_state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))
model, opt_state = (eqx.filter_shard(each, NamedSharding(mesh, P())) for each in (model, opt_state))
model = eqx.tree_at(lambda model: model.layers[0].weight, model, jax.device_put(model.layers[0].weight, parts))
average = jax.device_put(model.layers[0].weight, host)


@eqx.filter_jit
def train_step(model, opt_state, rows, targets):
    loss, grads = eqx.filter_value_and_grad(lambda model: ((jax.vmap(model)(rows).sum(1) - targets) ** 2).mean())(model)
    updates, opt_state = optimizer.update(grads, opt_state, eqx.filter(model, eqx.is_inexact_array))
    return eqx.apply_updates(model, updates), opt_state, loss


for epoch in range(3):  # <- epoch loop
    if epoch == 1:
        jax.set_mesh(mesh)
    for rows in rng.permutation(80).reshape(5, 16):  # <- batch loop, load
        batch = eqx.filter_shard((jnp.asarray(x[rows]), jnp.asarray(y[rows])), parts)
        model, opt_state, loss = train_step(model, opt_state, *batch)  # <- update
        average = jax.device_put(0.9 * jax.device_put(average, parts) + 0.1 * jax.device_put(model.layers[0].weight, parts), host)
    print(epoch, float(loss), jax.sharding.get_mesh().axis_names, average.sharding.memory_kind)
print(float(jnp.abs(jax.device_put(average, parts)).sum()), model.layers[0].weight.sharding)
