import functools

import numpy as np
import tensorflow as tf


def generic_step(model, optimizer, loss_fn, x, y, *, clip=None):
    with tf.GradientTape() as tape:
        loss = loss_fn(y, model(x, training=True))
    grads = tape.gradient(loss, model.trainable_variables)
    if clip is not None:
        grads, _ = tf.clip_by_global_norm(grads, clip)
    optimizer.apply_gradients(zip(grads, model.trainable_variables))
    return loss


rng = np.random.default_rng(33)
tokens = rng.integers(1, 20, (60, 5))
is_odd = (tokens.sum(axis=1) % 2).astype("float32")[:, None]

model = tf.keras.Sequential([tf.keras.layers.Embedding(20, 4), tf.keras.layers.Flatten(), tf.keras.layers.Dense(1)])
step = functools.partial(
    generic_step,
    model,
    tf.keras.optimizers.Lion(0.005),
    tf.keras.losses.BinaryCrossentropy(from_logits=True),
    clip=1.0,
)

for epoch in range(3):  # <- epoch loop
    losses = []
    for lo in range(0, 60, 12):  # <- batch loop
        losses.append(step(tokens[lo:lo + 12], is_odd[lo:lo + 12]))  # <- load, update
    print(f"epoch {epoch}: {np.mean(losses):.4f}")
