"""A variational autoencoder: two networks in one tuple of parameters, a key in the loop, a sample kept each epoch."""
import jax
import jax.numpy as jnp
import numpy as np
import optax

data = jnp.asarray(np.random.default_rng(0).uniform(size=(64, 10)), jnp.float32)


def dense(key, m, n):
    return jax.random.normal(key, (m, n)) / np.sqrt(m), jnp.zeros(n)


def encode(params, x):
    h = jax.nn.gelu(x @ params[0][0] + params[0][1])
    out = h @ params[1][0] + params[1][1]
    return jnp.split(out, 2, axis=-1)


def decode(params, z):
    return jax.nn.gelu(z @ params[0][0] + params[0][1]) @ params[1][0] + params[1][1]


def elbo(params, key, x):
    mean, log_var = encode(params[0], x)
    z = mean + jnp.exp(0.5 * log_var) * jax.random.normal(key, mean.shape)
    logits = decode(params[1], z)
    bce = optax.sigmoid_binary_cross_entropy(logits, x).sum(-1)
    return (bce - 0.5 * (1 + log_var - mean**2 - jnp.exp(log_var)).sum(-1)).mean()


opt = optax.adabelief(optax.exponential_decay(1e-2, 10, 0.9))


@jax.jit
def train_step(params, opt_state, key, batch):
    loss, grads = jax.value_and_grad(elbo)(params, key, batch)
    updates, opt_state = opt.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


key = jax.random.PRNGKey(0)
a, b, c, d, key = jax.random.split(key, 5)
params = ([dense(a, 10, 16), dense(b, 16, 6)], [dense(c, 3, 16), dense(d, 16, 10)])
opt_state, samples = opt.init(params), []
for epoch in range(4):  # <- epoch loop
    key, shuffle = jax.random.split(key)
    for rows in jax.random.permutation(shuffle, 64).reshape(-1, 16):  # <- batch loop
        key, sub = jax.random.split(key)
        params, opt_state, loss = train_step(params, opt_state, sub, data[rows])  # <- load, update
    key, sub = jax.random.split(key)
    samples.append(decode(params[1], jax.random.normal(sub, (2, 3))))
    print(epoch, float(loss), float(samples[-1].sum()))
