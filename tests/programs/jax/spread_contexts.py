"""Meshes that contexts set: one around the loops, by which specs alone say how arrays lie; another in each epoch's
validation; and the older `with mesh:` in a function that a step calls."""
import functools
import warnings
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

warnings.simplefilter("ignore", DeprecationWarning)
jax.config.update("jax_num_cpu_devices", 8)
optimizer = optax.adamw(0.02)


@functools.partial(jax.jit, donate_argnums=(0, 1))
def train_step(params, opt_state, rows, targets):
    def loss_of(params):
        hidden = jax.lax.with_sharding_constraint(jnp.tanh(rows @ params["w"]), P("data", "model"))
        return ((hidden @ params["v"] - targets) ** 2).mean()

    loss, grads = jax.value_and_grad(loss_of)(params)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


@jax.jit
def error_of(params, rows, targets):
    out = jnp.tanh(rows @ params["w"]) @ params["v"]
    return jnp.abs(jax.lax.with_sharding_constraint(out, P("all")) - targets).mean()


def scaled(mesh, targets):
    with mesh:
        return jax.jit(lambda each: each * 0.5, out_shardings=NamedSharding(mesh, P("data")))(targets)


def train(mesh, x, y, rng):
    params = jax.device_put({"w": jnp.eye(8, 16), "v": jnp.zeros((16, 1))}, P(None, None))
    opt_state, errors = optimizer.init(params), []
    every = Mesh(mesh.devices.reshape(-1), ("all",), axis_types=(AxisType.Auto,))
    for epoch in range(3):  # <- epoch loop
        for rows in rng.permutation(64).reshape(4, 16):  # <- batch loop, load
            batch = jax.device_put(x[rows], P("data"))
            params, opt_state, loss = train_step(params, opt_state, batch, scaled(mesh, y[rows]))  # <- update
        with jax.set_mesh(every):
            whole = jax.device_put(params, NamedSharding(every, P()))
            errors.append(error_of(whole, x, y))
        print(epoch, float(loss), float(errors[-1]), jax.sharding.get_mesh().axis_names)
    return params, errors


rng = np.random.default_rng(8)
x = rng.normal(size=(64, 8)).astype(np.float32)
y = x[:, :1] * x[:, 1:2]
mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
with jax.set_mesh(mesh):
    params, errors = train(mesh, x, y, rng)
print([float(each) for each in errors], float(optax.global_norm(params)), params["w"].sharding.spec)
