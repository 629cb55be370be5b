import numpy as np
import tensorflow as tf

K = 3


def member():
    return tf.keras.Sequential([tf.keras.Input((5,)), tf.keras.layers.Dense(6, activation="relu"), tf.keras.layers.Dense(1)])


models = [member() for _ in range(K)]
optimizers = [tf.keras.optimizers.Adam(10 ** -(i + 1)) for i in range(K)]


def step(model, optimizer, x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x) - y) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss


x = np.random.randn(64, 5).astype("float32")
y = np.sin(x[:, :1])
ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)

for epoch in range(3):  # <- epoch loop
    table = np.zeros(K)
    for xb, yb in ds:  # <- batch loop
        for k, (model, optimizer) in enumerate(zip(models, optimizers)):
            table[k] += step(model, optimizer, xb, yb)  # <- update
    print(epoch, " ".join(f"{v / 4:.4f}" for v in table))
ensemble = tf.reduce_mean([m(x) for m in models], axis=0)
print("ensemble mse", float(tf.reduce_mean((ensemble - y) ** 2)))
