"""Train a small convolutional network on scikit-learn's handwritten digits with JAX and optax: an augmenting loader,
dropout, a schedule, the best parameters kept, and an end when the held-out accuracy no longer grows. With `--devices 8`,
batches and parameters are spread over eight devices (on a CPU, the processor stands for all of them).
"""

import argparse
import functools
import hashlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from sklearn.datasets import load_digits


def init(key):
    """Return the parameters of two convolutions and a dense layer."""
    shapes = {"conv1": (3, 3, 1, 32), "conv2": (3, 3, 32, 64), "dense": (64 * 4 * 4, 10)}
    keys = jax.random.split(key, len(shapes))
    he = jax.nn.initializers.he_normal()
    return {name: {"w": he(key, shape), "b": jnp.zeros(shape[-1])} for key, (name, shape) in zip(keys, shapes.items())}


def convolve(layer, images):
    out = jax.lax.conv_general_dilated(images, layer["w"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return jax.nn.relu(out + layer["b"])


def forward(params, images, key=None):
    """Return the logits [image, 10] of images [image, 8, 8, 1]; with a key, dropout is on."""
    hidden = convolve(params["conv1"], images)
    hidden = jax.lax.reduce_window(hidden, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    hidden = convolve(params["conv2"], hidden).reshape(len(images), -1)
    if key is not None:
        hidden = hidden * jax.random.bernoulli(key, 0.7, hidden.shape) / 0.7
    return hidden @ params["dense"]["w"] + params["dense"]["b"]


def batches(images, labels, size, rng):
    """Yield the batches of an epoch, in a new order, with noise and another brightness each time."""
    order = rng.permutation(len(images))
    for start in range(0, len(order), size):
        rows = order[start : start + size]
        noise = rng.normal(scale=0.05, size=images[rows].shape)
        yield (images[rows] * rng.uniform(0.8, 1.2) + noise).astype(np.float32), labels[rows]


def spread(mesh, tree):
    """Return arrays over the devices of a mesh: in equal parts along their last axis, or whole on each."""

    def put(leaf):
        axes = [None] * (leaf.ndim - 1) + ["data"] if leaf.ndim and leaf.shape[-1] % mesh.size == 0 else []
        return jax.device_put(leaf, NamedSharding(mesh, PartitionSpec(*axes)))

    return jax.tree.map(put, tree)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--patience", type=int, default=3)
    parser.add_argument("--devices", type=int, default=1)
    args = parser.parse_args()
    if args.devices > 1:
        jax.config.update("jax_num_cpu_devices", args.devices)
    mesh = jax.make_mesh((args.devices,), ("data",), axis_types=(AxisType.Auto,))

    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype(np.float32).reshape(-1, 8, 8, 1)
    rng = np.random.default_rng(0)
    order = rng.permutation(len(images))
    train, held_out = order[:1437], order[1437:]

    steps = args.epochs * -(-len(train) // args.batch_size)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(optax.warmup_cosine_decay_schedule(0.0, 3e-3, 20, steps)))

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def train_step(params, opt_state, key, images, labels):
        def loss_of(params):
            logits = forward(params, images, key)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        loss, grads = jax.value_and_grad(loss_of)(params)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    @jax.jit
    def accuracy_of(params):
        return (forward(params, images[held_out]).argmax(1) == labels[held_out]).mean()

    key, sub = jax.random.split(jax.random.key(0))
    params = init(sub)
    opt_state = optimizer.init(params)
    if args.devices > 1:
        params, opt_state = spread(mesh, (params, opt_state))
    best, kept, since_best, history = 0.0, None, 0, []
    for epoch in range(args.epochs):
        total = 0.0
        for step, (rows, targets) in enumerate(batches(images[train], labels[train], args.batch_size, rng)):
            key, sub = jax.random.split(key)
            if len(rows) % args.devices == 0:
                rows, targets = jax.device_put((rows, targets), NamedSharding(mesh, PartitionSpec("data")))
            params, opt_state, loss = train_step(params, opt_state, sub, rows, targets)
            total += float(loss)
            if step % 15 == 0:
                print(f"epoch {epoch} step {step:2d} loss {float(loss):.6f}", flush=True)
        accuracy = float(accuracy_of(params))
        history.append(accuracy)
        since_best = 0 if accuracy > best else since_best + 1
        if accuracy > best:
            best, kept = accuracy, jax.tree.map(jnp.copy, params)
        print(f"epoch {epoch} train loss {total / (step + 1):.6f} held out {accuracy:.4f} best {best:.4f}", flush=True)
        if since_best == args.patience:
            print("no better for", args.patience, "epochs")
            break

    weights = b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves((params, kept)))
    print("held out by epoch:", " ".join(f"{value:.4f}" for value in history))
    print("weights", hashlib.sha256(weights).hexdigest())


if __name__ == "__main__":
    main()
