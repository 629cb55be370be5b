import numpy as np
import tensorflow as tf

shared = tf.keras.Sequential([tf.keras.Input((6,)), tf.keras.layers.Dense(10, activation="relu")])
heads = {"regress": tf.keras.layers.Dense(1), "classify": tf.keras.layers.Dense(3)}
for h in heads.values():
    h.build((None, 10))
opt = tf.keras.optimizers.Adam(0.01)
opt.build(shared.trainable_variables + [v for h in heads.values() for v in h.trainable_variables])


def regress_step(x, y):
    with tf.GradientTape() as t:
        loss = tf.reduce_mean((heads["regress"](shared(x))[:, 0] - y["value"]) ** 2)
    vs = shared.trainable_variables + heads["regress"].trainable_variables
    opt.apply_gradients(zip(t.gradient(loss, vs), vs))
    return loss


def classify_step(x, y):
    with tf.GradientTape() as t:
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y["label"], heads["classify"](shared(x))))
    vs = shared.trainable_variables + heads["classify"].trainable_variables
    opt.apply_gradients(zip(t.gradient(loss, vs), vs))
    return loss


STEPS = {"regress": regress_step, "classify": classify_step}
rng = np.random.default_rng(8)
feats = rng.normal(size=(72, 6)).astype("float32")
ds = tf.data.Dataset.from_tensor_slices((feats, {"value": feats[:, 0], "label": rng.integers(0, 3, 72)})).batch(12)

for epoch in range(3):  # <- epoch loop
    log = {task: [] for task in STEPS}
    for i, (x, y) in ds.enumerate():  # <- batch loop
        task = "regress" if i % 2 == 0 else "classify"
        log[task].append(float(STEPS[task](x, y)))  # <- update
    print(epoch, {task: round(float(np.mean(v)), 4) for task, v in log.items()})
