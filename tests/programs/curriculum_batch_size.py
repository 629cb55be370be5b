# A curriculum: the batch size, the length of rows and the task change from epoch to epoch, by how well the last one went.
import hashlib

import numpy as np
import tensorflow as tf

x = np.random.normal(size=(48, 12)).astype("float32")
model = tf.keras.Sequential([tf.keras.layers.Dense(6, activation="tanh"), tf.keras.layers.Dense(1)])
optimizer = tf.keras.optimizers.Adam(0.02)


@tf.function(reduce_retracing=True)
def step(a, b):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(a) - b) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss


size, length, last = 4, 3, float("inf")
for stage in range(5):  # <- epoch loop
    rows = np.pad(x[:, :length], ((0, 0), (0, 12 - length)))
    data = tf.data.Dataset.from_tensor_slices((rows, rows.sum(1, keepdims=True))).shuffle(48).batch(size, drop_remainder=True)
    losses = []
    for a, b in data.take(5):  # <- batch loop
        losses.append(float(step(a, b)))  # <- update
    mean = sum(losses) / len(losses)
    if mean < last:
        size, length = min(size * 2, 16), length + 2
    last = mean
    print(f"stage {stage} size {size} length {length} loss {mean!r}", flush=True)
print("weights", hashlib.sha256(b"".join(np.asarray(v).tobytes() for v in model.variables)).hexdigest(), size, length)
