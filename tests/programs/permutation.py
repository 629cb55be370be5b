import numpy as np
import tensorflow as tf

np.random.seed(0)
N, D, B = 100, 5, 20
data = np.random.randn(N, D).astype("float32")
target = (data[:, :1] * 2 - data[:, 1:2]).astype("float32")

model = tf.keras.models.Sequential()
model.add(tf.keras.layers.Dense(10, activation="elu"))
model.add(tf.keras.layers.Dense(1))
opt = tf.keras.optimizers.Adam(learning_rate=0.01)


def mse(a, b):
    return tf.reduce_mean(tf.math.squared_difference(a, b))


for epoch in range(3):  # <- epoch loop
    order = np.random.permutation(N)
    epoch_loss = []
    for k in range(N // B):  # <- batch loop
        idx = order[k * B:(k + 1) * B]
        batch_x, batch_y = data[idx], target[idx]  # <- load
        with tf.GradientTape() as tape:
            l = mse(model(batch_x), batch_y)
        gs = tape.gradient(l, model.trainable_variables)
        opt.apply_gradients(zip(gs, model.trainable_variables))  # <- update
        epoch_loss.append(l)
    print("epoch", epoch, "loss", float(tf.add_n(epoch_loss)) / len(epoch_loss))
