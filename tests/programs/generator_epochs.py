import numpy as np
import tensorflow as tf


def training(model, data, optimizer, max_epochs):
    """Yields (epoch, loss) after each epoch; the caller decides when to stop."""
    for epoch in range(max_epochs):  # <- epoch loop
        losses = []
        for x, y in data:  # <- batch loop
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.math.log(tf.cosh(model(x) - y)))
            optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))  # <- update
            losses.append(float(loss))
        yield epoch, float(np.mean(losses))


x = np.random.rand(90, 2).astype("float32") * 4
y = np.hypot(x[:, :1], x[:, 1:])
data = tf.data.Dataset.from_tensor_slices((x, y)).batch(18)
model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(10, activation="relu"), tf.keras.layers.Dense(1)])

previous = None
for epoch, loss in training(model, data, tf.keras.optimizers.Adam(0.01), max_epochs=50):
    change = "" if previous is None else f" ({loss - previous:+.4f})"
    print(f"{epoch}: {loss:.4f}{change}")
    previous = loss
    if epoch >= 2:
        break
