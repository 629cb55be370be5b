import numpy as np
import tensorflow as tf

x = np.random.randn(80, 3).astype("float32")
y = (x**2).sum(axis=1, keepdims=True)
ds = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(80).batch(16)

model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(16, activation="relu"), tf.keras.layers.Dense(1)])
opt = tf.keras.optimizers.Adam(0.02)


@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x) - y))
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss


for epoch in range(4):  # <- batch loop
    losses = [step(x, y) for x, y in ds]  # <- update
    print(f"epoch {epoch}: loss={np.mean(losses):.4f} (min {np.min(losses):.4f})")
