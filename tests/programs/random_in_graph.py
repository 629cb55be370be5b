# Random ops of all kinds inside a tf.function, and in eager code between its calls; a tf.random.Generator beside them.
import hashlib

import numpy as np
import tensorflow as tf

weights = tf.Variable(tf.ones([4, 2]))
optimizer = tf.keras.optimizers.SGD(1e-2)
optimizer.build([weights])
source = tf.random.Generator.from_seed(4)


@tf.function
def step(x):
    x = tf.random.shuffle(x) + tf.random.normal(tf.shape(x)) * tf.random.uniform([], maxval=0.1)
    x = tf.nn.dropout(x, 0.2) + tf.random.truncated_normal([4]) * 0.01 + source.normal([4]) * 0.01
    side = tf.cast(tf.random.categorical(tf.zeros([1, 3]), 1)[0, 0] + tf.random.uniform([], 0, 3, tf.int64), tf.float32)
    side += tf.random.gamma([], 2.0) + tf.random.poisson([], 1.5)
    image = tf.image.random_flip_left_right(tf.image.random_brightness(tf.reshape(x, [-1, 2, 2, 1]), 0.1))
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((tf.reshape(image, [-1, 4]) @ weights - side) ** 2)
    optimizer.apply_gradients([(tape.gradient(loss, weights), weights)])
    return loss


x = tf.random.normal([24, 4])
for epoch in range(4):  # <- epoch loop
    for start in range(0, 24, 6):  # <- batch loop
        batch = x[start : start + 6] + tf.random.normal([4], stddev=0.01)  # <- load
        loss = step(batch)  # <- update
    print(f"epoch {epoch} loss {float(loss)!r} eager {float(tf.random.uniform([]))!r}", flush=True)
print("weights", hashlib.sha256(weights.numpy().tobytes()).hexdigest(), source.state.numpy().tolist())
