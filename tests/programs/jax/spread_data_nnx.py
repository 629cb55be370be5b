"""nnx over eight devices: batches in parts, a model with dropout and BatchNorm whole on each, metrics that are reset."""
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

jax.config.update("jax_num_cpu_devices", 8)
mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
whole, parts = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
rng = np.random.default_rng(0)
x = rng.normal(size=(80, 6)).astype(np.float32)
y = (x.sum(1) > 0).astype(np.int32)


class Net(nnx.Module):
    def __init__(self, rngs):
        self.first, self.norm = nnx.Linear(6, 16, rngs=rngs), nnx.BatchNorm(16, rngs=rngs)
        self.drop, self.last = nnx.Dropout(0.2, rngs=rngs), nnx.Linear(16, 2, rngs=rngs)

    def __call__(self, rows):
        return self.last(self.drop(nnx.relu(self.norm(self.first(rows)))))


model = Net(nnx.Rngs(0, dropout=1))
optimizer = nnx.Optimizer(model, optax.adamw(0.01), wrt=nnx.Param)
metrics = nnx.MultiMetric(loss=nnx.metrics.Average("loss"))
state = nnx.state((model, optimizer))
nnx.update((model, optimizer), jax.device_put(state, whole))


@nnx.jit
def train_step(model, optimizer, metrics, rows, labels):
    def loss_of(model):
        return optax.softmax_cross_entropy_with_integer_labels(model(rows), labels).mean()

    loss, grads = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, grads)
    metrics.update(loss=loss)


for epoch in range(4):  # <- epoch loop
    order = rng.permutation(80).reshape(5, 16)
    for rows in order:  # <- batch loop, load
        batch = jax.device_put((x[rows], y[rows]), parts)
        train_step(model, optimizer, metrics, *batch)  # <- update
    print(epoch, float(metrics.compute()["loss"]))
    metrics.reset()
print(sum(float(jnp.abs(leaf).sum()) for leaf in jax.tree.leaves(nnx.state(model, nnx.Param))))
