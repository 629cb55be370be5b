import gc

import numpy as np
import tensorflow as tf

raw = np.random.RandomState(3).rand(1000, 16)
x_train = raw[:96].astype("float32")
y_train = x_train.mean(axis=1, keepdims=True)
del raw
gc.collect()

net = tf.keras.Sequential([tf.keras.Input((16,)), tf.keras.layers.Dense(4, activation="relu"), tf.keras.layers.Dense(1)])
for layer in net.layers:
    print(layer.name, layer.count_params())
del layer
opt = tf.keras.optimizers.Ftrl(0.1)
mean = tf.keras.metrics.Mean()

for epoch in range(3):  # <- epoch loop
    mean.reset_state()
    order = np.random.permutation(96)
    for b in np.split(order, 6):  # <- batch loop
        x, y = x_train[b], y_train[b]  # <- load
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_mean(tf.square(net(x) - y))
        grads = tape.gradient(loss, net.trainable_variables)
        del tape, x, y
        opt.apply_gradients(zip(grads, net.trainable_variables))  # <- update
        del grads
        mean.update_state(loss)
    del order, b, loss
    print("epoch", epoch, "loss", float(mean.result()))
del epoch
