"""An ensemble trained by vmap, gradients taken outside of jit for one of them, snapshots of the best members."""
import jax
import jax.numpy as jnp
import numpy as np
import optax

x = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
y = np.sin(x.sum(1))
optimizer = optax.lion(1e-2)


def loss_of(params, rows, targets):
    return ((jnp.tanh(rows @ params["a"]) @ params["b"] - targets) ** 2).mean()


def init(key):
    a, b = jax.random.split(key)
    return {"a": jax.random.normal(a, (4, 6)) * 0.5, "b": jax.random.normal(b, (6,)) * 0.5}


def one_step(params, opt_state, rows, targets):
    loss, grads = jax.value_and_grad(loss_of)(params, rows, targets)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


step = jax.jit(jax.vmap(one_step, in_axes=(0, 0, None, None)))
params = jax.vmap(init)(jax.random.split(jax.random.key(0), 3))
opt_state = jax.vmap(optimizer.init)(params)
teacher = init(jax.random.key(9))
best = [np.inf] * 3
kept = [None] * 3
for epoch in range(3):  # <- epoch loop
    for start in range(0, 40, 10):  # <- batch loop
        rows, targets = x[start:start + 10], y[start:start + 10]  # <- load
        params, opt_state, losses = step(params, opt_state, rows, targets)  # <- update
        grads = jax.grad(loss_of)(teacher, rows, targets)
        teacher = jax.tree.map(lambda p, g: p - 0.05 * g, teacher, grads)
    for member, loss in enumerate(losses.tolist()):
        if loss < best[member]:
            best[member], kept[member] = loss, jax.tree.map(lambda leaf: leaf[member], params)
    print(epoch, losses.tolist(), float(loss_of(teacher, x, y)))
print([float(jnp.abs(member["a"]).sum()) for member in kept])
