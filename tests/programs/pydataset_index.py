import math

import keras
import numpy as np
import tensorflow as tf


class Blobs(keras.utils.PyDataset):
    def __init__(self, n=90, batch_size=18, **kwargs):
        super().__init__(**kwargs)
        self.batch_size = batch_size
        rng = np.random.default_rng(12)
        self.y = rng.integers(0, 3, n)
        self.x = (rng.normal(size=(n, 2)) + 3 * self.y[:, None]).astype("float32")

    def __len__(self):
        return math.ceil(len(self.x) / self.batch_size)

    def __getitem__(self, idx):
        sl = slice(idx * self.batch_size, (idx + 1) * self.batch_size)
        return self.x[sl], self.y[sl]

    def on_epoch_end(self):
        p = np.random.permutation(len(self.x))
        self.x, self.y = self.x[p], self.y[p]


def main() -> None:
    sequence = Blobs()
    model = keras.Sequential([keras.layers.Dense(8, activation="relu"), keras.layers.Dense(3)])
    optimizer = keras.optimizers.Adam(0.01)
    objective = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    for epoch in range(3):  # <- epoch loop
        tracker = keras.metrics.Mean()
        for index in range(len(sequence)):  # <- batch loop
            inputs, labels = sequence[index]  # <- load
            with tf.GradientTape() as tape:
                loss = objective(labels, model(inputs, training=True))
            weights = model.trainable_weights
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))  # <- update
            tracker.update_state(loss)
        sequence.on_epoch_end()
        print("epoch", epoch, "loss", float(tracker.result()))


main()
