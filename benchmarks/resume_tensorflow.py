"""The programs of `resume.py --framework tensorflow`: one training by each method, 2000 batches an epoch of a
reshuffled tf.data set, with a checkpoint each 500.
"""

from __future__ import annotations

STEPS, EPOCHS, EVERY, STOP = 2000, 2, 500, 3501

SETUP = """
import json, os, signal, sys, time
import keras, numpy as np, tensorflow as tf
keras.utils.set_random_seed(0)
tf.config.experimental.enable_op_determinism()
STEPS, EPOCHS, EVERY = 2000, 2, 500
x = np.random.default_rng(0).normal(size=(STEPS * 32, 128)).astype("float32")
def prepared(row):  # about what decoding and cropping an image costs
    for _ in range(6):
        row = tf.sort(tf.sin(row * 1.1))
    return row, row[:1]
data = tf.data.Dataset.from_tensor_slices(x).shuffle(4096).map(prepared).batch(32)
layers = keras.layers
model = keras.Sequential([keras.Input((128,)), layers.Dense(64, activation="relu"), layers.Dropout(0.2), layers.Dense(1)])
optimizer = keras.optimizers.Adam(1e-3)
optimizer.build(model.trainable_variables)
seen = [0]
def done():
    seen[0] += 1
    os.write(2, f"STEP {time.time()}\\n".encode())  # no file: those are set back to the cut
    if os.environ.get("STOP") == str(seen[0]):  # not in a name: those come back with a checkpoint
        os.kill(os.getpid(), signal.SIGKILL)
def finish():
    np.save(os.environ["OUT"] + ".npy", np.concatenate([np.asarray(v).reshape(-1) for v in model.trainable_variables]))
@tf.function
def step(a, b):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(a, training=True) - b) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
"""

PROGRAMS = {
    "detrain": SETUP
    + """
for epoch in range(EPOCHS):
    for a, b in data:
        step(a, b)
        done()
finish()
""",
    "tf.train.Checkpoint + iterator": SETUP
    + """
iterator, at = iter(data.repeat(EPOCHS)), tf.Variable(0)
manager = tf.train.CheckpointManager(tf.train.Checkpoint(model=model, optimizer=optimizer, iterator=iterator, at=at), "tf", 3)
manager.restore_or_initialize()
while int(at) < STEPS * EPOCHS:
    step(*next(iterator))
    at.assign_add(1)
    if int(at) % EVERY == 0:
        manager.save()
    done()
finish()
""",
    "dataset.skip": SETUP
    + """
at = tf.Variable(0)
manager = tf.train.CheckpointManager(tf.train.Checkpoint(model=model, optimizer=optimizer, at=at), "tf", 3)
manager.restore_or_initialize()
iterator = iter(data.repeat(EPOCHS).skip(int(at)))
while int(at) < STEPS * EPOCHS:
    step(*next(iterator))
    at.assign_add(1)
    if int(at) % EVERY == 0:
        manager.save()
    done()
finish()
""",
    "Keras BackupAndRestore": SETUP
    + """
class Done(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        done()
model.compile(optimizer, "mse")
backup = keras.callbacks.BackupAndRestore("keras", save_freq=EVERY)
model.fit(data, epochs=EPOCHS, verbose=0, callbacks=[backup, Done()])
finish()
""",
}
BARE = (
    SETUP
    + """
iterator = iter(data)
next(iterator)
started = time.perf_counter()
for _ in range(1500):
    next(iterator)
print("RATE", 1500 / (time.perf_counter() - started))
"""
)
NEEDS: dict[str, str] = {}
