# mixed_float16 with a loss scale that grows and shrinks, then mixed_bfloat16, in a loop of its own.
import hashlib

import keras
import numpy as np
import tensorflow as tf

x = np.random.normal(size=(48, 6)).astype("float32")
y = (x.sum(axis=1, keepdims=True) > 0).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(48).batch(8)


def train(policy, epochs):
    keras.mixed_precision.set_global_policy(policy)
    model = keras.Sequential([
        keras.Input((6,)), keras.layers.Dense(8, activation="relu"), keras.layers.BatchNormalization(), keras.layers.Dropout(0.2),
        keras.layers.Dense(1, dtype="float32")])
    optimizer = keras.optimizers.Adam(1e-2)
    if policy == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=2.0**17, dynamic_growth_steps=3)

    @tf.function
    def step(a, b):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(a, training=True) - b) ** 2)
            scaled = optimizer.scale_loss(loss)
        optimizer.apply(tape.gradient(scaled, model.trainable_variables), model.trainable_variables)
        return loss

    for epoch in range(epochs):  # <- epoch loop
        for a, b in data:  # <- batch loop
            loss = step(a, b)  # <- update
        scale = float(getattr(optimizer, "dynamic_scale", 1.0))
        print(f"{policy} epoch {epoch} loss {float(loss)!r} scale {scale!r}", flush=True)
    return [np.asarray(v, dtype="float32").tobytes() for v in [*model.variables, *optimizer.variables]]


print("weights", hashlib.sha256(b"".join(train("mixed_float16", 3) + train("mixed_bfloat16", 2))).hexdigest())
