# Two translators between spaces A and B, trained in turn within an epoch.
import numpy as np
import tensorflow as tf

rng = np.random.default_rng(6)
A = rng.normal(size=(64, 3)).astype("float32")
B = np.concatenate([A[:, ::-1], A[:, :1] ** 2], axis=1).astype("float32")

forward = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(12, activation="relu"), tf.keras.layers.Dense(4)])
backward = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(12, activation="relu"), tf.keras.layers.Dense(3)])
opt_f, opt_b = tf.keras.optimizers.Adam(0.01), tf.keras.optimizers.Adam(0.01)


def l2(u, v):
    return tf.reduce_mean(tf.square(u - v))


for epoch in range(3):  # <- epoch loop
    for i in range(0, 64, 16):  # <- batch loop
        a, b = A[i:i + 16], B[i:i + 16]  # <- load
        with tf.GradientTape() as tape:
            loss_f = l2(forward(a), b)
        grads = tape.gradient(loss_f, forward.trainable_variables)
        opt_f.apply_gradients(zip(grads, forward.trainable_variables))  # <- update

    for i in range(0, 64, 16):  # <- batch loop
        a, b = A[i:i + 16], B[i:i + 16]  # <- load
        with tf.GradientTape() as tape:
            loss_b = l2(backward(b), a) + 0.5 * l2(backward(forward(a)), a)
        grads = tape.gradient(loss_b, backward.trainable_variables)
        opt_b.apply_gradients(zip(grads, backward.trainable_variables))  # <- update

    print("epoch", epoch, "a->b", round(float(loss_f), 4), "b->a", round(float(loss_b), 4))
