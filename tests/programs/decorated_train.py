import functools
import time

import numpy as np
import tensorflow as tf


def timed(label):
    def wrap(fn):
        @functools.wraps(fn)
        def inner(*args, **kwargs):
            begin = time.monotonic()
            try:
                return fn(*args, **kwargs)
            finally:
                print(f"{label}: {time.monotonic() - begin:.2f}s")
        return inner
    return wrap


@timed("training")
def train(model, optimizer, data, num_epochs):
    for epoch in range(num_epochs):  # <- epoch loop
        loss = run_epoch(model, optimizer, data)
        print("epoch", epoch, "loss", loss)


@timed("epoch")
def run_epoch(model, optimizer, data):
    losses = []
    for x, y in data:  # <- batch loop
        losses.append(run_batch(model, optimizer, x, y))  # <- update
    return float(np.mean(losses))


@timed("  batch")
def run_batch(model, optimizer, x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.keras.losses.mae(y, model(x, training=True)))
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss


series = np.cumsum(np.random.randn(90)).astype("float32")
frames = np.lib.stride_tricks.sliding_window_view(series, 9)[:80]
ds = tf.data.Dataset.from_tensor_slices((frames[:, :8], frames[:, 8:])).batch(20)
train(tf.keras.Sequential([tf.keras.Input((8,)), tf.keras.layers.Dense(1)]), tf.keras.optimizers.Adam(0.05), ds, 2)
