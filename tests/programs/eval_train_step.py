import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

X, T = load_digits(return_X_y=True)
X = (X / 16).astype(np.float32)
train_set = tf.data.Dataset.from_tensor_slices((X[:300], T[:300])).batch(60)
val_set = tf.data.Dataset.from_tensor_slices((X[300:480], T[300:480])).batch(60)


class Net(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = tf.keras.layers.Dense(20, activation="relu")
        self.drop = tf.keras.layers.Dropout(0.2)
        self.logits = tf.keras.layers.Dense(10)
        self.opt = tf.keras.optimizers.Adam(0.01)

    def call(self, x, training=False):
        return self.logits(self.drop(self.hidden(x), training=training))

    def run_step(self, x, t, training=True):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(t, self(x, training=training)))
        if training:
            grads = tape.gradient(loss, self.trainable_variables)
            self.opt.apply_gradients(zip(grads, self.trainable_variables))
        return loss


def main(net, epochs=3):
    for epoch in range(epochs):  # <- epoch loop
        train_loss = val_loss = 0.0
        for x, t in train_set:  # <- batch loop
            train_loss += net.run_step(x, t) / 5  # <- update
        for x, t in val_set:
            val_loss += net.run_step(x, t, training=False) / 3
        print(f"{epoch=} {train_loss:.4f} {val_loss:.4f}")


main(Net())
