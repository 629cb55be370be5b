import numpy as np
import tensorflow as tf

x = np.random.normal(size=(128, 5)).astype(np.float32)
y = np.abs(x).sum(axis=1, keepdims=True)
ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(16).prefetch(tf.data.AUTOTUNE)

model = tf.keras.Sequential([tf.keras.Input((5,)), tf.keras.layers.Dense(16, activation="relu"), tf.keras.layers.Dense(1)])
optimizer = tf.keras.optimizers.Adam(0.01)
optimizer.build(model.trainable_variables)


@tf.function
def train_one_epoch(ds):
    total, count = 0.0, 0.0
    for x, y in ds:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables))
        total += loss
        count += 1.0
    return total / count


for epoch in range(4):  # <- batch loop
    loss = train_one_epoch(ds)  # <- update
    print(f"epoch {epoch} loss {loss.numpy():.4f}")
