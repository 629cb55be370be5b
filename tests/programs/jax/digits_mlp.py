"""A perceptron with parameters in a list, weights moved by hand, batches of a permutation (after JAX's own example)."""
import itertools
import jax
import jax.numpy as jnp
import numpy as np
import numpy.random as npr

images = npr.RandomState(0).randn(90, 12).astype(np.float32)
labels = np.eye(3, dtype=np.float32)[npr.RandomState(1).randint(0, 3, 90)]


def init(scale, sizes, rng=npr.RandomState(0)):
    return [(scale * rng.randn(m, n), scale * rng.randn(n)) for m, n in zip(sizes[:-1], sizes[1:])]


def predict(params, inputs):
    for w, b in params[:-1]:
        inputs = jnp.tanh(jnp.dot(inputs, w) + b)
    w, b = params[-1]
    logits = jnp.dot(inputs, w) + b
    return logits - jax.scipy.special.logsumexp(logits, axis=1, keepdims=True)


def loss(params, batch):
    inputs, targets = batch
    return -jnp.mean(jnp.sum(predict(params, inputs) * targets, axis=1))


@jax.jit
def update(params, batch):
    grads = jax.grad(loss)(params, batch)
    return [(w - 0.1 * dw, b - 0.1 * db) for (w, b), (dw, db) in zip(params, grads)]


def stream():
    rng = npr.RandomState(0)
    while True:
        order = rng.permutation(90)
        for i in range(6):
            rows = order[i * 15:(i + 1) * 15]
            yield images[rows], labels[rows]


batches = stream()
params = init(0.3, [12, 16, 3])
for epoch in range(4):  # <- epoch loop
    for _ in range(6):  # <- batch loop
        params = update(params, next(batches))  # <- load, update
    print(epoch, float(loss(params, (images, labels))))
print(sum(float(jnp.abs(w).sum()) for w, _ in params))
