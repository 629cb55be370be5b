# The step is compiled by XLA, with random ops in it, one of which draws a variable's first value; another function evaluates.
import hashlib

import keras
import numpy as np
import tensorflow as tf

x = np.random.normal(size=(40, 6)).astype("float32")
y = np.tanh(x @ np.ones((6, 2), "float32"))
model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dropout(0.25), keras.layers.Dense(2)])


class Scale(tf.Module):
    def __call__(self, a):
        if not hasattr(self, "gain"):
            self.gain = tf.Variable(tf.random.uniform([6], 0.9, 1.1))
        return a * self.gain


scale = Scale()
optimizer = keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True)
optimizer.build(model.trainable_variables)


@tf.function(jit_compile=True)
def step(a, b):
    with tf.GradientTape(persistent=True) as tape:
        loss = tf.reduce_mean((model(scale(a) + tf.random.normal(tf.shape(a), stddev=0.05), training=True) - b) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    scale.gain.assign_sub(0.01 * tape.gradient(loss, scale.gain))
    return loss


@tf.function(jit_compile=True)
def evaluate(a, b):
    return tf.reduce_max(tf.abs(model(a) - b))


data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(40).batch(8)
for epoch in range(4):  # <- epoch loop
    for a, b in data:  # <- batch loop
        loss = step(a, b)  # <- update
    print(f"epoch {epoch} loss {float(loss)!r} worst {float(evaluate(x, y))!r}", flush=True)
print("weights", hashlib.sha256(b"".join(np.asarray(v).tobytes() for v in [*model.variables, scale.gain])).hexdigest())
