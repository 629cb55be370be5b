import itertools

import keras
import numpy as np
import tensorflow as tf


def run(seed, lr, epochs=2):
    keras.utils.set_random_seed(seed)
    x = np.random.randn(60, 3).astype("float32")
    y = x[:, :1] * x[:, 1:2]
    net = keras.Sequential([keras.Input((3,)), keras.layers.Dense(10, "relu"), keras.layers.Dense(1)])
    opt = keras.optimizers.SGD(lr)
    curve = []
    for _ in range(epochs):  # <- epoch loop
        batch_losses = []
        for start in range(0, 60, 20):  # <- batch loop
            xb, yb = x[start:start + 20], y[start:start + 20]  # <- load
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((net(xb) - yb) ** 2)
            opt.apply_gradients(zip(tape.gradient(loss, net.trainable_variables), net.trainable_variables))  # <- update
            batch_losses.append(float(loss))
        curve.append(np.mean(batch_losses))
    return curve


results = {}
for lr, seed in itertools.product([0.1, 0.01], [0, 1]):
    results[lr, seed] = run(seed, lr)
    print(f"lr={lr:<5} seed={seed} losses={[round(float(v), 3) for v in results[lr, seed]]}")
best = min(results, key=lambda key: results[key][-1])
print("best:", best)
