# Python in pipelines draws from what the bodies draw from, behind a shuffle that keeps elements: np.random, and a generator of an object.
import hashlib

import keras
import numpy as np
import tensorflow as tf

x = np.random.normal(size=(40, 4)).astype("float32")


class Noise:
    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def __call__(self, row):
        return (row + 3.0 * (self.rng.random() < 0.5)).astype("float32")


class Source:
    def __init__(self):
        self.noise = Noise(5)

    def rows(self):
        rows = tf.data.Dataset.from_tensor_slices(x)
        noisy = rows.map(lambda row: tf.ensure_shape(tf.numpy_function(self.noise, [row], tf.float32), [4]))
        return noisy.repeat().shuffle(16, seed=1).batch(4)


def draws():
    while True:
        yield np.random.random(4).astype("float32")


source = Source()
drawn = tf.data.Dataset.from_generator(draws, output_signature=tf.TensorSpec([4])).shuffle(8, seed=2).batch(4)
first, second = iter(source.rows()), iter(drawn)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(1)])
optimizer = keras.optimizers.Adam(1e-2)
for epoch in range(4):  # <- epoch loop
    for step in range(5):  # <- batch loop
        mix = np.random.beta(0.4, 0.4)
        a = next(first)  # <- load
        b = next(second) if step % 2 else a[::-1] * source.noise.rng.uniform()
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(mix * a + (1 - mix) * b) - 1.0) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))  # <- update
    print(f"epoch {epoch} loss {float(loss)!r}", flush=True)
print("weights", hashlib.sha256(b"".join(np.asarray(v).tobytes() for v in model.variables)).hexdigest())
