# Nothing is built before the first batch: layers that make layers, optimizer slots, a metric, the compiled step.
import hashlib

import keras
import numpy as np
import tensorflow as tf


class Lazy(keras.Model):
    def build(self, shape):
        self.hidden = [keras.layers.Dense(shape[-1] * 2, activation="relu") for _ in range(2)]
        self.drop, self.out = keras.layers.Dropout(0.3), keras.layers.Dense(1)
        self.gain = self.add_weight(shape=(shape[-1] * 2,), initializer="random_normal")

    def call(self, x, training=False):
        for layer in self.hidden:
            x = self.drop(layer(x), training=training)
        return self.out(x * self.gain)


x = np.random.normal(2.0, 3.0, size=(40, 3)).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, x[:, :1] ** 2)).shuffle(40).batch(8)
model, optimizer, mean = Lazy(), keras.optimizers.Lion(1e-3), keras.metrics.Mean()
scale = None
for epoch in range(4):  # <- epoch loop
    for a, b in data:  # <- batch loop
        if scale is None:
            scale = tf.Variable(1.0 / tf.math.reduce_std(a))
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(a * scale, training=True) - b) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))  # <- update
        mean.update_state(loss)
    print(f"epoch {epoch} loss {float(loss)!r} mean {float(mean.result())!r}", flush=True)
print("weights", hashlib.sha256(b"".join(np.asarray(v).tobytes() for v in [*model.variables, scale])).hexdigest())
