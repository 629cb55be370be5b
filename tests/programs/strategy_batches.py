# A model that a strategy mirrors, trained by `train_on_batch`: it makes its metrics and slots before it makes its functions.
import hashlib

import keras
import numpy as np
import tensorflow as tf

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
x = np.random.normal(size=(32, 6)).astype("float32")
y = x.sum(1, keepdims=True)
with tf.distribute.MirroredStrategy().scope():
    layers = [keras.layers.Dense(4), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((6,)), *layers])
    model.compile("adam", "mse", metrics=["mae"])
for epoch in range(3):  # <- epoch loop
    for i in range(4):  # <- batch loop
        loss, error = model.train_on_batch(x[i * 8 : (i + 1) * 8], y[i * 8 : (i + 1) * 8])  # <- load, update
    print(f"epoch {epoch} loss {float(loss)!r} error {float(error)!r}", flush=True)
print("weights", hashlib.sha256(b"".join(np.asarray(v).tobytes() for v in model.variables)).hexdigest())
