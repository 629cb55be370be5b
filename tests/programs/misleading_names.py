import numpy as np
import tensorflow as tf

data = np.random.default_rng(14).normal(size=(72, 4)).astype("float32")
truth = (data @ np.array([[1.0], [0.5], [0.0], [-1.0]], "float32"))
net = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
opt = tf.keras.optimizers.SGD(0.1)


def train_on_batch(rows):
    """Only measures; the name is from an older version."""
    return float(tf.reduce_mean((net(data[rows]) - truth[rows]) ** 2))


def evaluate(rows):
    with tf.GradientTape() as tape:
        score = tf.reduce_mean((net(data[rows]) - truth[rows]) ** 2)
    opt.apply_gradients(zip(tape.gradient(score, net.trainable_variables), net.trainable_variables))
    return float(score)


def fit(steps):
    return [train_on_batch(np.arange(12 * s, 12 * (s + 1))) for s in range(steps)]


for batch in range(3):  # <- epoch loop
    scores = []
    for epoch in range(6):  # <- batch loop
        rows = np.arange(12 * epoch, 12 * (epoch + 1))  # <- load
        scores.append(evaluate(rows))  # <- update
    for epoch in range(6):
        train_on_batch(np.arange(12 * epoch, 12 * (epoch + 1)))
    print(f"pass {batch}: before {np.mean(scores):.4f} after {np.mean(fit(6)):.4f}")
