import numpy as np
import tensorflow as tf


class Affine(tf.Module):
    def __init__(self, n_in, n_out, name=None):
        super().__init__(name=name)
        self.w = tf.Variable(tf.random.normal([n_in, n_out], stddev=0.1), name="w")
        self.b = tf.Variable(tf.zeros([n_out]), name="b")

    def __call__(self, x):
        return tf.matmul(x, self.w) + self.b


class MLP(tf.Module):
    def __init__(self):
        super().__init__()
        self.layers = [Affine(4, 8), Affine(8, 1)]

    def __call__(self, x):
        return self.layers[1](tf.nn.relu(self.layers[0](x)))


@tf.function
def sgd_step(mlp, x, y, rate):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(mlp(x) - y))
    grads = tape.gradient(loss, mlp.trainable_variables)
    for g, v in zip(grads, mlp.trainable_variables):
        v.assign_sub(rate * g)
    return loss


xs = np.random.rand(75, 4).astype(np.float32)
ys = xs.prod(axis=1, keepdims=True)
mlp = MLP()
for epoch in range(4):  # <- epoch loop
    rate = tf.constant(0.1 * 0.5**epoch)
    for x, y in tf.data.Dataset.from_tensor_slices((xs, ys)).batch(15):  # <- batch loop
        loss = sgd_step(mlp, x, y, rate)  # <- update
    print(f"epoch {epoch} rate {rate:.4f} loss {loss:.5f}")
