"""Two networks of equinox with an optimizer each, trained in turn, donated states."""
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

real = np.random.default_rng(0).normal(2, 0.5, size=(80, 2)).astype(np.float32)
keys = jax.random.split(jax.random.key(0), 3)
generator = eqx.nn.MLP(3, 2, 16, 2, key=keys[0])
discriminator = eqx.nn.MLP(2, 1, 16, 2, activation=jax.nn.leaky_relu, key=keys[1])
g_optim, d_optim = optax.adam(1e-3, b1=0.5), optax.rmsprop(1e-3)
g_state = g_optim.init(eqx.filter(generator, eqx.is_inexact_array))
d_state = d_optim.init(eqx.filter(discriminator, eqx.is_inexact_array))


def logits_of(discriminator, rows):
    return jax.vmap(discriminator)(rows)


@eqx.filter_jit(donate="all-except-first")
def step_discriminator(inputs, discriminator, d_state):
    rows, fake = inputs

    def loss(discriminator):
        good, bad = logits_of(discriminator, rows), logits_of(discriminator, fake)
        return optax.sigmoid_binary_cross_entropy(good, jnp.ones_like(good)).mean() + optax.sigmoid_binary_cross_entropy(bad, jnp.zeros_like(bad)).mean()

    value, grads = eqx.filter_value_and_grad(loss)(discriminator)
    updates, d_state = d_optim.update(grads, d_state)
    return eqx.apply_updates(discriminator, updates), d_state, value


@eqx.filter_jit
def step_generator(generator, g_state, discriminator, noise):
    @eqx.filter_value_and_grad
    def loss(generator):
        bad = logits_of(discriminator, jax.vmap(generator)(noise))
        return optax.sigmoid_binary_cross_entropy(bad, jnp.ones_like(bad)).mean()

    value, grads = loss(generator)
    updates, g_state = g_optim.update(grads, g_state)
    return eqx.apply_updates(generator, updates), g_state, value


key, rng = keys[2], np.random.default_rng(1)
for epoch in range(3):  # <- epoch loop
    for start in range(0, 80, 16):  # <- batch loop
        rows = real[rng.integers(0, 80, 16)]  # <- load
        key, sub = jax.random.split(key)
        noise = jax.random.normal(sub, (16, 3))
        fake = jax.vmap(generator)(noise)
        discriminator, d_state, d_loss = step_discriminator((rows, fake), discriminator, d_state)  # <- update
        generator, g_state, g_loss = step_generator(generator, g_state, discriminator, noise)  # <- update
    print(epoch, float(d_loss), float(g_loss))
