import io

import numpy as np
import tensorflow as tf

# Stands for a directory of .npz files that do not fit in memory together.
FILES = {}
for name in ("part-0.npz", "part-1.npz"):
    FILES[name] = io.BytesIO()
    x = np.random.rand(48, 6).astype("float32")
    np.savez(FILES[name], x=x, y=x.prod(axis=1, keepdims=True) * 100)

model = tf.keras.Sequential([tf.keras.Input((6,)), tf.keras.layers.Dense(16, activation="relu"), tf.keras.layers.Dense(1)])
opt = tf.keras.optimizers.Adam(0.01)
steps = 0

for epoch in range(2):  # <- epoch loop
    epoch_losses = []
    for name in np.random.permutation(sorted(FILES)):
        FILES[name].seek(0)
        with np.load(FILES[name]) as archive:
            x, y = archive["x"], archive["y"]
        for i in range(0, len(x), 16):  # <- batch loop
            xb, yb = x[i:i + 16], y[i:i + 16]  # <- load
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(xb) - yb) ** 2)
            opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))  # <- update
            epoch_losses.append(float(loss))
            steps += 1
    print("epoch", epoch, "steps", steps, "loss", np.mean(epoch_losses))
