import numpy as np
import tensorflow as tf
from tensorflow import keras


class Distiller:
    def __init__(self, teacher, student, temperature=3.0):
        self.teacher, self.student, self.T = teacher, student, temperature
        self.ce = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.kld = keras.losses.KLDivergence()

    def _fit(self, net, loss_of, data, epochs, name):
        opt = keras.optimizers.Adam(0.01)
        for epoch in range(epochs):  # <- epoch loop
            for x, y in data:  # <- batch loop
                with tf.GradientTape() as tape:
                    loss = loss_of(x, y)
                opt.apply_gradients(zip(tape.gradient(loss, net.trainable_weights), net.trainable_weights))  # <- update
            print(f"{name} epoch {epoch}: {float(loss):.4f}")

    def train(self, data):
        self._fit(self.teacher, lambda x, y: self.ce(y, self.teacher(x, training=True)), data, 2, "teacher")
        self.teacher.trainable = False
        self._fit(self.student, self.distil_loss, data, 2, "student")

    def distil_loss(self, x, y):
        soft = tf.nn.softmax(self.teacher(x, training=False) / self.T)
        logits = self.student(x, training=True)
        return 0.3 * self.ce(y, logits) + 0.7 * self.T**2 * self.kld(soft, tf.nn.softmax(logits / self.T))


def mlp(*widths):
    return keras.Sequential([keras.Input((7,)), *[keras.layers.Dense(w, "relu") for w in widths], keras.layers.Dense(3)])


x = np.random.randn(90, 7).astype("float32")
y = x[:, :3].argmax(axis=1)
Distiller(mlp(24, 24), mlp(4)).train(tf.data.Dataset.from_tensor_slices((x, y)).batch(15))
