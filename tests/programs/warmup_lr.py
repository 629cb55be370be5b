import numpy as np
import tensorflow as tf
from tensorflow import keras

x = np.random.default_rng(0).normal(size=(80, 6)).astype("float32")
y = np.tanh(x @ np.ones((6, 1), "float32"))
ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)
model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
opt = keras.optimizers.SGD(1e-5, momentum=0.9)

PEAK = 0.05
WARMUP_STEPS = 7


@tf.function
def update(xb, yb):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(xb, training=True) - yb) ** 2)
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss


# ---- linear warm-up of the learning rate over the first few steps
stream = iter(ds.repeat())
for step in range(WARMUP_STEPS):  # <- batch loop
    opt.learning_rate = PEAK * (step + 1) / WARMUP_STEPS
    xb, yb = next(stream)  # <- load
    loss = update(xb, yb)  # <- update
    print(f"warm-up step {step} lr {float(opt.learning_rate):.4f} loss {float(loss):.4f}")

# ---- the real thing
for epoch in range(3):  # <- epoch loop
    opt.learning_rate = PEAK * 0.5 * (1 + np.cos(np.pi * epoch / 3))
    for xb, yb in ds:  # <- batch loop
        loss = update(xb, yb)  # <- update
    print(f"epoch {epoch} lr {float(opt.learning_rate):.4f} loss {float(loss):.4f}")
