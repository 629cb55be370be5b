# Keras 2 (tf_keras) in a loop of one's own, with a compiled step, beside it a critic that trains by its own function, and a
# Nadam whose steps are not compiled: it counts them in an attribute. What it trains has a compiled call, which is traced for a
# variable first, then for what the call returned.
import hashlib

import numpy as np
import tensorflow as tf
import tf_keras as keras

x = np.random.normal(size=(64, 4)).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, x[:, :1] - x[:, 1:2])).shuffle(64).batch(8)
model = keras.Sequential(
    [keras.layers.Dense(8, "tanh"), keras.layers.Dropout(0.2), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
)
optimizer, mean = keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.05, 4, 0.9)), keras.metrics.Mean()


@tf.function
def train_step(a, b):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(a, training=True) - b) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    mean.update_state(loss)


critic = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
critic.compile("adam", "mse")
critic.trainable = False  # for a model around it: the critic itself trains on, as it was compiled


class Recurrent(keras.Model):
    def __init__(self):
        super().__init__()
        self.start, self.inner = tf.Variable([1.0]), keras.layers.Dense(1)

    @tf.function
    def call(self, a, state):
        return self.inner(a) + state * 0.5


recurrent, nadam = Recurrent(), keras.optimizers.Nadam(0.05)
for epoch in range(4):  # <- epoch loop
    mean.reset_state()
    for a, b in data:  # <- batch loop
        train_step(a, b)  # <- update
        critic.train_on_batch(a, b)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((recurrent(a, recurrent(a, recurrent.start)) - b) ** 2)
        nadam.apply_gradients(zip(tape.gradient(loss, recurrent.trainable_variables), recurrent.trainable_variables))
    print(f"epoch {epoch} loss {float(mean.result())!r} rate {float(optimizer.learning_rate)!r}", flush=True)
held = [*model.variables, *critic.variables, *optimizer.variables, *recurrent.variables]
print("weights", hashlib.sha256(b"".join(np.asarray(v).tobytes() for v in held)).hexdigest())
