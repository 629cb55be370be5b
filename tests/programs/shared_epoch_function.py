import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits


def one_pass(model, opt, x, y, bs=50):
    order = np.random.permutation(len(x))
    total = 0.0
    for start in range(0, len(x), bs):  # <- batch loop
        pick = order[start:start + bs]
        images, labels = x[pick], y[pick]  # <- load
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.keras.losses.sparse_categorical_crossentropy(labels, model(images), from_logits=True))
        opt.apply_gradients(zip(tape.gradient(loss, model.trainable_weights), model.trainable_weights))  # <- update
        total += float(loss) * len(pick)
    return total / len(x)


def main():
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype("float32")
    low, high = y[:500] < 5, y[:500] >= 5
    body = tf.keras.layers.Dense(16, activation="relu")
    model = tf.keras.Sequential([tf.keras.Input((64,)), body, tf.keras.layers.Dense(10)])

    opt = tf.keras.optimizers.Adam(0.01)
    for epoch in range(2):  # <- epoch loop
        print("digits 0-4, epoch", epoch, one_pass(model, opt, x[:500][low], y[:500][low]))

    body.trainable = False
    opt = tf.keras.optimizers.SGD(0.1)
    for epoch in range(2):  # <- epoch loop
        print("digits 5-9, epoch", epoch, one_pass(model, opt, x[:500][high], y[:500][high]))


if __name__ == "__main__":
    main()
