import numpy as np
import tensorflow as tf
from engine import Engine

model = tf.keras.Sequential([tf.keras.Input((6,)), tf.keras.layers.Dense(8, activation="relu"), tf.keras.layers.Dense(1)])
opt = tf.keras.optimizers.Adam(0.02)
x = np.random.normal(size=(80, 6)).astype("float32")
y = x[:, :1] - x[:, 1:2] * x[:, 2:3]
ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)


def update(engine, batch):
    bx, by = batch
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(bx) - by) ** 2)
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss


trainer = Engine(update)
evaluator = Engine(lambda engine, batch: tf.reduce_mean((model(batch[0]) - batch[1]) ** 2))


@trainer.on("epoch")
def report(engine):
    evaluator.run(ds)
    print("epoch", engine.epoch, "iteration", engine.iteration, "loss", evaluator.output.numpy())


trainer.run(ds, max_epochs=3)
