"""Train a small convolutional network on scikit-learn's handwritten digits, with a loop of our own."""

import argparse
import hashlib
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits


def make_data(batch_size):
    """Return (train, validation) sets of (image [batch, 8, 8, 1], label [batch])."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype("float32").reshape(-1, 8, 8, 1)
    labels = labels.astype("int64")
    order = np.random.permutation(len(images))
    train, held_out = order[:1437], order[1437:]

    def augment(image, label):
        image = tf.image.random_brightness(image, 0.2)
        image = tf.image.random_contrast(image, 0.8, 1.2)
        return image, label

    train_set = (
        tf.data.Dataset.from_tensor_slices((images[train], labels[train]))
        .shuffle(1437)
        .map(augment)
        .batch(batch_size)
        .prefetch(tf.data.AUTOTUNE)
    )
    held_out_set = tf.data.Dataset.from_tensor_slices((images[held_out], labels[held_out])).batch(batch_size)
    return train_set, held_out_set


def make_model():
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(10),
        ]
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--weights", help="where to write the weights at the end (.npz)")
    args = parser.parse_args()

    train_set, held_out_set = make_data(args.batch_size)
    model = make_model()
    schedule = keras.optimizers.schedules.CosineDecay(2e-3, args.epochs * len(train_set))
    optimizer = keras.optimizers.Adam(schedule)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    train_loss, train_accuracy = keras.metrics.Mean(), keras.metrics.SparseCategoricalAccuracy()
    held_out_accuracy = keras.metrics.SparseCategoricalAccuracy()

    @tf.function
    def train_step(images, labels):
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            loss = loss_of(labels, logits)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        train_loss.update_state(loss)
        train_accuracy.update_state(labels, logits)
        return loss

    best, history = 0.0, []
    for epoch in range(args.epochs):
        train_loss.reset_state()
        train_accuracy.reset_state()
        for step, (images, labels) in enumerate(train_set):
            loss = train_step(images, labels)
            if step % 15 == 0:
                print(f"epoch {epoch} step {step:2d} loss {float(loss):.6f}", flush=True)
        held_out_accuracy.reset_state()
        for images, labels in held_out_set:
            held_out_accuracy.update_state(labels, model(images, training=False))
        accuracy = float(held_out_accuracy.result())
        best = max(best, accuracy)
        history.append(accuracy)
        print(
            f"epoch {epoch} train loss {float(train_loss.result()):.6f} accuracy {float(train_accuracy.result()):.4f}"
            f" held out {accuracy:.4f} best {best:.4f}",
            flush=True,
        )

    weights = [variable.numpy() for variable in model.variables]
    if args.weights:
        np.savez(args.weights, *weights)
    print("held out by epoch:", " ".join(f"{value:.4f}" for value in history))
    print("weights", hashlib.sha256(b"".join(value.tobytes() for value in weights)).hexdigest())


if __name__ == "__main__":
    main()
