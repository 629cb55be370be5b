import random

import numpy as np
import tensorflow as tf

batch_size, max_seq = 8, 10
epochs, steps = 2, 6


class Data:
    """Songs as integer sequences, served as slided source/target pairs."""

    def __init__(self, n):
        self.files = [np.random.randint(0, 30, random.randint(8, 40)) for _ in range(n)]

    def _get_seq(self, length):
        song = random.choice(self.files)
        if len(song) < length:
            raise IndexError("song too short")
        start = random.randrange(len(song) - length + 1)
        return song[start:start + length]

    def slide_seq2seq_batch(self, batch_size, length):
        data = np.array([self._get_seq(length + 1) for _ in range(batch_size)])
        return data[:, :-1], data[:, 1:]


dataset = Data(60)
mt = tf.keras.Sequential([tf.keras.layers.Embedding(30, 8), tf.keras.layers.Dense(16, "relu"), tf.keras.layers.Dense(30)])
mt.compile(optimizer="adam", loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))

idx = 0
for e in range(epochs):  # <- epoch loop
    mt.reset_metrics()
    for b in range(steps):  # <- batch loop
        try:
            batch_x, batch_y = dataset.slide_seq2seq_batch(batch_size, max_seq)  # <- load
        except Exception:
            continue
        loss = mt.train_on_batch(batch_x, batch_y)  # <- update
        idx += 1
    print("epoch {}: {} batches so far".format(e + 1, idx), "loss", loss if idx else None)
