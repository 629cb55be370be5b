import numpy as np
import tensorflow as tf

rng = np.random.default_rng(21)


def shard(difficulty):
    n = 64
    labels = rng.integers(0, 2, n)
    points = rng.normal(scale=difficulty, size=(n, 4)) + 2 * labels[:, None] - 1
    return points.astype("float32"), labels.astype("float32")


shards = {"easy": shard(0.3), "medium": shard(0.8), "hard": shard(1.6)}
model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(6, activation="relu"), tf.keras.layers.Dense(1)])
opt = tf.keras.optimizers.Adam(0.02)

# every shard is seen once, in order of difficulty
for name, (points, labels) in shards.items():  # <- epoch loop
    acc = tf.keras.metrics.BinaryAccuracy(threshold=0.0)
    for x, y in tf.data.Dataset.from_tensor_slices((points, labels)).batch(16):  # <- batch loop
        with tf.GradientTape() as tape:
            z = model(x)[:, 0]
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(y, z))
        opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))  # <- update
        acc.update_state(y, z)
    print(f"{name:>6}: loss {loss:.4f} accuracy {acc.result():.3f}")
