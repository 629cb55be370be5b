from itertools import product

import numpy as np
import tensorflow as tf

x = np.random.rand(80, 6).astype("float32")
y = np.median(x, axis=1, keepdims=True).astype("float32")
chunks = list(zip(np.split(x, 5), np.split(y, 5)))
net = tf.keras.Sequential([tf.keras.Input((6,)), tf.keras.layers.Dense(8, activation="relu"), tf.keras.layers.Dense(1)])
sgd = tf.keras.optimizers.SGD(0.1, nesterov=True, momentum=0.8)

running = 0.0
for epoch, (i, (xb, yb)) in product(range(3), enumerate(chunks)):  # <- batch loop
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((net(xb) - yb) ** 2)
    sgd.apply_gradients(zip(tape.gradient(loss, net.trainable_variables), net.trainable_variables))  # <- update
    running += float(loss)
    if i == len(chunks) - 1:
        print("epoch", epoch, "loss", running / len(chunks))
        running = 0.0
