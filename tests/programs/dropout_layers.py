# Dropout and random layers: their seed generators are variables that no checkpoint of Keras's holds.
import hashlib

import keras
import numpy as np
import tensorflow as tf

x = np.random.normal(size=(48, 8, 8, 1)).astype("float32")
y = np.random.randint(0, 3, 48)
augment = keras.Sequential([keras.layers.RandomFlip(), keras.layers.RandomTranslation(0.1, 0.1), keras.layers.GaussianNoise(0.1)])
model = keras.Sequential([
    augment, keras.layers.Conv2D(4, 3, activation="relu"), keras.layers.SpatialDropout2D(0.2), keras.layers.Flatten(),
    keras.layers.AlphaDropout(0.1), keras.layers.Dense(8, activation="selu"), keras.layers.Dropout(0.5, seed=3), keras.layers.Dense(3)])
optimizer = keras.optimizers.Adam(1e-2)
measure = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(48).batch(12)

for epoch in range(3):  # <- epoch loop
    for a, b in data:  # <- batch loop
        with tf.GradientTape() as tape:
            loss = measure(b, model(a, training=True))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))  # <- update
    noisy = float(measure(y, model(x, training=True)))
    print(f"epoch {epoch} loss {float(loss)!r} with noise {noisy!r}", flush=True)
print("weights", hashlib.sha256(b"".join(np.asarray(v).tobytes() for v in model.variables)).hexdigest())
