import numpy as np
import tensorflow as tf

INNER_STEPS, META_LR = 5, 0.3
rng = np.random.default_rng(77)


class SineTask:
    def __init__(self):
        self.amplitude, self.phase = rng.uniform(0.5, 3), rng.uniform(0, np.pi)

    def sample(self, k):
        x = rng.uniform(-3, 3, (k, 1)).astype("float32")
        return x, (self.amplitude * np.sin(x + self.phase)).astype("float32")


model = tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(16, activation="tanh"), tf.keras.layers.Dense(1)])
optimizer = tf.keras.optimizers.SGD(0.02)


@tf.function
def inner(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x) - y) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss


for meta_iteration in range(4):  # <- epoch loop
    task = SineTask()
    before = model.get_weights()
    for _ in range(INNER_STEPS):  # <- batch loop
        x, y = task.sample(10)  # <- load
        loss = inner(x, y)  # <- update
    after = model.get_weights()
    rate = META_LR * (1 - meta_iteration / 4)
    model.set_weights([w0 + rate * (w1 - w0) for w0, w1 in zip(before, after)])
    print(f"meta iteration {meta_iteration}: amplitude {task.amplitude:.2f} inner loss {loss:.4f}")
