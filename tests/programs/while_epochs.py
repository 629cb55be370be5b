import numpy as np
import tensorflow as tf

tf.random.set_seed(3)
t = np.linspace(0, 6.28, 120, dtype=np.float32)[:, None]
wave = np.sin(t)
ds = tf.data.Dataset.from_tensor_slices((t, wave)).shuffle(120, seed=3).batch(24, drop_remainder=True)

net = tf.keras.Sequential([
    tf.keras.layers.Dense(16, activation="tanh"),
    tf.keras.layers.Dense(1),
])
opt = tf.keras.optimizers.RMSprop(0.01)

epoch = 0
last = float("inf")
while epoch < 4 and last > 1e-4:  # <- epoch loop
    errors = []
    for xb, yb in ds:  # <- batch loop
        with tf.GradientTape() as g:
            err = tf.reduce_mean((net(xb) - yb) ** 2)
        opt.apply_gradients(zip(g.gradient(err, net.trainable_variables), net.trainable_variables))  # <- update
        errors.append(err.numpy())
    last = float(np.mean(errors))
    epoch += 1
    print("epoch", epoch, "mse", round(last, 4))
