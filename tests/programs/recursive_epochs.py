import numpy as np
import tensorflow as tf

data = np.random.default_rng(17).normal(size=(64, 6)).astype("float32")
labels = (data[:, 0] * data[:, 1] > 0).astype("int64")
ds = tf.data.Dataset.from_tensor_slices((data, labels)).batch(16)
model = tf.keras.Sequential([tf.keras.Input((6,)), tf.keras.layers.Dense(24, activation="relu"), tf.keras.layers.Dense(2)])
opt = tf.keras.optimizers.Adam(0.01)
ce = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def descend(epochs_left, history=()):
    if epochs_left == 0:
        return history
    losses = []
    for x, y in ds:  # <- batch loop
        with tf.GradientTape() as tape:
            loss = ce(y, model(x))
        opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))  # <- update
        losses.append(float(loss))
    mean = sum(losses) / len(losses)
    print("epochs left:", epochs_left - 1, "loss:", round(mean, 4))
    return descend(epochs_left - 1, (*history, mean))


print("history", descend(3))
