from functools import reduce

import numpy as np
import tensorflow as tf

x = np.linspace(0, 1, 60, dtype="float32")[:, None]
ds = tf.data.Dataset.from_tensor_slices((x, 3 * x - 1)).shuffle(60).batch(12)
opt = tf.keras.optimizers.SGD(0.2)
w, b = tf.Variable([[0.0]]), tf.Variable([0.0])


def train_step(average, batch):
    inputs, targets = batch
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((inputs @ w + b - targets) ** 2)
    opt.apply_gradients(zip(tape.gradient(loss, [w, b]), [w, b]))
    return 0.8 * average + 0.2 * float(loss)


average = 1.0
epoch = 0
while epoch < 4:  # <- batch loop
    average = reduce(train_step, ds, average)  # <- update
    epoch += 1
    print("epoch", epoch, "smoothed loss", round(average, 4), "w", w.numpy().item(), "b", b.numpy().item())
