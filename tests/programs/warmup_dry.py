import time

import numpy as np
import tensorflow as tf

x = np.random.normal(3.0, 2.0, (96, 8)).astype(np.float32)
y = (x[:, 0] > 3).astype(np.float32)
loader = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)

model = tf.keras.Sequential([tf.keras.layers.Dense(16, activation="relu"), tf.keras.layers.Dense(1)])
optimizer = tf.keras.optimizers.Adam(1e-2)


@tf.function
def compute(x, y):
    with tf.GradientTape() as tape:
        p = model(x)[:, 0]
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(y, p))
    return loss, tape.gradient(loss, model.trainable_variables)


# warm-up: build the graph and the caches, measure, and throw the gradients away
for round_ in range(2):
    tic = time.perf_counter()
    for xb, yb in loader:
        loss, grads = compute(xb, yb)
    print(f"warm-up {round_}: {1000 * (time.perf_counter() - tic):.0f} ms")

for epoch in range(3):  # <- epoch loop
    for xb, yb in loader:  # <- batch loop
        loss, grads = compute(xb, yb)
        optimizer.apply_gradients(zip(grads, model.trainable_variables))  # <- update
    print(f"epoch {epoch}: loss {float(loss):.4f}")
