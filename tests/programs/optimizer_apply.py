import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(99)
images = np.random.uniform(size=(48, 8, 8, 1)).astype("float32")
brightness = (images.mean(axis=(1, 2, 3)) > 0.5).astype("int32")

inputs = keras.Input((8, 8, 1))
h = layers.Conv2D(4, 3, strides=2)(inputs)
h = layers.BatchNormalization()(h)
h = layers.Activation("relu")(h)
outputs = layers.Dense(2)(layers.Flatten()(h))
net = keras.Model(inputs, outputs)
optimizer = keras.optimizers.Adam(learning_rate=0.005)
optimizer.build(net.trainable_variables)

for epoch in range(3):  # <- epoch loop
    mean_loss = keras.metrics.Mean(name="loss")
    for index in range(4):  # <- batch loop
        chosen = slice(12 * index, 12 * (index + 1))
        x, y = images[chosen], brightness[chosen]  # <- load
        with tf.GradientTape() as tape:
            loss = ops.mean(keras.losses.sparse_categorical_crossentropy(y, net(x, training=True), from_logits=True))
        optimizer.apply(tape.gradient(loss, net.trainable_variables))  # <- update
        mean_loss.update_state(loss)
    print(f"Epoch {epoch}: {mean_loss.name}={float(mean_loss.result()):.4f}")
