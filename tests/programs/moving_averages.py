# Three moving averages of the weights: TensorFlow's, the optimizer's own, and one in plain Python.
import hashlib

import keras
import numpy as np
import tensorflow as tf

x = np.random.normal(size=(32, 4)).astype("float32")
y = np.sin(x.sum(axis=1, keepdims=True))
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, activation="gelu"), keras.layers.Dense(1)])
optimizer = keras.optimizers.AdamW(1e-2, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=5)
scale, shadow = tf.Variable(1.0), {v.path: v.numpy() for v in model.trainable_variables}
average = tf.train.ExponentialMovingAverage(0.9, num_updates=None)

for epoch in range(4):  # <- epoch loop
    for start in np.random.permutation(4) * 8:  # <- batch loop
        a, b = x[start : start + 8], y[start : start + 8]  # <- load
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(a) * scale - b) ** 2)
        variables = [*model.trainable_variables, scale]
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients[:-1], variables[:-1]))  # <- update
        scale.assign_sub(1e-3 * gradients[-1])
        average.apply([scale])
        for v in model.trainable_variables:
            shadow[v.path] += 0.1 * (v.numpy() - shadow[v.path])
    mean = float(np.mean([np.abs(s).mean() for s in shadow.values()]))
    print(f"epoch {epoch} loss {float(loss)!r} scale {float(average.average(scale))!r} shadow {mean!r}", flush=True)
optimizer.finalize_variable_values(model.trainable_variables)
print("weights", hashlib.sha256(b"".join(np.asarray(v).tobytes() for v in [*model.variables, *shadow.values()])).hexdigest())
