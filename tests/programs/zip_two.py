# Mean-teacher flavoured semi-supervised learning: a labelled and an unlabelled stream side by side.
import numpy as np
import tensorflow as tf

rng = np.random.default_rng(5)
labelled = tf.data.Dataset.from_tensor_slices(
    (rng.normal(size=(40, 8)).astype("f4"), rng.integers(0, 2, 40))
).batch(8)
unlabelled = tf.data.Dataset.from_tensor_slices(rng.normal(size=(160, 8)).astype("f4")).batch(32)

net = tf.keras.Sequential([tf.keras.layers.Dense(16, "relu"), tf.keras.layers.Dropout(0.2), tf.keras.layers.Dense(2)])
adam = tf.keras.optimizers.Adam(3e-3)


def consistency(u):
    a, b = net(u, training=True), net(u, training=True)
    return tf.reduce_mean(tf.square(tf.nn.softmax(a) - tf.nn.softmax(b)))


for ep in range(3):  # <- epoch loop
    sup, unsup = [], []
    for (x, y), u in zip(labelled, unlabelled):  # <- batch loop
        with tf.GradientTape() as tape:
            s = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, net(x, training=True)))
            c = consistency(u)
            loss = s + 0.5 * c
        adam.apply_gradients(zip(tape.gradient(loss, net.trainable_variables), net.trainable_variables))  # <- update
        sup.append(float(s))
        unsup.append(float(c))
    print(f"ep {ep}  supervised {np.mean(sup):.4f}  consistency {np.mean(unsup):.5f}")
