import numpy as np
import tensorflow as tf


class Autoencoder(tf.keras.Model):
    def __init__(self, width=3):
        super().__init__()
        self.encode = tf.keras.layers.Dense(width, activation="relu")
        self.decode = tf.keras.layers.Dense(12)

    def call(self, x):
        return self.decode(self.encode(x))


def step_fn(model, opt, x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x) - x))
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss


basis = np.random.randn(3, 12).astype("float32")
data = np.random.randn(96, 3).astype("float32") @ basis
ae, opt = Autoencoder(), tf.keras.optimizers.Adam(0.02)
step = tf.function(step_fn, reduce_retracing=True)

for epoch in range(3):  # <- epoch loop
    total = tf.constant(0.0)
    for x in tf.data.Dataset.from_tensor_slices(data).batch(16, drop_remainder=True):  # <- batch loop
        total += step(ae, opt, x)  # <- update
    print("epoch", epoch, "reconstruction error", total.numpy() / 6)
