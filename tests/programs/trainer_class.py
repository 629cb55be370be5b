import keras
import numpy as np
import tensorflow as tf


class Trainer:
    def __init__(self, model: keras.Model, optimizer: keras.optimizers.Optimizer, data: tf.data.Dataset) -> None:
        self.model = model
        self.optimizer = optimizer
        self.data = data
        self.history: list[float] = []

    @tf.function
    def train_step(self, x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(keras.losses.binary_crossentropy(y, self.model(x, training=True)))
        grads = tape.gradient(loss, self.model.trainable_variables)
        self.optimizer.apply_gradients(zip(grads, self.model.trainable_variables))
        return loss

    def train_epoch(self) -> float:
        losses = []
        for x, y in self.data:  # <- batch loop
            losses.append(float(self.train_step(x, y)))  # <- update
        return sum(losses) / len(losses)

    def train(self, epochs: int) -> None:
        for epoch in range(epochs):  # <- epoch loop
            self.history.append(self.train_epoch())
            print(f"[{epoch + 1}/{epochs}] loss: {self.history[-1]:.5f}")


if __name__ == "__main__":
    keras.utils.set_random_seed(7)
    points = np.random.uniform(-1, 1, (128, 2)).astype("float32")
    inside = (np.sum(points**2, axis=1, keepdims=True) < 0.5).astype("float32")
    net = keras.Sequential([keras.Input((2,)), keras.layers.Dense(16, "tanh"), keras.layers.Dense(1, "sigmoid")])
    Trainer(net, keras.optimizers.Adam(0.02), tf.data.Dataset.from_tensor_slices((points, inside)).batch(32)).train(3)
