# Lookup tables that the loop fills and changes: a vocabulary of words, counts in a dense table; and vocabularies that stay.
import hashlib

import keras
import numpy as np
import tensorflow as tf

x = np.random.normal(size=(24, 4)).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, x.sum(1, keepdims=True))).shuffle(24).batch(6)
words = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
counts = tf.lookup.experimental.DenseHashTable(tf.int64, tf.float32, 0.0, -1, -2)
vectors = keras.layers.TextVectorization(output_mode="int")
vectors.adapt(["a b c", "d e f a"])
stays = keras.layers.StringLookup(vocabulary=["a", "b"])
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
optimizer = keras.optimizers.SGD(1e-2)
turn = 0
for epoch in range(4):  # <- epoch loop
    for a, b in data:  # <- batch loop
        word = tf.constant([f"w\u00f6rd {int(a[0, 0] * 3)}"])
        if int(words.lookup(word)[0]) < 0:
            words.insert(word, tf.constant([turn], tf.int64))
        seen = words.lookup(word)
        counts.insert(seen, counts.lookup(seen) + 1.0)
        if turn % 5 == 4:
            words.remove(word)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(a) - b * counts.lookup(seen)) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))  # <- update
        turn += 1
    known = list(zip(*(part.numpy().tolist() for part in words.export())))
    print(f"epoch {epoch} loss {float(loss)!r} {int(counts.size())} {vectors('a d')[0]} {stays(['b'])[0]} {known}", flush=True)
print("weights", hashlib.sha256(b"".join(np.asarray(v).tobytes() for v in model.variables)).hexdigest())
