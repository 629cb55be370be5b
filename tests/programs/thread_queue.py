import queue
import threading

import numpy as np
import tensorflow as tf

EPOCHS, PER_EPOCH = 3, 5


def producer(q, seed):
    rng = np.random.default_rng(seed)
    for _ in range(PER_EPOCH):
        x = rng.normal(size=(16, 4)).astype("float32")
        q.put((x, x.std(axis=1, keepdims=True)))
    q.put(None)


model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(12, activation="relu"), tf.keras.layers.Dense(1)])
optimizer = tf.keras.optimizers.Adam(0.02)

for epoch in range(EPOCHS):  # <- epoch loop
    q = queue.Queue(maxsize=2)
    worker = threading.Thread(target=producer, args=(q, epoch), daemon=True)
    worker.start()
    losses = []
    while True:  # <- batch loop
        batch = q.get()  # <- load
        if batch is None:
            break
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))  # <- update
        losses.append(float(loss))
    worker.join()
    print("epoch", epoch, "batches", len(losses), "loss", np.mean(losses))
