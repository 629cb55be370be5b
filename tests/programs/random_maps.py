# Maps of tf.data that draw at random, seeded and not, in parallel, before and behind the shuffling.
import hashlib

import keras
import numpy as np
import tensorflow as tf

x = np.random.normal(size=(40, 5)).astype("float32")
y = x.sum(axis=1, keepdims=True)


def unseeded(a, b):
    return a + tf.random.normal([5], stddev=0.1), b


def seeded(a, b):
    return a * tf.random.stateless_uniform([5], (3, 4), 0.9, 1.1), b + tf.random.uniform([1], seed=7)


data = tf.data.Dataset.from_tensor_slices((x, y)).map(unseeded, num_parallel_calls=tf.data.AUTOTUNE).shuffle(16)
data = data.map(seeded).batch(8).prefetch(2)
numbered = tf.data.Dataset.random(seed=5).map(lambda n: tf.cast(n % 100, tf.float32) / 100).batch(8)
model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(1)])
model.compile(keras.optimizers.RMSprop(1e-2), "mse")

for epoch in range(4):  # <- epoch loop
    for (a, b), extra in zip(data, numbered):  # <- batch loop
        loss = model.train_on_batch(a + extra[:, None], b)  # <- update
    print(f"epoch {epoch} loss {float(loss)!r} sum {float(tf.reduce_sum(a))!r}", flush=True)
print("weights", hashlib.sha256(b"".join(np.asarray(v).tobytes() for v in model.variables)).hexdigest())
