import numpy as np
import tensorflow as tf


def make_step(model, loss_fn, learning_rate):
    optimizer = tf.keras.optimizers.Adam(learning_rate)

    @tf.function
    def step(inputs, targets):
        with tf.GradientTape() as tape:
            loss = loss_fn(targets, model(inputs, training=True))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        return loss

    return step


def main():
    x = np.linspace(-2, 2, 80, dtype="float32").reshape(-1, 1)
    dataset = tf.data.Dataset.from_tensor_slices((x, x**3 - x)).shuffle(80).batch(16)
    net = tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(16, activation="tanh"), tf.keras.layers.Dense(1)])
    go = make_step(net, tf.keras.losses.MeanSquaredError(), 0.03)
    for epoch in range(3):  # <- epoch loop
        for batch in dataset:  # <- batch loop
            loss = go(*batch)  # <- update
        print("epoch", epoch, "loss", float(loss))


main()
