"""Small classifier on the digits data."""

import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

BATCH = 64
EPOCHS = 2


def get_data():
    x, y = load_digits(return_X_y=True)
    x = (x / 16.0).astype("float32")
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.75, random_state=1)
    return tf.data.Dataset.from_tensor_slices((x_train, y_train)).batch(BATCH), (x_test, y_test)


def build_model():
    return tf.keras.Sequential([
        tf.keras.layers.Input((64,)),
        tf.keras.layers.Dense(24, activation="relu"),
        tf.keras.layers.Dense(10),
    ])


def train(model, opt, criterion, ds):
    for epoch in range(1, EPOCHS + 1):  # <- epoch loop
        mean = tf.keras.metrics.Mean()
        for images, labels in ds:  # <- batch loop
            with tf.GradientTape() as tape:
                loss = criterion(labels, model(images, training=True))
            opt.apply_gradients(zip(tape.gradient(loss, model.trainable_weights), model.trainable_weights))  # <- update
            mean.update_state(loss)
        print("Epoch %d/%d  loss=%.4f" % (epoch, EPOCHS, mean.result()))


def main():
    ds, (x_test, y_test) = get_data()
    model = build_model()
    train(model, tf.keras.optimizers.SGD(0.1), tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), ds)
    accuracy = (model(x_test).numpy().argmax(1) == y_test).mean()
    print("test accuracy %.3f" % accuracy)


if __name__ == "__main__":
    main()
