"""Scores a model under growing input noise. Nothing is learnt here."""
import numpy as np
import tensorflow as tf

tf.keras.utils.set_random_seed(0)
model = tf.keras.Sequential([tf.keras.Input((8,)), tf.keras.layers.Dense(16, activation="relu"), tf.keras.layers.Dense(4)])
loss_fn = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
x = tf.random.normal((64, 8))
y = tf.argmax(model(x), axis=1)
dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)

for epoch, sigma in enumerate([0.0, 0.5, 1.0]):
    loss_metric, sensitivity = tf.keras.metrics.Mean(), []
    for step, (xb, yb) in enumerate(dataset):
        noisy = xb + sigma * tf.random.normal(xb.shape)
        with tf.GradientTape() as tape:
            tape.watch(noisy)
            loss = loss_fn(yb, model(noisy, training=False))
        sensitivity.append(tf.norm(tape.gradient(loss, noisy)).numpy())
        loss_metric.update_state(loss)
    print(f"sigma {sigma}: loss {loss_metric.result():.4f}, input gradient {np.mean(sensitivity):.4f}")
