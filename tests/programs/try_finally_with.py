import contextlib
import csv
import io

import numpy as np
import tensorflow as tf


@contextlib.contextmanager
def section(name):
    print(f"--- {name}")
    yield
    print(f"--- end of {name}")


log = io.StringIO()
writer = csv.writer(log)
x = np.random.rand(60, 4).astype("float32")
y = x.max(axis=1, keepdims=True)
net = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(8, activation="relu"), tf.keras.layers.Dense(1)])
opt = tf.keras.optimizers.Adamax(0.02)

try:
    with section("training"), tf.device("/CPU:0"):
        for epoch in range(3):  # <- epoch loop
            with contextlib.ExitStack() as stack:
                stack.callback(print, "epoch", epoch, "done")
                try:
                    for xb, yb in tf.data.Dataset.from_tensor_slices((x, y)).batch(12):  # <- batch loop
                        with tf.GradientTape() as tape:
                            loss = tf.reduce_mean((net(xb) - yb) ** 2)
                        try:
                            grads = tape.gradient(loss, net.trainable_variables)
                            opt.apply_gradients(zip(grads, net.trainable_variables))  # <- update
                        except tf.errors.InvalidArgumentError as error:
                            print("skipped a batch:", error)
                finally:
                    writer.writerow([epoch, f"{loss.numpy():.5f}"])
except KeyboardInterrupt:
    print("interrupted")
finally:
    print(log.getvalue())
    log.close()
