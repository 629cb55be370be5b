import numpy as np
import tensorflow as tf

rng = np.random.default_rng(0)
X = rng.normal(size=(96, 6)).astype("float32")
Y = X @ rng.normal(size=(6, 1)).astype("float32")

dataset = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(96).batch(16)
model = tf.keras.Sequential([tf.keras.layers.Dense(8, activation="relu"), tf.keras.layers.Dense(1)])
optimizer = tf.keras.optimizers.Adam(1e-2)
loss_fn = tf.keras.losses.MeanSquaredError()

for epoch in range(3):  # <- epoch loop
    total = 0.0
    for x, y in dataset:  # <- batch loop
        with tf.GradientTape() as tape:
            loss = loss_fn(y, model(x, training=True))
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables))  # <- update
        total += float(loss)
    print(f"epoch {epoch}: loss {total / 6:.4f}")
