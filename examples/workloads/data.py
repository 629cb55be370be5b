"""CIFAR-10, or a stand-in of its shape that can be learned, as tf.data sets of normalised images."""

import keras
import numpy as np
import tensorflow as tf

SIZE, PAD = 32, 6


def load(kind, train_count, valid_count):
    """Return ((images [n, 32, 32, 3] uint8, labels [n] int64) to train on, the same to validate on, which data these are)."""
    if kind != "synthetic":
        try:
            train, valid = ((images, labels[:, 0].astype("int64")) for images, labels in keras.datasets.cifar10.load_data())
            return [part[:train_count] for part in train], [part[:valid_count] for part in valid], "CIFAR-10"
        except Exception as error:  # keras raises Exception itself where the download fails
            if kind == "cifar10":
                raise SystemExit(f"CIFAR-10 cannot be had ({error}); --data synthetic trains on a stand-in") from error
    return *synthetic(train_count, valid_count), "a synthetic stand-in for CIFAR-10"


def synthetic(*counts):
    """Return images of ten classes: a colour and a coarse pattern each, under changes of brightness and noise."""
    rng = np.random.default_rng(10)
    patterns = np.kron(rng.uniform(-40, 40, (10, 4, 4, 3)), np.ones((1, 8, 8, 1))) + rng.uniform(-60, 60, (10, 1, 1, 3))
    parts = []
    for count in counts:
        labels = rng.integers(0, 10, count)
        images = np.empty((count, SIZE, SIZE, 3), "uint8")
        for start in range(0, count, 1000):
            part = patterns[labels[start : start + 1000]]
            part = part + rng.normal(0, 20, (len(part), 1, 1, 1)) + rng.normal(0, 40, part.shape)
            images[start : start + 1000] = np.clip(128 + part, 0, 255)
        parts.append((images, labels))
    return parts


def training_set(images, labels, mean, deviation, batch, count):
    """Return a set of `count` full batches an epoch, in random order; the first images come twice if there are too few."""
    order = np.arange(batch * count) % len(images)
    images, labels = tf.constant(images), tf.constant(labels)

    def fetch(indices):
        """Flip each image or not, pad it and crop it anywhere."""
        x = tf.image.random_flip_left_right((tf.cast(tf.gather(images, indices), tf.float32) - mean) / deviation)
        x = tf.pad(x, ((0, 0), (PAD, PAD), (PAD, PAD), (0, 0)))
        corners = tf.random.uniform((2, batch, 1), 0, 2 * PAD + 1, tf.int32) + tf.range(SIZE)
        x = tf.gather(tf.gather(x, corners[0], axis=1, batch_dims=1), corners[1], axis=2, batch_dims=1)
        return tf.ensure_shape(x, (batch, SIZE, SIZE, 3)), tf.gather(labels, indices)

    return tf.data.Dataset.from_tensor_slices(order).shuffle(len(order)).batch(batch, drop_remainder=True).map(fetch)


def validation_set(images, labels, mean, deviation, batch):
    """Return all images once, in order."""
    normalised = ((images - mean) / deviation).astype("float32")
    return tf.data.Dataset.from_tensor_slices((normalised, labels)).batch(batch)
