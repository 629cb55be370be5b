import numpy as np
import tensorflow as tf


def make_dataset():
    rng = np.random.RandomState(42)
    x = rng.rand(80, 4).astype("float32")
    y = (x.sum(1) > 2).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(16)


dataset = make_dataset()
classifier = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
sgd = tf.keras.optimizers.SGD(learning_rate=0.5, momentum=0.9)
bce = tf.keras.losses.BinaryCrossentropy(from_logits=True)


@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        value = bce(y[:, None], classifier(x))
    sgd.apply_gradients(zip(tape.gradient(value, classifier.trainable_variables), classifier.trainable_variables))
    return value


for epoch in range(3):  # <- epoch loop
    it = iter(dataset)
    seen = 0
    while True:  # <- batch loop
        try:
            x, y = next(it)  # <- load
        except StopIteration:
            break
        loss = step(x, y)  # <- update
        seen += len(x)
    print(f"epoch {epoch} - {seen} samples - last loss {loss:.3f}")
