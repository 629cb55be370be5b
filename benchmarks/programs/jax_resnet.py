"""Train a ResNet of three blocks (flax.linen, optax) on scikit-learn's handwritten digits, compiled by JAX."""

import argparse

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits


class Block(nn.Module):
    """Two convolutions with batch norms, and what they are added to."""

    channels: int
    strides: int

    @nn.compact
    def __call__(self, x, *, train):
        out = nn.Conv(self.channels, (3, 3), self.strides, use_bias=False)(x)
        out = nn.relu(nn.BatchNorm(use_running_average=not train)(out))
        out = nn.Conv(self.channels, (3, 3), use_bias=False)(out)
        out = nn.BatchNorm(use_running_average=not train)(out)
        if x.shape != out.shape:
            x = nn.Conv(self.channels, (1, 1), self.strides, use_bias=False)(x)
        return nn.relu(x + out)


class ResNet(nn.Module):
    """Of 8 x 8 images [image, 8, 8, 1]: logits [image, 10]."""

    @nn.compact
    def __call__(self, x, *, train=True):
        x = nn.relu(nn.Conv(8, (3, 3))(x))
        for channels, strides in ((8, 1), (16, 2), (32, 2)):
            x = Block(channels, strides)(x, train=train)
        return nn.Dense(10)(x.mean((1, 2)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args()
    images, labels = load_digits(return_X_y=True)
    images, labels = (images / 16.0).astype(np.float32).reshape(-1, 8, 8, 1)[:1440], labels[:1440]
    model, optimizer = ResNet(), optax.adamw(1e-3)
    variables = model.init(jax.random.key(0), images[:1])
    params, stats, state = variables["params"], variables["batch_stats"], optimizer.init(variables["params"])

    @jax.jit
    def step(params, stats, state, x, y):
        def loss_of(params):
            logits, changed = model.apply({"params": params, "batch_stats": stats}, x, mutable=["batch_stats"])
            return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), changed["batch_stats"]

        (loss, stats), gradients = jax.value_and_grad(loss_of, has_aux=True)(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), stats, state, loss

    rng = np.random.default_rng(0)
    for epoch in range(args.epochs):
        total = 0.0
        for rows in rng.permutation(len(images)).reshape(-1, args.batch_size):
            params, stats, state, loss = step(params, stats, state, images[rows], labels[rows])
            total += float(loss)
        print(f"epoch {epoch} loss {total / (len(images) // args.batch_size):.6f}", flush=True)
    print("weights", float(jnp.concatenate([value.ravel() for value in jax.tree.leaves(params)]).sum()))


if __name__ == "__main__":
    main()
