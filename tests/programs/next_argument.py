import numpy as np
import tensorflow as tf

# Strategy, and each batch taken in the argument of the step.
strategy = tf.distribute.get_strategy()
x = np.random.rand(64, 5).astype("float32")
y = (x.sum(1) > 2.5).astype("int32")
dataset = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices((x, y)).shuffle(64).batch(8))

with strategy.scope():
    net = tf.keras.Sequential([tf.keras.layers.Dense(6, activation="relu"), tf.keras.layers.Dense(2)])
    sgd = tf.keras.optimizers.SGD(0.1)
    losses = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


def replica_step(inputs):
    a, b = inputs
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(losses(b, net(a, training=True)))
    sgd.apply_gradients(zip(tape.gradient(loss, net.trainable_variables), net.trainable_variables))
    return loss


@tf.function
def step(inputs):
    return strategy.reduce("sum", strategy.run(replica_step, args=(inputs,)), axis=None)


for epoch in range(3):  # <- epoch loop
    total = 0.0
    source = iter(dataset)
    for _ in range(5):  # <- batch loop
        total += step(next(source))  # <- load, update
    print(f"epoch {epoch}: {float(total) / 5:.4f}")
