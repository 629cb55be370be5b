"""A scan over layers whose weights are stacked and in parts, activations that are placed in it; the plan of the mesh is
an object that the loop replaces, and the learning rate an array that is not committed anywhere."""
import dataclasses
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

jax.config.update("jax_num_cpu_devices", 8)


@dataclasses.dataclass
class Plan:
    mesh: Mesh
    weights: NamedSharding
    rows: NamedSharding
    epochs: int = 0


def plan_of(mesh, epochs=0):
    return Plan(mesh, NamedSharding(mesh, P(None, None, "model")), NamedSharding(mesh, P("data")), epochs)


plan = plan_of(jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2))
rng = np.random.default_rng(5)
x = rng.normal(size=(60, 8)).astype(np.float32)
y = np.tanh(x[:, ::-1])
params = jax.device_put(jax.random.normal(jax.random.key(0), (3, 8, 8)) * 0.3, plan.weights)
optimizer = optax.MultiSteps(optax.adam(0.01), every_k_schedule=2)
opt_state = optimizer.init(params)


def forward(params, rows):
    def layer(hidden, weights):
        hidden = jax.lax.with_sharding_constraint(jnp.tanh(hidden @ weights), NamedSharding(plan.mesh, P("data", "model")))
        return hidden, hidden.mean()

    return jax.lax.scan(layer, rows, params)


@jax.jit
def train_step(params, opt_state, rate, rows, targets):
    def loss_of(params):
        out, means = forward(params, rows)
        return ((out - targets) ** 2).mean() + 0.01 * means.sum()

    loss, grads = jax.value_and_grad(loss_of)(params)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, jax.tree.map(lambda update: rate * update, updates)), opt_state, loss


for epoch in range(3):  # <- epoch loop
    rate = jnp.asarray(1.0 / (1 + epoch))
    for rows in rng.permutation(60).reshape(6, 10):  # <- batch loop, load
        batch = jax.device_put((x[rows], y[rows]), plan.rows)
        params, opt_state, loss = train_step(params, opt_state, rate, *batch)  # <- update
    plan = plan_of(plan.mesh, epoch + 1)
    print(epoch, float(loss), rate.committed, plan.epochs, plan.mesh is plan.weights.mesh)
print(float(jnp.abs(params).sum()), params.sharding)
