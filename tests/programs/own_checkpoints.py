# Saves checkpoints of its own, keeps the best model, and writes a TensorBoard log; all the while detrain does its part.
import glob
import hashlib
import json
import os

import keras
import numpy as np
import tensorflow as tf

x = np.random.normal(size=(32, 4)).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, x[:, :1] - x[:, 1:2])).shuffle(32).batch(8)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(1)])
optimizer = keras.optimizers.Adam(0.02)
step = tf.Variable(0, dtype=tf.int64)
saved = tf.train.Checkpoint(model=model, optimizer=optimizer, step=step)
manager = tf.train.CheckpointManager(saved, "own", max_to_keep=2)
writer = tf.summary.create_file_writer("board")
best = {"loss": float("inf")}

for epoch in range(4):  # <- epoch loop
    for a, b in data:  # <- batch loop
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(a) - b) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))  # <- update
        step.assign_add(1)
        with writer.as_default(step=step):
            tf.summary.scalar("loss", loss)
    manager.save()
    if float(loss) < best["loss"]:
        best = {"loss": float(loss), "epoch": epoch}
        model.save_weights("best.weights.h5")
        json.dump(best, open("best.json", "w"))
    print(f"epoch {epoch} loss {float(loss)!r} best {best} kept {manager.latest_checkpoint}", flush=True)
events = [event.step for file in sorted(glob.glob("board/*")) for event in tf.compat.v1.train.summary_iterator(file) if event.summary.value]
print("files", json.load(open("best.json")), sorted(os.listdir("own")), sorted(set(events)) == list(range(1, 17)))
print("weights", hashlib.sha256(b"".join(np.asarray(v).tobytes() for v in model.variables)).hexdigest())
