import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

X, Y = load_digits(return_X_y=True)
X = (X[:320] / 16.0).astype("float32")
Y = Y[:320]

encoder = tf.keras.Sequential([tf.keras.Input((64,)), tf.keras.layers.Dense(16, activation="relu")], name="encoder")
decoder = tf.keras.Sequential([tf.keras.Input((16,)), tf.keras.layers.Dense(64, activation="sigmoid")], name="decoder")
head = tf.keras.layers.Dense(10, name="head")

# Phase 1: autoencoder without labels
print("== pretraining ==")
opt = tf.keras.optimizers.Adam(0.01)
variables = encoder.trainable_variables + decoder.trainable_variables
for epoch in range(2):  # <- epoch loop
    for x in tf.data.Dataset.from_tensor_slices(X).shuffle(320).batch(64):  # <- batch loop
        with tf.GradientTape() as tape:
            noisy = x + tf.random.normal(x.shape, stddev=0.1)
            loss = tf.reduce_mean(tf.square(decoder(encoder(noisy)) - x))
        opt.apply_gradients(zip(tape.gradient(loss, variables), variables))  # <- update
    print("reconstruction", epoch, float(loss))

# Phase 2: classifier on top, smaller learning rate
print("== fine-tuning ==")
opt = tf.keras.optimizers.Adam(0.005)
head.build((None, 16))
variables = encoder.trainable_variables + head.trainable_variables
for epoch in range(3):  # <- epoch loop
    hits = 0
    for x, y in tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(320).batch(64):  # <- batch loop
        with tf.GradientTape() as tape:
            logits = head(encoder(x))
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
        opt.apply_gradients(zip(tape.gradient(loss, variables), variables))  # <- update
        hits += int(np.sum(np.argmax(logits, 1) == y))
    print("classification", epoch, float(loss), "accuracy", hits / len(X))
