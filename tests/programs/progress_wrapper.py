import sys

import numpy as np
import tensorflow as tf


def progress(iterable, total, desc=""):
    """A very small tqdm."""
    for i, item in enumerate(iterable, 1):
        yield item
        sys.stdout.write(f"\r{desc} [{'#' * i}{'.' * (total - i)}]")
        sys.stdout.flush()
    sys.stdout.write("\n")


words = np.random.default_rng(9).integers(0, 50, (96, 7))
ds = tf.data.Dataset.from_tensor_slices((words[:, :-1], words[:, -1])).batch(16)
model = tf.keras.Sequential([
    tf.keras.layers.Embedding(50, 8),
    tf.keras.layers.GlobalAveragePooling1D(),
    tf.keras.layers.Dense(50),
])
opt = tf.keras.optimizers.Nadam()
xent = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

for epoch in range(1, 4):  # <- epoch loop
    losses = []
    for ctx, nxt in progress(ds, total=6, desc=f"epoch {epoch}"):  # <- batch loop
        with tf.GradientTape() as tape:
            loss = xent(nxt, model(ctx))
        opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))  # <- update
        losses.append(float(loss))
    print("  perplexity", round(float(np.exp(np.mean(losses))), 2))
