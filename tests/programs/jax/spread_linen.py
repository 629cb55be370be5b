"""linen: weights whose boxes say how they lie, a `TrainState` made in parts by a compiled function, a step that it is
given to and returned from, a cache of shardings that the loop fills, and weights averaged over epochs."""
import functools
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax.training.train_state import TrainState
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

jax.config.update("jax_num_cpu_devices", 8)
mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
rng = np.random.default_rng(7)
x = rng.normal(size=(64, 6)).astype(np.float32)
y = (np.abs(x).sum(1) > 4.8).astype(np.int32)


class Net(nn.Module):
    @nn.compact
    def __call__(self, rows, train):
        init = nn.with_partitioning(nn.initializers.lecun_normal(), (None, "model"))
        rows = nn.relu(nn.Dense(16, kernel_init=init)(rows))
        rows = nn.Dropout(0.2, deterministic=not train)(rows)
        return nn.Dense(2, kernel_init=nn.with_partitioning(nn.initializers.lecun_normal(), ("model", None)))(rows)


net = Net()


def create(key):
    params = net.init(key, x[:1], train=False)["params"]
    return TrainState.create(apply_fn=net.apply, params=params, tx=optax.adamw(0.02))


shapes = jax.eval_shape(create, jax.random.key(0))
shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), nn.get_partition_spec(shapes))
state = jax.jit(create, out_shardings=shardings)(jax.random.key(0))
known = {}


@functools.partial(jax.jit, donate_argnums=0)
def train_step(state, key, rows, labels):
    def loss_of(params):
        logits = state.apply_fn({"params": params}, rows, train=True, rngs={"dropout": key})
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    loss, grads = jax.value_and_grad(loss_of)(state.params)
    return state.apply_gradients(grads=grads), loss


average = None
for epoch in range(4):  # <- epoch loop
    for number, rows in enumerate(rng.permutation(64).reshape(4, 16)):  # <- batch loop, load
        place = known.setdefault(number, NamedSharding(mesh, P("data")))
        batch = jax.device_put((x[rows], y[rows]), place)
        state, loss = train_step(state, jax.random.fold_in(jax.random.key(5), epoch * 4 + number), *batch)  # <- update
    average = state.params if average is None else jax.tree.map(lambda one, other: 0.7 * one + 0.3 * other, average, state.params)
    average = jax.tree.map(jnp.copy, average)
    print(epoch, float(loss), int(state.step), nn.get_partition_spec(state.params)["Dense_0"]["kernel"])
print(float(optax.global_norm(average)), state.params["Dense_0"]["kernel"].value.sharding.spec, len(known))
