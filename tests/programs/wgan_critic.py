import numpy as np
import tensorflow as tf
from tensorflow import keras

N_CRITIC = 3
rng = np.random.default_rng(2)
ring = rng.uniform(0, 2 * np.pi, 80)
samples = np.stack([np.cos(ring), np.sin(ring)], 1).astype("float32")
ds = tf.data.Dataset.from_tensor_slices(samples).batch(16)

G = keras.Sequential([keras.Input((3,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(2)])
C = keras.Sequential([keras.Input((2,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
g_opt, c_opt = keras.optimizers.RMSprop(5e-4), keras.optimizers.RMSprop(5e-4)


@tf.function
def critic_step(real):
    z = tf.random.normal([tf.shape(real)[0], 3])
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(C(G(z))) - tf.reduce_mean(C(real))
    c_opt.apply_gradients(zip(tape.gradient(loss, C.trainable_variables), C.trainable_variables))
    for w in C.trainable_variables:
        w.assign(tf.clip_by_value(w, -0.05, 0.05))
    return loss


@tf.function
def generator_step(n):
    with tf.GradientTape() as tape:
        loss = -tf.reduce_mean(C(G(tf.random.normal([n, 3]))))
    g_opt.apply_gradients(zip(tape.gradient(loss, G.trainable_variables), G.trainable_variables))
    return loss


for epoch in range(3):  # <- epoch loop
    for real in ds:  # <- batch loop
        for _ in range(N_CRITIC):
            c_loss = critic_step(real)  # <- update
        g_loss = generator_step(16)  # <- update
    print("epoch", epoch, "critic", float(c_loss), "generator", float(g_loss))
