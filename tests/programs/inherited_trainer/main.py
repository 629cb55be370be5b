import numpy as np
import tensorflow as tf
from base import BaseTrainer


class Regression(BaseTrainer):
    def __init__(self):
        self.x = np.random.uniform(-1, 1, (60, 3)).astype("float32")
        self.y = np.exp(self.x.sum(1, keepdims=True))
        self.net = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(9, "relu"), tf.keras.layers.Dense(1)])
        self.opt = tf.keras.optimizers.Adam(0.03)

    def batches(self):
        for part in np.array_split(np.random.permutation(60), 5):
            yield self.x[part], self.y[part]

    def step(self, batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(abs(self.net(x) - y))
        self.opt.apply_gradients(zip(tape.gradient(loss, self.net.trainable_variables), self.net.trainable_variables))
        return loss.numpy()


Regression().fit()
