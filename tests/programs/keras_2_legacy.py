# Optimizers of Keras 2 that call TensorFlow's own update rules, in a compiled step, found by a method behind a dictionary.
import hashlib

import numpy as np
import tensorflow as tf
import tf_keras as keras

x = np.random.normal(size=(48, 3)).astype("float32")
data = tf.data.Dataset.from_tensor_slices(x).shuffle(48).batch(6)


class Trainer:
    def __init__(self, optimizer):
        self.net = keras.Sequential([keras.layers.Dense(4, activation="relu", input_shape=(3,)), keras.layers.Dense(1)])
        self.optimizer = optimizer
        self.ways = {"plain": self.plain}

    @tf.function
    def step(self, a):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.net(a, training=True) - a[:, :1]) ** 2)
        self.optimizer.apply_gradients(zip(tape.gradient(loss, self.net.trainable_variables), self.net.trainable_variables))
        return loss

    def plain(self, epochs):
        for epoch in range(epochs):  # <- epoch loop
            for a in data:  # <- batch loop
                loss = self.step(a)  # <- update
            print(f"epoch {epoch} loss {float(loss)!r}", flush=True)


trainers = [Trainer(keras.optimizers.legacy.Adam(0.05)), Trainer(keras.optimizers.legacy.SGD(0.05, momentum=0.9))]
for trainer in trainers:
    trainer.ways["plain"](3)
held = [v for trainer in trainers for v in [*trainer.net.variables, *trainer.optimizer.weights]]
print("weights", hashlib.sha256(b"".join(np.asarray(v).tobytes() for v in held)).hexdigest())
